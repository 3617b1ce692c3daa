"""Imported first: says what to install where the runtime's packages are missing."""

from importlib.util import find_spec

for _package in ("torch", "transformers"):
    if find_spec(_package) is None:
        raise ModuleNotFoundError(
            f"cactus_runtime needs {_package}: pip install 'cactus-speculative[runtime]'",
            name=_package,
        )
