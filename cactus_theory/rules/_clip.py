"""The largest level a for which clip(p, b q, a q) keeps a budget of divergence from q.

Knows nothing of rules. The tokens are counted by cells of t = p/q in one pass; only the tokens of
the few cells that must contain the two levels are sorted, and the levels are solved for exactly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import brentq

from cactus_theory._chunks import _CHUNK
from cactus_theory.divergences import Divergence

_MARGIN = 1e-15  # of the logarithm of a level
SCALE = 2.0**-64  # of levels and of t, which reach 2**1074: a probability over the smallest float
_LARGEST = 2.0**1023  # scaled level
# The edges of cells are 0, sixteen to each power of two from 2**-32 to 2**32 (scaled), and the
# largest level. The shift leaves a float64's exponent and four more bits, which number the middle
# ones.
_SHIFT = 48
_LOWEST, _HIGHEST = (
    int(np.float64(x * SCALE).view(np.int64)) >> _SHIFT for x in (2.0**-32, 2.0**32)
)
_MIDDLE = (np.arange(_LOWEST, _HIGHEST + 1) << _SHIFT).view(np.float64)
_EDGES = np.concatenate([[0.0], _MIDDLE, [_LARGEST]])
_ONE = _EDGES.size // 2  # where the edge is 1


def levels(
    divergence: Divergence, epsilon: float, draft: np.ndarray, target: np.ndarray
) -> tuple[float, float]:
    """The largest a, and its b, for which clip(p, b q, a q) costs at most `epsilon`.

    b <= 1 <= a are such that the mass gained, sum [b q - p]_+, equals the mass lost, sum [p - a
    q]_+. a is rounded down. Both are given times `SCALE`: where q is the smallest float, a itself
    overflows.

    Parameters
    ----------
    divergence : Divergence
    epsilon : float
        Budget in its units.
    draft, target : float64 array, shape (V,)
        Distributions p and q.

    Returns
    -------
    tuple of two floats
        `SCALE` a and `SCALE` b; inf and 0 if the draft itself costs no more than `epsilon`.

    Examples
    --------
    >>> from cactus_theory import TotalVariation
    >>> p, q = np.array([0.75, 0.25]), np.array([0.5, 0.5])
    >>> [round(level / SCALE, 12) for level in levels(TotalVariation(), 0.125, p, q)]
    [1.25, 0.75]
    """
    apart = np.flatnonzero(draft != target)
    if apart.size < draft.size / 2:  # as after top-k or top-p: the others do not matter
        draft, target = draft[apart], target[apart]
    cell, counts = _by_cell(divergence, draft, target)
    if counts[1].sum() <= epsilon:
        return math.inf, 0.0
    over = _Side(divergence, -_EDGES[_ONE:][::-1], counts[:, :_ONE:-1])
    under = _Side(divergence, _EDGES[: _ONE + 1], counts[:, : _ONE + 1])
    (first, last), (lowest, highest) = _bracket(over, under, epsilon)
    above, below = _EDGES.size - last, _EDGES.size - first  # cells of t fall as keys rise
    inside = np.flatnonzero((cell >= above) & (cell < below))
    over = over.refined(first, last, draft[inside], target[inside])
    inside = np.flatnonzero((cell > lowest) & (cell <= highest))
    under = under.refined(lowest, highest, draft[inside], target[inside])
    return _solve(over, under, epsilon)


def times(level: Any, mass: Any) -> Any:
    """The unscaled level times q, even where the level or the product with q is not a float."""
    with np.errstate(over="ignore"):
        low = level < 1
        return np.where(low, level / SCALE, level) * mass / np.where(low, 1.0, SCALE)


def _by_cell(
    divergence: Divergence, draft: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The cell of each token; and mass, divergence and scaled |p - e q| of the tokens of each cell.

    Cell i has scaled t from edge i - 1 to edge i, and e is the one nearer 1. The first cell is
    empty; the last has the tokens that no level reaches, and those with p = q = 0.
    """
    cell = np.empty(draft.size, dtype=np.int16)
    counts = np.zeros((3, _EDGES.size + 1))
    for start in range(0, draft.size, _CHUNK):
        piece = slice(start, start + _CHUNK)
        p, q = draft[piece], target[piece]
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            t = p * SCALE / q
        at = np.clip((t.view(np.int64) >> _SHIFT) - (_LOWEST - 2), 1, _EDGES.size - 1)
        at[~(t < _LARGEST)] = _EDGES.size
        cell[piece] = at
        edge = _EDGES[at - (at > _ONE)]
        amounts = q, divergence._term(p, q, p - q), np.abs(p * SCALE - edge * q)
        for total, amount in zip(counts, amounts, strict=True):
            total += np.bincount(at, weights=amount, minlength=total.size)
    return cell, counts


