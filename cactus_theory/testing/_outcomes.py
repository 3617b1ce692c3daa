"""Outcomes of a verified block, (emitted tokens, accepted tokens), and views of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

Tokens = tuple[int, ...]
Outcome = tuple[Tokens, int]
Distribution = dict[Outcome, Any]


def whole(outcome: Outcome) -> Outcome:
    return outcome


def tokens_only(outcome: Outcome) -> Outcome:
    """The view without the number accepted, which is set to one less than the tokens."""
    return outcome[0], len(outcome[0]) - 1


def first_token(outcome: Outcome) -> Outcome:
    return outcome[0][:1], 0


def first_decision(outcome: Outcome) -> Outcome:
    return outcome[0][:1], min(outcome[1], 1)


View = Callable[[Outcome], Outcome]


def seen(view: View, distribution: Distribution) -> Distribution:
    """Probabilities, counts or tolerances of the outcomes under a view."""
    if view is whole:
        return distribution
    found: Distribution = {}
    for outcome, weight in distribution.items():
        found[view(outcome)] = found.get(view(outcome), 0) + weight
    return found


def as_array(distribution: Distribution, size: int) -> np.ndarray:
    """Probability of each first token."""
    kinds = {type(weight) for weight in distribution.values()}
    found = np.zeros(size, dtype=object if Fraction in kinds else np.float64)
    for (emitted, _), weight in distribution.items():
        if emitted:
            found[emitted[0]] += weight
    return found


def apart(distribution: Distribution, other: Distribution) -> float:
    """Total variation."""
    keys = {*distribution, *other}
    return sum(abs(distribution.get(key, 0.0) - other.get(key, 0.0)) for key in keys) / 2


def listed(*rows: Sequence[Distribution]) -> list[list[Outcome]]:
    """All outcomes of the given distributions, for each row."""
    return [sorted(set().union(*row)) for row in zip(*rows, strict=True)]


def strata(rows: Sequence[Distribution], cells: Sequence[Sequence[Outcome]]) -> list[np.ndarray]:
    """Probabilities or counts of the listed outcomes, for each row."""
    pairs = zip(rows, cells, strict=True)
    return [np.array([row.get(outcome, 0) for outcome in keys]) for row, keys in pairs]
