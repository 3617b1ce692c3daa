"""Why the files of a model cannot be read: a git-lfs pointer, a truncated file, wrong shapes."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError

from safetensors import SafetensorError

DAMAGED = (SafetensorError, UnpicklingError, RuntimeError)  # raised while weights are read
_POINTER = b"version https://git-lfs.github.com/spec/"


def pointer_in(folder: str | Path) -> str | None:
    """The name of a file in the folder that is a git-lfs pointer, if there is one.

    Examples
    --------
    >>> pointer_in(Path(__file__).parent) is None
    True
    """
    for path in sorted(Path(folder).glob("*")):
        if path.is_file():
            with path.open("rb") as file:
                if file.read(len(_POINTER)) == _POINTER:
                    return path.name
    return None


def why_unreadable(role: str, model: str | Path, error: Exception) -> str:
    """One sentence about a model whose files were found but could not be loaded.

    Parameters
    ----------
    role : str
        "target" or "draft".
    model : str or Path
        The name that was given.
    error : Exception
        One of `DAMAGED`.

    Returns
    -------
    str

    Examples
    --------
    >>> print(why_unreadable("draft", "some/model", SafetensorError("header too large")))
    draft='some/model' has weights that cannot be read: header too large
    """
    pointer = pointer_in(model)
    if pointer is not None:
        why = f"a git-lfs pointer in place of {pointer}; fetch the file by `git lfs pull`"
    elif "ignore_mismatched_sizes" in str(error):
        why = "weights whose shapes differ from its config.json (the report names them)"
    else:
        why = f"weights that cannot be read: {str(error).strip().splitlines()[0]}"
    return f"{role}={str(model)!r} has {why}"
