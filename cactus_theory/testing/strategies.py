"""Inputs chosen to break rules, distributions and formulas.

Knows how to generate valid input, and not what should hold for it. Every value drawn is accepted by
the public functions; probabilities are 0 or at least about 1e-301, never subnormal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from cactus_theory.testing._rules import all_rules as all_rules
from cactus_theory.testing._rules import budgets as budgets
from cactus_theory.testing._rules import divergences as divergences
from cactus_theory.testing._rules import rules as rules
from cactus_theory.testing._rules import rules_of as rules_of
from cactus_theory.testing._shapes import SMALLEST as SMALLEST
from cactus_theory.testing._shapes import Pair as Pair
from cactus_theory.testing._shapes import (
    disjoint,
    distributions_of_size,
    pairs_of_size,
    power_of_ten,
)


def target_probabilities() -> st.SearchStrategy[float]:
    """Probabilities of one token: 0, 1, the adjacent floats, and every magnitude from 1e-300 up.

    Returns
    -------
    hypothesis strategy of float

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
        st.floats(-300.0, 0.0).map(power_of_ten),
        st.floats(-15.9, 0.0).map(lambda exponent: 1 - 10.0**exponent),
    )


class RaggedBatch(NamedTuple):
    """Rows of a batch with k_0, k_1, ... drafted tokens: one array of each per row.

    Each token has positive probability under its draft distribution.

    Attributes
    ----------
    tokens : list of int64 array, shape (k_i,)
    draft : list of float64 array, shape (k_i, V)
    target : list of float64 array, shape (k_i + 1, V)

    Examples
    --------
    >>> one_token = RaggedBatch([np.array([0])], [np.array([[1.0, 0.0]])], [np.full((2, 2), 0.5)])
    >>> [row.shape for row in one_token.target]
    [(2, 2)]
    """

    tokens: list[np.ndarray]
    draft: list[np.ndarray]
    target: list[np.ndarray]


def distributions(*, min_size: int = 1, max_size: int = 8) -> st.SearchStrategy[np.ndarray]:
    """Distributions: smooth, with exact zeros and ties, one-hot, or spread over 300 decades.

    Parameters
    ----------
    min_size, max_size : int
        Smallest and largest size of the vocabulary.

    Returns
    -------
    hypothesis strategy of float64 array, shape (V,)

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(distributions(min_size=2, max_size=5))
    ... def is_a_distribution(law):
    ...     assert 2 <= law.size <= 5 and law.min() >= 0 and abs(law.sum() - 1) < 1e-15 * law.size
    >>> is_a_distribution()
    """
    return st.integers(min_size, max_size).flatmap(distributions_of_size)


def pairs(*, min_size: int = 1, max_size: int = 8) -> st.SearchStrategy[Pair]:
    """Pairs (draft, target): unrelated, equal, an ulp apart, permuted, disjoint, one-hot.

    Parameters
    ----------
    min_size, max_size : int
        Smallest and largest size of the vocabulary.

    Returns
    -------
    hypothesis strategy of Pair

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(pairs(max_size=4))
    ... def share_a_vocabulary(pair):
    ...     assert pair.draft.shape == pair.target.shape
    >>> share_a_vocabulary()
    """
    return st.integers(min_size, max_size).flatmap(pairs_of_size)


def pairs_with_acceptance(
    rate: float, *, min_size: int = 2, max_size: int = 8
) -> st.SearchStrategy[Pair]:
    """Pairs with sum min(p, q) = `rate`, the acceptance rate of plain speculative sampling.

    p = rate c + (1 - rate) a and q = rate c + (1 - rate) b, a and b of disjoint supports; the sum
    is exact up to the rounding of its terms.

    Parameters
    ----------
    rate : float
        In [0, 1].
    min_size, max_size : int
        Smallest and largest size of the vocabulary; at least 2.

    Returns
    -------
    hypothesis strategy of Pair

    Raises
    ------
    ValueError
        If `rate` is outside [0, 1] or `min_size` < 2.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(pairs_with_acceptance(0.7))
    ... def accept_so_often(pair):
    ...     assert abs(np.minimum(pair.draft, pair.target).sum() - 0.7) < 1e-14
    >>> accept_so_often()
    """
    if not 0 <= rate <= 1 or min_size < 2:
        raise ValueError(f"got rate={rate!r}, min_size={min_size!r}")

    def join(parts: Any) -> Pair:
        common, (only_draft, only_target), order = parts
        order = list(order)
        draft = rate * common + (1 - rate) * only_draft[order]
        return Pair(draft, rate * common + (1 - rate) * only_target[order])

    def of_size(size: int) -> st.SearchStrategy[Pair]:
        apart = st.integers(1, size - 1).flatmap(lambda cut: disjoint(cut, size - cut))
        return st.tuples(distributions_of_size(size), apart, st.permutations(range(size))).map(join)

    return st.integers(min_size, max_size).flatmap(of_size)


