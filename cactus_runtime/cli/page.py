"""Curves as one page with a slider: nothing is loaded, no server is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cactus_runtime.rendering import render
from cactus_theory.curves import Curve
from cactus_theory.rules.parsing import entries_from
from cactus_theory.rules.registry import RULES, Entry

QS = np.geomspace(1e-6, 1, 121)  # target probabilities at which g is shown


def curve_page(curves: Mapping[str, Curve], *, about: str) -> str:
    """A page on which a slider moves delta through curves.

    Parameters
    ----------
    curves : mapping of str to Curve
        By rule, as `cactus_theory.rules.parsing.entry_from` reads it; all of the same deltas.
    about : str
        Text about the distributions, shown on the page.

    Returns
    -------
    str
        HTML; to be written as UTF-8.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> from cactus_theory.curves import curve
    >>> found = curve(Cactus, draft=[0.7, 0.3], target=[0.5, 0.5], deltas=[0.1, 1.0])
    >>> page = curve_page({"cactus": found}, about="p < q")
    >>> page.splitlines()[0], "p &lt; q" in page
    ('<!DOCTYPE html>', True)
    """
    deltas = next(iter(curves.values())).deltas
    data = {
        "deltas": _numbers(deltas),
        "qs": _numbers(QS),
        "rules": [
            _drawn(name, entry, curves[name]) for name, entry in entries_from(curves).items()
        ],
    }
    bounded = " and ".join(name for name, entry in RULES.items() if entry.bounds_kl)
    return render("curve.html", data=data, about=about, bounded=bounded)


def _drawn(name: str, entry: Entry, found: Curve) -> dict[str, Any]:
    """How a rule is named and drawn, its curves, and g at every q for every delta."""
    granted = None
    if entry.has_candidates:
        rules: list[Any] = [entry.at(float(delta)) for delta in found.deltas]
        granted = [_numbers(rule.boost(QS)) for rule in rules]
    return {
        "key": name,
        "name": entry.title,
        "colour": entry.colour,
        "dash": " ".join(map(str, entry.dash)),
        "acceptance": _numbers(found.acceptance_rate),
        "tv": _numbers(found.total_variation),
        "kl": _numbers(found.kl),
        "granted": granted,
    }


def _numbers(values: np.ndarray) -> list[float | None]:
    """Six digits; null where JSON has no number."""
    return [float(f"{x:.6g}") if math.isfinite(x) else None for x in values.tolist()]
