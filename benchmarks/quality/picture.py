"""Accuracy of every arm, against what its drafts gain and what its emitted laws cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.quality.arms import PLAIN, SPECULATIVE
from cactus_theory.rules.registry import RULES

METRIC = "inst_level_loose_acc"
MARKERS = {
    PLAIN: "*",
    SPECULATIVE: "o",
    "exact": "s",
    "clamp": "D",
    "typical": "v",
    "mixture": "^",
}


def quality(summary: Mapping[str, Any]) -> Any:
    """Draw the share of instructions followed, with 95 % intervals.

    Left: against tokens emitted per target pass. Right: against the total variation of the
    emitted laws from the target's, per token.

    Parameters
    ----------
    summary : mapping
        Of `summarise`.

    Returns
    -------
    pair of matplotlib axes
    """
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(8.4, 3.8), sharey=True, layout="constrained"
    )
    told = set()
    for arm, found in summary["arms"].items():
        family, _, delta = arm.partition(" ")
        look = RULES["speculative" if family == PLAIN else family]
        value, low, high = (100 * found[METRIC][name] for name in ("value", "low", "high"))
        for side, place in ((left, "block_efficiency"), (right, "total_variation_per_token")):
            side.errorbar(
                [found[place]],
                [value],
                yerr=[[value - low], [high - value]],
                fmt=MARKERS.get(family, "o"),
                color=look.colour,
                markersize=5,
                linewidth=0.8,
                label=None if family in told else family + ", by delta" * bool(delta),
            )
            told.add(family)
            if delta:
                side.annotate(
                    delta,
                    (found[place], value),
                    textcoords="offset points",
                    xytext=(4, 4),
                    fontsize=7,
                )
    left.set_ylabel("instructions followed, loose (%)")
    left.set_xlabel("tokens per target pass")
    right.set_xlabel("TV of the emitted laws, per token")
    for side in (left, right):
        side.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=7, fontsize=7, frameon=False)
    return left, right
