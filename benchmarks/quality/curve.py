"""Mean -log likelihood of reference texts: figures with paired intervals, a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from benchmarks.quality.arms import PLAIN
from benchmarks.quality.picture import MARKERS
from cactus_theory.rules.registry import RULES

_LEVEL = 0.95


def summarise(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means per token over all documents, and differences from the target with 95 % intervals.

    A difference is the ratio of sums over documents, sum (loss - loss of the target) / sum tokens.
    Its interval is Student's for a ratio, the documents taken as independent.

    Parameters
    ----------
    lines : sequence of mappings
        "tokens", "draft_loss" and "arms" of each document; a null is infinite.

    Raises
    ------
    ValueError
        If there are fewer than two documents, of which no interval exists.

    Examples
    --------
    >>> arm = {"acceptance_rate": 1.0, "total_variation": 0.0, "kl": 0.0, "excluded": 0}
    >>> lines = [{"tokens": 2, "draft_loss": 3.0, "arms": {
    ...     "plain": {**arm, "loss": 2.0}, "clamp 1": {**arm, "loss": 2.0 + x}}} for x in (1, 3)]
    >>> found = summarise(lines)["arms"]["clamp 1"]
    >>> found["loss"], found["difference"]["value"]
    (2.0, 1.0)
    """
    if len(lines) < 2:
        raise ValueError(f"documents must be two or more, got {len(lines)}")
    tokens = np.array([line["tokens"] for line in lines], dtype=float)
    base = _column(lines, PLAIN, "loss")
    arms: dict[str, Any] = {}
    for name in lines[0]["arms"]:
        loss = _column(lines, name, "loss")
        arms[name] = {"loss": float(loss.sum() / tokens.sum())}
        if name != PLAIN:
            arms[name]["difference"] = _ratio(loss - base, tokens)
        for key in ("acceptance_rate", "total_variation", "kl", "excluded"):
            arms[name][key] = float(_column(lines, name, key).sum() / tokens.sum())
    draft = sum(line["draft_loss"] for line in lines) / tokens.sum()
    counts = {"documents": len(lines), "tokens": int(tokens.sum())}
    return {**counts, "draft_loss": float(draft), "arms": arms}


def _column(lines: Sequence[Mapping[str, Any]], arm: str, key: str) -> np.ndarray:
    found = (line["arms"][arm][key] for line in lines)
    return np.array([math.inf if value is None else value for value in found], dtype=float)


def _ratio(gain: np.ndarray, tokens: np.ndarray) -> dict[str, float]:
    """sum gain / sum tokens, with the interval of a ratio of means over the documents."""
    value = float(gain.sum() / tokens.sum())
    if not math.isfinite(value):
        return {"value": value, "low": value, "high": value}
    n = len(gain)
    error = math.sqrt(n / (n - 1) * ((gain - value * tokens) ** 2).sum()) / tokens.sum()
    half = float(stdtrit(n - 1, (1 + _LEVEL) / 2)) * error
    return {"value": value, "low": value - half, "high": value + half}


def table(summary: Mapping[str, Any]) -> str:
    """In Markdown, a row for each arm."""
    rules = summary["settings"]["rules"]
    rows = [
        f"{summary['documents']} documents, {summary['tokens']:,} tokens; the draft's own loss is "
        f"{summary['draft_loss']:.4f}. In brackets 95 % intervals, paired by document.\n",
        "| arm | rule | -log likelihood | difference from the target | acceptance | TV | KL "
        "| cannot be emitted |",
        "|---|---|--:|---|--:|--:|--:|--:|",
    ]
    for name, found in summary["arms"].items():
        gap = found.get("difference")
        interval = "" if gap is None else "{value:+.4f} [{low:+.4f}, {high:+.4f}]".format(**gap)
        if gap is not None and not math.isfinite(gap["value"]):
            interval = "∞"
        rows.append(
            f"| {name} | `{rules[name]}` | {found['loss']:.4f} | {interval} "
            f"| {found['acceptance_rate']:.3f} | {found['total_variation']:.4f} "
            f"| {found['kl']:.4f} | {found['excluded']:.1%} |"
        )
    return "\n".join(rows)


def draw(summary: Mapping[str, Any]) -> Any:
    """Loss above the target's: left against acceptance, right against KL(out || q).

    Parameters
    ----------
    summary : mapping
        Of `summarise`, and its settings.

    Returns
    -------
    matplotlib figure
    """
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(8.4, 3.8), sharey=True, layout="constrained"
    )
    families: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for arm, found in summary["arms"].items():
        if arm != PLAIN:
            family, _, delta = arm.partition(" ")
            families.setdefault(family, []).append((delta, found))
    for family, some in families.items():
        finite = [(delta, found) for delta, found in some if math.isfinite(found["loss"])]
        endless = [delta for delta, found in some if not math.isfinite(found["loss"])]
        label = f"{family} (∞ at {', '.join(endless)})" if endless else family
        gaps = [found["difference"] for _, found in finite]
        values = [gap["value"] for gap in gaps]
        ends = [
            [gap["value"] - gap["low"] for gap in gaps],
            [gap["high"] - gap["value"] for gap in gaps],
        ]
        for side, place in ((left, "acceptance_rate"), (right, "kl")):
            places = [found[place] for _, found in finite]
            side.errorbar(
                places, values, yerr=ends, fmt=MARKERS.get(family, "o"), linestyle="-",
                color=RULES[family].colour, markersize=4, linewidth=0.8, capsize=2, label=label,
            )  # fmt: skip
            if family == "cactus":
                for (delta, _), x, y in zip(finite, places, values, strict=True):
                    side.annotate(
                        delta, (x, y), textcoords="offset points", xytext=(4, -8), fontsize=7
                    )
    left.set_ylabel("-log likelihood above the target's\n(nats per token)")
    left.set_xlabel("acceptance rate")
    right.set_xlabel("KL(emitted ‖ target), nats per verified token")
    for side in (left, right):
        side.axhline(0, color="black", linewidth=0.6)
        side.grid(alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=7, fontsize=7, frameon=False)
    return figure
