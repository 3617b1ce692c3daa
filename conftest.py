"""Doctests of a module whose package is not installed are not collected."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("lm_eval") else ["cactus_runtime/integrations/lm_eval.py"]
