"""What a rule does to answers, with paired intervals: ``python -m benchmarks.quality --help``.

Answers come from our own run of IFEval under many rules (`run`; `arms` names the rules, `answers`
decodes and can go on after a stop, `ifeval` has prompts and checks), or from runs of the
lm-evaluation-harness (`harness`). `summary` has the figures of either, `table` and `picture` show
them. `likelihood` scores reference texts (`documents`) under the same arms, and `curve` has its
figures.
"""
