"""A summary as a table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COSTS = {  # heading and format
    "acceptance_rate": ("acceptance", ".3f"),
    "accepted_per_block": ("accepted drafts per block", ".2f"),
    "block_efficiency": ("block efficiency", ".2f"),
    "drafts_kept": ("drafts kept", ".1%"),
    "total_variation_per_token": ("TV per token", ".4f"),
    "kl_bound_per_token": ("KL bound per token", ".4f"),
    "tokens_per_answer": ("tokens per answer", ".0f"),
    "cut_short": ("cut short", ".0%"),
}


def table(summary: Mapping[str, Any], metrics: Mapping[str, str], costs: Sequence[str]) -> str:
    """Rows of arms: metrics in per cent with 95 % intervals, then what was accepted and spent.

    Parameters
    ----------
    summary : mapping
        Of `summarise`.
    metrics : mapping of str to str
        Names and headings; the last one's difference from the baseline is shown as well.
    costs : sequence of str
        Which of the means, by their names in the summary.
    """
    *_, last = metrics
    heads = ["arm", *(f"{head} %" for head in metrics.values())]
    heads += [f"{metrics[last]}, difference, points", *(_COSTS[name][0] for name in costs)]
    rules = "---|" * (len(heads) - len(costs)) + "--:|" * len(costs)
    rows = [
        f"Over {summary['prompts']} prompts; in brackets 95 % intervals.\n",
        f"| {' | '.join(heads)} |",
        f"|{rules}",
    ]
    for arm, found in summary["arms"].items():
        cells = [arm, *(_percent(found[name]) for name in metrics)]
        cells.append(_percent(found[last]["difference"]) if "difference" in found[last] else "")
        for name in costs:
            cells.append("" if found[name] is None else format(found[name], _COSTS[name][1]))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _percent(found: Mapping[str, float]) -> str:
    value, low, high = (100 * found[name] for name in ("value", "low", "high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"
