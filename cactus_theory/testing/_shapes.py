"""Distributions and pairs of a given size, the building blocks of the public strategies."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

SMALLEST = 1e-300


class Pair(NamedTuple):
    """A draft and a target distribution over one vocabulary.

    Attributes
    ----------
    draft, target : float64 array, shape (V,)

    Examples
    --------
    >>> draft, target = Pair(np.array([0.75, 0.25]), np.array([0.5, 0.5]))
    >>> target
    array([0.5, 0.5])
    """

    draft: np.ndarray
    target: np.ndarray


def power_of_ten(exponent: float) -> float:
    return max(10.0**exponent, SMALLEST)


@lru_cache(maxsize=64)
def distributions_of_size(size: int) -> st.SearchStrategy[np.ndarray]:
    smooth = st.floats(0.01, 1.0)
    tied = st.integers(0, 3).map(float)
    scattered = st.one_of(st.just(0.0), st.just(1.0), st.floats(-300.0, 0.0).map(power_of_ten))
    weights = st.one_of(
        *(st.lists(w, min_size=size, max_size=size) for w in (smooth, tied, scattered))
    )
    return st.one_of(weights.filter(any).map(normalised), one_hots(size))


def one_hots(size: int) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, size - 1).map(lambda token: np.eye(size)[token])


def normalised(weights: Any) -> np.ndarray:
    array = np.asarray(weights, dtype=np.float64)
    return array / array.sum()


@lru_cache(maxsize=64)
def pairs_of_size(size: int) -> st.SearchStrategy[Pair]:
    law = distributions_of_size(size)
    weights = st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size)
    # A concentrated draft against an even target: several tokens rejected, several recovered.
    peaked = weights.map(lambda w: normalised(np.asarray(w) ** 4))
    even = weights.map(lambda w: normalised(np.sqrt(w)))
    kinds = [
        st.builds(Pair, peaked, even),
        st.builds(Pair, law, law),
        law.map(lambda p: Pair(p, p.copy())),
        st.builds(_an_ulp_apart, law, st.lists(st.integers(-2, 2), min_size=size, max_size=size)),
        st.builds(_permuted, law, st.permutations(range(size))),
        st.builds(Pair, one_hots(size), law),
        st.builds(Pair, law, one_hots(size)),
    ]
    if size >= 2:
        kinds.append(st.integers(1, size - 1).flatmap(lambda cut: disjoint(cut, size - cut)))
        kinds.append(st.integers(1, size - 1).flatmap(lambda cut: _concentrated(cut, size)))
    return st.one_of(*kinds)


def _an_ulp_apart(p: np.ndarray, steps: list[int]) -> Pair:
    moved = p + np.asarray(steps) * np.spacing(p)
    return Pair(p, np.clip(np.where(p > 0, moved, 0.0), 0.0, 1.0))


def _permuted(p: np.ndarray, order: list[int]) -> Pair:
    return Pair(p, p[list(order)])


def disjoint(first: int, second: int) -> st.SearchStrategy[Pair]:
    def join(a: np.ndarray, b: np.ndarray) -> Pair:
        return Pair(np.append(a, np.zeros(second)), np.append(np.zeros(first), b))

    return st.builds(join, distributions_of_size(first), distributions_of_size(second))


def _concentrated(cut: int, size: int) -> st.SearchStrategy[Pair]:
    """The draft is the target restricted to some tokens, so that all its ratios p / q tie."""

    def restrict(q: np.ndarray) -> Pair:
        head = q[:cut].sum()
        if head <= 0:
            return Pair(q.copy(), q)
        return Pair(np.append(q[:cut] / head, np.zeros(size - cut)), q)

    return distributions_of_size(size).map(restrict)
