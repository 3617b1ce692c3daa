"""From answers to figures: accuracy with bootstrap intervals, acceptance, and what was spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import bootstrap

Checks = Mapping[str, Sequence[float]]  # of one answer: what it earned, by metric

_RESAMPLES = 9999
_LEVEL = 0.95
_SEED = 0


def summarise(
    answers: Sequence[Mapping[str, Any]],
    score: Callable[[Mapping[str, Any]], Checks],
    *,
    baseline: str | None,
) -> dict[str, Any]:
    """Figures of every arm, over the prompts that all arms have answered.

    Parameters
    ----------
    answers : sequence of mappings
        Each has "arm", "key" and the sums of a result.
    score : callable
        From an answer to what it earned, by metric: one number for each thing that was asked.
    baseline : str or None
        The arm from which the others' differences are taken, if any.

    Returns
    -------
    dict
        "prompts", their number, and "arms": by name, as they first appear, the accuracies (value,
        and the ends of a 95 % interval by the bootstrap over prompts), each one's difference from
        the baseline (likewise, in pairs over the same prompts), and means over all positions or
        answers. The
        interval of a single prompt is infinite, and so is a KL bound that some answer had
        infinite; JSON has null for both.

    Raises
    ------
    ValueError
        If no prompt was answered by all arms, or none of them is the baseline.

    Examples
    --------
    >>> line = {"rule": "", "finish_reason": "eos", "tokens": 4, "blocks": 2, "judged": 4,
    ...         "drafted": 4, "accepted": 2, "acceptance_rate": 3.0, "total_variation": 0.4,
    ...         "kl_bound": 0.2}
    >>> answers = [{"arm": arm, "key": key, **line} for arm in ("plain", "clamp") for key in (0, 1)]
    >>> found = summarise(answers, lambda x: {"right": [x["key"] == 0]}, baseline="plain")
    >>> found["prompts"], found["arms"]["clamp"]["right"]["value"]
    (2, 0.5)
    """
    by_arm: dict[str, dict[Any, Mapping[str, Any]]] = {}
    for answer in answers:
        by_arm.setdefault(answer["arm"], {})[answer["key"]] = answer
    keys = set.intersection(*(set(own) for own in by_arm.values())) if by_arm else set()
    if not keys or baseline not in {None, *by_arm}:
        wanted = "" if baseline is None else f", {baseline!r} among them"
        raise ValueError(
            f"answers must have a prompt that all arms have answered{wanted}, got "
            f"{ {arm: len(own) for arm, own in by_arm.items()} }"
        )
    order = sorted(keys)
    lines = {arm: [own[key] for key in order] for arm, own in by_arm.items()}
    checks = {arm: [score(line) for line in own] for arm, own in lines.items()}
    return {
        "prompts": len(order),
        "arms": {
            arm: _accuracies(own, None if arm == baseline else checks.get(baseline or ""))
            | _means(lines[arm])
            for arm, own in checks.items()
        },
    }


def _accuracies(checks: Sequence[Checks], base: Sequence[Checks] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for metric in checks[0]:
        followed, asked = _counts(checks, metric)
        found[metric] = _interval(lambda a, n, axis=-1: a.sum(axis) / n.sum(axis), followed, asked)
        if base is not None:
            theirs, _ = _counts(base, metric)
            found[metric]["difference"] = _interval(
                lambda a, b, n, axis=-1: (a - b).sum(axis) / n.sum(axis), followed, theirs, asked
            )
    return found


def _counts(checks: Sequence[Checks], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """What was earned and asked, of every prompt."""
    followed = np.array([sum(check[metric]) for check in checks], dtype=float)
    return followed, np.array([len(check[metric]) for check in checks], dtype=float)


def _interval(statistic: Callable[..., Any], *data: np.ndarray) -> dict[str, Any]:
    value = float(statistic(*data))
    if len(data[0]) < 2:
        return {"value": value, "low": float("-inf"), "high": float("inf")}
    low, high = bootstrap(
        data,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=_LEVEL,
        method="percentile",
        rng=_SEED,
    ).confidence_interval
    return {"value": value, "low": float(low), "high": float(high)}


def _means(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = ("tokens", "blocks", "judged", "accepted")
    names += ("acceptance_rate", "total_variation", "kl_bound")
    # A sum that the file has as null is infinite.
    total = {
        name: sum(math.inf if line[name] is None else line[name] for line in lines)
        for name in names
    }
    tokens, judged = total["tokens"], total["judged"]
    return {
        "rule": lines[0]["rule"],
        "acceptance_rate": total["acceptance_rate"] / judged if judged else None,
        "drafts_kept": total["accepted"] / judged if judged else None,
        "accepted_per_block": total["accepted"] / total["blocks"],
        "block_efficiency": tokens / total["blocks"],
        "total_variation_per_token": total["total_variation"] / tokens,
        "kl_bound_per_token": total["kl_bound"] / tokens,
        "tokens_per_answer": tokens / len(lines),
        "cut_short": sum(line["finish_reason"] == "length" for line in lines) / len(lines),
    }
