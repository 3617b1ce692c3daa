"""Curves as one page with a slider: nothing is loaded, no server is needed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from importlib.resources import files

import numpy as np

from cactus_theory._looks import LOOKS
from cactus_theory.curves import Curve


def curve_page(curves: Mapping[str, Curve], *, about: str) -> str:
    """A page on which a slider moves delta through curves.

    Parameters
    ----------
    curves : mapping of str to Curve
        By the name of their family; all of the same deltas.
    about : str
        What the page says of the laws, as text.

    Returns
    -------
    str
        HTML; to be written as UTF-8.

    Examples
    --------
    >>> from cactus_theory.curves import FAMILIES, curve
    >>> found = curve(FAMILIES["cactus"], draft=[0.7, 0.3], target=[0.5, 0.5], deltas=[0.1, 1.0])
    >>> page = curve_page({"cactus": found}, about="p < q")
    >>> page.splitlines()[0], "p &lt; q" in page
    ('<!DOCTYPE html>', True)
    """
    template = (files("cactus_runtime.cli") / "page.html").read_text(encoding="utf-8")
    deltas = next(iter(curves.values())).deltas
    data = {
        "deltas": _numbers(deltas),
        "rules": [
            {
                "key": key,
                "name": LOOKS[key].name,
                "colour": LOOKS[key].colour,
                "dash": " ".join(map(str, LOOKS[key].dash)),
                "acceptance": _numbers(found.acceptance_rate),
                "tv": _numbers(found.total_variation),
                "kl": _numbers(found.kl),
            }
            for key, found in curves.items()
        ],
    }
    encoded = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return template.replace("{data}", encoded).replace("{about}", escape(about))


def _numbers(values: np.ndarray) -> list[float | None]:
    """Six digits; null where JSON has no number."""
    return [float(f"{x:.6g}") if math.isfinite(x) else None for x in values.tolist()]