def logits(
    *, dtype: str = "bfloat16", min_size: int = 1, max_size: int = 8, masked: bool = True
) -> st.SearchStrategy[np.ndarray]:
    """Logits as float32, with the values of a coarser type: ties, large steps, -inf.

    Parameters
    ----------
    dtype : {"bfloat16", "float16", "float32"}
    min_size, max_size : int
        Smallest and largest size of the vocabulary.
    masked : bool
        Whether some, never all, may be -inf.

    Returns
    -------
    hypothesis strategy of float32 array, shape (V,)

    Raises
    ------
    ValueError
        If `dtype` is none of these.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(logits(dtype="float16"))
    ... def are_halves(row):
    ...     assert (row == row.astype(np.float16)).all() and np.isfinite(row).any()
    >>> are_halves()
    """
    if dtype not in ("bfloat16", "float16", "float32"):
        raise ValueError(f"dtype must be bfloat16, float16 or float32, got {dtype!r}")
    values = st.one_of(
        st.floats(-30.0, 30.0, width=32),
        st.integers(-3, 3).map(float),
        st.sampled_from([0.0, -0.0, 6e4, -6e4, 2.0**-14, 88.0, -104.0]),
    )
    entry = st.one_of(values, st.just(-np.inf)) if masked else values
    rows = st.lists(entry, min_size=min_size, max_size=max_size)
    return rows.filter(lambda row: max(row) > -np.inf).map(lambda row: _on_grid(row, dtype))


def ragged_batches(
    *, max_rows: int = 4, max_drafts: int = 4, min_size: int = 1, max_size: int = 6
) -> st.SearchStrategy[RaggedBatch]:
    """Batches whose rows have different numbers of drafted tokens, including none.

    Parameters
    ----------
    max_rows, max_drafts : int
        Largest numbers of rows per batch and of drafted tokens per row.
    min_size, max_size : int
        Smallest and largest size of the vocabulary.

    Returns
    -------
    hypothesis strategy of RaggedBatch

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(ragged_batches())
    ... def have_one_more_target(batch):
    ...     for tokens, draft, target in zip(*batch):
    ...         assert len(tokens) == len(draft) == len(target) - 1
    ...         assert all(row[token] > 0 for row, token in zip(draft, tokens))
    >>> have_one_more_target()
    """

    @st.composite
    def batches(draw: Any) -> RaggedBatch:
        size = draw(st.integers(min_size, max_size))
        lengths = draw(st.lists(st.integers(0, max_drafts), min_size=1, max_size=max_rows))
        batch = RaggedBatch([], [], [])
        for length in lengths:
            drafted = [draw(pairs_of_size(size)) for _ in range(length)]
            last = draw(distributions_of_size(size))
            tokens = [draw(st.sampled_from(np.flatnonzero(p).tolist())) for p, _ in drafted]
            batch.tokens.append(np.array(tokens, dtype=np.int64))
            batch.draft.append(np.array([p for p, _ in drafted]).reshape(length, size))
            batch.target.append(np.array([*(q for _, q in drafted), last]))
        return batch

    return batches()


def _on_grid(row: list[float], dtype: str) -> np.ndarray:
    exact = np.array(row, dtype=np.float32)
    if dtype == "float16":
        return exact.astype(np.float16).astype(np.float32)
    if dtype == "float32":
        return exact
    bits = exact.view(np.uint32)
    even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (even & np.uint32(0xFFFF0000)).view(np.float32)