def _bracket(over: _Side, under: _Side, epsilon: float) -> tuple[tuple[int, int], tuple[int, int]]:
    """Indices of the keys between which the levels lie, over and under.

    Where a is a key, b lies between two; the divergence is that of some b between these.
    """
    after = under.last(over.heights)
    before = np.minimum(after + 1, _ONE)
    spent, rest = over.cost(over.key), under.cost(under.key)
    exceeding = np.flatnonzero(spent + rest[before] > epsilon)
    first = min(exceeding[-1], _ONE - 1) if exceeding.size else 0
    within = np.flatnonzero(spent[first + 1 :] + rest[after[first + 1 :]] <= epsilon)
    last = first + 1 + within[0] if within.size else _ONE
    return (first, last), (min(after[first], _ONE - 1), before[last])


def _solve(over: _Side, under: _Side, epsilon: float) -> tuple[float, float]:
    """The largest a within the budget, rounded down, and its b."""
    lowest, highest = -float(over.key[-1]), -float(over.key[0])

    def pair(log_level: float) -> tuple[float, float]:
        a = min(max(math.exp(log_level), lowest), highest)  # the logarithm is rounded
        return a, under.level(over.height(-a))

    def excess(log_level: float) -> float:
        a, b = pair(log_level)
        return float(over.cost(-a) + under.cost(b)) - epsilon

    low, high = math.log(lowest), math.log(highest)
    if excess(high) <= 0:
        return pair(high)
    if excess(low) >= 0:
        return pair(low)
    # Bounded, because it may be inf or so steep that secants make no progress.
    level: Any = brentq(lambda x: min(excess(x), epsilon), low, high, xtol=_MARGIN)
    step = _MARGIN
    while excess(level) > 0 and level > low:
        level, step = max(level - step, low), 2 * step
    return pair(level)


class _Side:
    """Groups of tokens on one side of t = 1, by rising `key` = sign * `SCALE` t.

    A level is such a key; the tokens up to it are those that are clipped to it. They lose, or
    receive, Z(level) = sum of q [level - key]_+. A group is all tokens from one key to the next;
    levels between keys are meant only where it consists of tokens at the latter.

    Parameters
    ----------
    divergence : Divergence
    key : float64 array, shape (n,)
    groups : float64 array, shape (3, n)
        Mass, divergence, and Z at their key, of the tokens that each key is the upper end of; the
        first are all up to there.
    kept : float
        Divergence of the tokens beyond the last key.
    """

    def __init__(
        self, divergence: Divergence, key: np.ndarray, groups: np.ndarray, *, kept: float = 0.0
    ) -> None:
        mass, terms, height = groups
        self.divergence, self.key = divergence, key
        self.mass = np.cumsum(mass)
        self.heights = np.cumsum(height + np.append(0.0, self.mass[:-1] * np.diff(key)))
        self.kept = np.cumsum(np.append(kept, terms[:0:-1]))[::-1]

    def refined(self, first: int, last: int, p: np.ndarray, q: np.ndarray) -> _Side:
        """The same side from key `first` to key `last`, by the tokens in between."""
        key = np.copysign(p * SCALE / q, self.key[first])
        order = np.argsort(key)
        p, q = p[order], q[order]
        groups = np.zeros((3, key.size + 2))
        groups[:, 0] = self.mass[first], 0.0, self.heights[first]
        groups[:2, 1:-1] = q, self.divergence._term(p, q, p - q)
        key = np.concatenate([self.key[[first]], key[order], self.key[[last]]])
        return _Side(self.divergence, key, groups, kept=self.kept[last])

    def height(self, level: float) -> float:
        """Z(level)."""
        last = np.searchsorted(self.key, level, side="right") - 1
        return float(self.heights[last] + self.mass[last] * (level - self.key[last]))

    def last(self, height: Any) -> Any:
        """Index of the last key where Z is at most `height`."""
        return np.searchsorted(self.heights, height, side="right") - 1

    def level(self, height: float) -> float:
        """Where Z is `height`; `SCALE` at most."""
        last = self.last(height)
        if not self.mass[last]:
            return SCALE
        step = (height - float(self.heights[last])) / float(self.mass[last])
        return min(float(self.key[last]) + step, SCALE)

    def cost(self, level: Any) -> Any:
        """Divergence of all tokens, those up to `level` clipped to it."""
        last = np.searchsorted(self.key, level, side="right") - 1
        mass = self.mass[last]
        clipped = times(np.abs(level), mass)
        return self.divergence._term(clipped, mass, clipped - mass) + self.kept[last]
