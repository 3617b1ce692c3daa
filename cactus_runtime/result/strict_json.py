"""Standard JSON, in which no number is infinite or undefined."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def strict_json(value: Any, *, indent: int | None = None) -> str:
    """Write JSON with null in place of each number that is not finite.

    A divergence is infinite where a rule emits tokens that the target never does; a rate is
    undefined where nothing was drafted. The name of the field says which of the two a null means.

    Parameters
    ----------
    value : mapping, sequence, str, number, bool or None
        Nested to any depth.
    indent : int, optional
        As for `json.dumps`.

    Returns
    -------
    str

    Raises
    ------
    TypeError
        If it contains anything else.

    Examples
    --------
    >>> strict_json({"kl_bound": float("inf"), "rates": [float("nan"), 0.5]})
    '{"kl_bound": null, "rates": [null, 0.5]}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
