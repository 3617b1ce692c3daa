"""An audit as JSON and as a page with the curve of its evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from cactus_runtime.rendering import render
from cactus_runtime.result.svg_curve import running_sum
from cactus_theory.testing import Audit


def record(found: Audit, verdict: str, dropped: Mapping[str, int]) -> dict[str, Any]:
    """What ``--json`` prints, as data for `strict_json`.

    Parameters
    ----------
    found : Audit
    verdict : str
    dropped : mapping of str to int

    Returns
    -------
    dict

    Examples
    --------
    >>> from cactus_theory.testing import audit
    >>> record(audit([0], target=[[0.5, 0.5]]), "consistent", {})["tokens"]
    1
    """
    likely = found.likely
    return {
        "verdict": verdict,
        "level": found.level,
        "tolerance_nats": found.tolerance,
        "tokens": found.tokens,
        "decided_after": found.decided_after,
        "p_value": found.p_value,
        "log_evidence_nats": -found.log_p_value,
        "surprise_z": found.surprise,
        "surprise_p": found.surprise_p,
        "uniformity_p": found.uniformity_p,
        "impossible_tokens": found.impossible,
        "looks_like": None
        if likely is None
        else {
            "name": likely.name,
            "parameter": likely.value,
            "nats_per_token": likely.rate,
            "interval": [likely.low, likely.high],
            "not_told_apart_from": list(found.alike),
        },
        "dropped": dict(dropped),
    }


def audit_page(found: Audit, verdict: str, figures: Mapping[str, str]) -> str:
    """A page about an audit. It loads nothing and runs no script.

    Parameters
    ----------
    found : Audit
    verdict : str
        One sentence.
    figures : mapping of str to str

    Returns
    -------
    str
        HTML; to be written as UTF-8.

    Examples
    --------
    >>> from cactus_theory.testing import audit
    >>> page = audit_page(audit([0], target=[[0.5, 0.5]]), "consistent", {"p < q": "1"})
    >>> page.splitlines()[0], "p &lt; q" in page
    ('<!DOCTYPE html>', True)
    """
    reached = [max(x, 0.0) for x in found.log_evidence.tolist()]
    steps = [b - a for a, b in pairwise([0.0, *reached])] if math.isfinite(max(reached)) else []
    label = "log evidence (nats, 0 if below)"
    curve = running_sum(steps, label=label, colour="#D55E00") if steps else None
    return render(
        "audit.html",
        verdict=verdict,
        figures=dict(figures),
        curve=curve,
        threshold=f"{-math.log(found.level):.1f}",
        names=sorted(
            zip(found.names, [f"{x:.1f}" for x in found.log_e], found.log_e.tolist(), strict=True),
            key=lambda row: -row[2],
        )[:12],
    )
