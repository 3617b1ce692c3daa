"""Speculative decoding of transformers models under a divergence budget, with its ledger.

Needs the extra ``runtime`` (torch, transformers). The public names are listed in the stub file and
imported on first use, so commands and plugins that need no model start without them.
"""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from cactus_runtime import _requires  # noqa: F401  (says what to install)
    return _load(name)
