"""What a rule does to answers: IFEval under many rules, with one pair of models.

`arms` names the rules that are compared, `answers` decodes with them (resumable, answer by
answer), `ifeval` has the prompts and the checks, `summary` the figures, `picture` the picture.
"""
