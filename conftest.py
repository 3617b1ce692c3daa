"""Doctests of a module whose package is not installed are not collected; "auto" is float32."""

import os
from importlib.util import find_spec

os.environ["CACTUS_DTYPE"] = "float32"  # on every machine; tests of "auto" remove it

collect_ignore = [] if find_spec("lm_eval") else ["cactus_runtime/integrations/lm_eval.py"]
