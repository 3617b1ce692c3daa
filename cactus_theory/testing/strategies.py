"""What a rule, a law or a formula should be tried on: inputs chosen to break it.

Knows how to generate valid input and nothing of what should be true of it. Every value drawn is
accepted by the public functions; probabilities are 0 or at least about 1e-301, never subnormal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from cactus_theory.rules import Cactus, CactusExact, Rule, SpeculativeSampling

SMALLEST = 1e-300
LARGEST_BUDGET = 50.0


class Pair(NamedTuple):
    """A draft law and a target law over one vocabulary."""

    draft: np.ndarray
    target: np.ndarray


def target_probabilities() -> st.SearchStrategy[float]:
    """Probabilities of one token: 0, 1, the floats beside them, every magnitude from 1e-300 up.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(target_probabilities())
    ... def is_a_probability(q):
    ...     assert q == 0 or 1e-300 <= q <= 1
    >>> is_a_probability()
    """
    special = [0.0, 1.0, SMALLEST, 1 - 2.0**-53, 2.0**-53, 0.5, 0.5 - 2.0**-54, 0.5 + 2.0**-53]
    return st.one_of(
        st.sampled_from(special),
        st.floats(SMALLEST, 1.0),
        st.floats(-300.0, 0.0).map(_power_of_ten),
        st.floats(-15.9, 0.0).map(lambda exponent: 1 - 10.0**exponent),
    )


def budgets(*, smallest: float = 1e-12) -> st.SearchStrategy[float]:
    """Budgets in nats: exactly 0, and every magnitude from `smallest` to 50.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(budgets())
    ... def is_a_budget(delta):
    ...     assert delta == 0 or 1e-12 <= delta <= 50
    >>> is_a_budget()
    """
    special = [0.0, smallest, 0.03, 0.75, 1.0, 1.2564312086261697, 10.0, LARGEST_BUDGET]
    exponents = st.floats(float(np.log10(smallest)), float(np.log10(LARGEST_BUDGET)))
    clip = lambda delta: min(max(delta, smallest), LARGEST_BUDGET)  # noqa: E731
    return st.one_of(
        st.floats(max(0.01, smallest), max(1.0, smallest)),  # boosts neither void nor capped
        st.sampled_from([delta for delta in special if delta == 0 or delta >= smallest]),
        exponents.map(lambda exponent: clip(10.0**exponent)),
    )


def rules() -> st.SearchStrategy[Rule]:
    """Every rule of the package, with budgets from `budgets`.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(rules())
    ... def raises_the_drafted_token(rule):
    ...     assert 0.25 <= rule.boost(0.25) <= 1
    >>> raises_the_drafted_token()
    """
    return st.one_of(
        st.just(SpeculativeSampling()),
        budgets().map(Cactus),
        budgets().map(CactusExact),
    )


def laws(*, min_size: int = 1, max_size: int = 8) -> st.SearchStrategy[np.ndarray]:
    """Probability laws: smooth, with exact zeros and ties, one-hot, or spread over 300 decades.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(laws(min_size=2, max_size=5))
    ... def is_a_law(law):
    ...     assert 2 <= law.size <= 5 and law.min() >= 0 and abs(law.sum() - 1) < 1e-15 * law.size
    >>> is_a_law()
    """
    return st.integers(min_size, max_size).flatmap(_laws_of_size)


def pairs(*, min_size: int = 1, max_size: int = 8) -> st.SearchStrategy[Pair]:
    """Pairs (draft, target): unrelated, equal, an ulp apart, permuted, disjoint, one-hot.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(pairs(max_size=4))
    ... def share_a_vocabulary(pair):
    ...     assert pair.draft.shape == pair.target.shape
    >>> share_a_vocabulary()
    """
    return st.integers(min_size, max_size).flatmap(_pairs_of_size)


def _power_of_ten(exponent: float) -> float:
    return max(10.0**exponent, SMALLEST)


def _laws_of_size(size: int) -> st.SearchStrategy[np.ndarray]:
    smooth = st.floats(0.01, 1.0)
    tied = st.integers(0, 3).map(float)
    scattered = st.one_of(st.just(0.0), st.just(1.0), st.floats(-300.0, 0.0).map(_power_of_ten))
    weights = st.one_of(
        *(st.lists(w, min_size=size, max_size=size) for w in (smooth, tied, scattered))
    )
    return st.one_of(weights.filter(any).map(_normalised), _one_hots(size))


def _one_hots(size: int) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, size - 1).map(lambda token: np.eye(size)[token])


def _normalised(weights: Any) -> np.ndarray:
    array = np.asarray(weights, dtype=np.float64)
    return array / array.sum()


def _pairs_of_size(size: int) -> st.SearchStrategy[Pair]:
    law = _laws_of_size(size)
    weights = st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size)
    # A concentrated draft against an even target: several tokens rejected, several recovered.
    peaked = weights.map(lambda w: _normalised(np.asarray(w) ** 4))
    even = weights.map(lambda w: _normalised(np.sqrt(w)))
    kinds = [
        st.builds(Pair, peaked, even),
        st.builds(Pair, law, law),
        law.map(lambda p: Pair(p, p.copy())),
        st.builds(_an_ulp_apart, law, st.lists(st.integers(-2, 2), min_size=size, max_size=size)),
        st.builds(_permuted, law, st.permutations(range(size))),
        st.builds(Pair, _one_hots(size), law),
        st.builds(Pair, law, _one_hots(size)),
    ]
    if size >= 2:
        kinds.append(st.integers(1, size - 1).flatmap(lambda cut: _disjoint(cut, size - cut)))
        kinds.append(st.integers(1, size - 1).flatmap(lambda cut: _concentrated(cut, size)))
    return st.one_of(*kinds)


def _an_ulp_apart(p: np.ndarray, steps: list[int]) -> Pair:
    moved = p + np.asarray(steps) * np.spacing(p)
    return Pair(p, np.clip(np.where(p > 0, moved, 0.0), 0.0, 1.0))


def _permuted(p: np.ndarray, order: list[int]) -> Pair:
    return Pair(p, p[list(order)])


def _disjoint(first: int, second: int) -> st.SearchStrategy[Pair]:
    def join(a: np.ndarray, b: np.ndarray) -> Pair:
        return Pair(np.append(a, np.zeros(second)), np.append(np.zeros(first), b))

    return st.builds(join, _laws_of_size(first), _laws_of_size(second))


def _concentrated(cut: int, size: int) -> st.SearchStrategy[Pair]:
    """The draft is the target restricted to some tokens, so that all its ratios p / q tie."""

    def restrict(q: np.ndarray) -> Pair:
        head = q[:cut].sum()
        if head <= 0:
            return Pair(q.copy(), q)
        return Pair(np.append(q[:cut] / head, np.zeros(size - cut)), q)

    return _laws_of_size(size).map(restrict)
