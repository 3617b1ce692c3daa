"""Speculative decoding of transformers models under a divergence budget, with its account.

Needs the extra ``runtime`` (torch, transformers). The public names are those of ``_exports``,
imported when one is asked for: commands and plugins that need no model start without them.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cactus_runtime._exports import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    submodule = find_spec(f"{__name__}.{name}")  # which the import that asks will find itself
    if not name.startswith("_") and submodule is None:
        exports = import_module(f"{__name__}._exports")
        if name in vars(exports):
            return getattr(exports, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    exports = import_module(f"{__name__}._exports")
    return sorted(name for name in vars(exports) if not name.startswith("_"))
