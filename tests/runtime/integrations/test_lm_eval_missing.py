"""Without the harness the import says what to install."""

import sys
from importlib import import_module
from unittest import mock

import pytest

NAME = "cactus_runtime.integrations.lm_eval"


def test_the_extra_is_named_where_the_harness_is_not_installed():
    hidden = {name: None for name in ("lm_eval", "lm_eval.api", "lm_eval.api.registry")}
    with mock.patch.dict(sys.modules, hidden):
        sys.modules.pop(NAME, None)
        with pytest.raises(
            ModuleNotFoundError, match=r"pip install 'cactus-speculative\[lm-eval\]'"
        ):
            import_module(NAME)
