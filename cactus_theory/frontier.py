r"""The best that any scheme can do on average over many positions, and how far a rule is from it.

Knows pairs of distributions. For one position the clamp accepts most within its budget. A mean over
positions has one budget for all of them, and the best way to spend it is to pay the same price
everywhere: at each position emit clip(r, b q, a q) with one log(a/b) for all positions (claim
equal-price). Here r is the draft's distribution, or that of which one draft is worth k
(`equivalent_draft`). A clamp with the same epsilon everywhere is not the best on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from cactus_theory import _validate
from cactus_theory.divergences import kl, total_variation
from cactus_theory.multidraft import equivalent_draft

_HALVINGS = 64  # of the range of log b: below its rounding
_DEAREST = 700.0  # log(a/b) beyond which exp overflows
_PRECISION = 1e-12  # of a price


@dataclass(frozen=True)
class Figures:
    """Means over positions.

    Attributes
    ----------
    acceptance_rate, total_variation : float
    kl : float
        KL(out || q) in nats.

    Examples
    --------
    >>> Frontier(draft=[0.75, 0.25], target=[0.5, 0.5]).at_price(0.0)
    Figures(acceptance_rate=0.75, total_variation=0.0, kl=0.0)
    """

    acceptance_rate: float
    total_variation: float
    kl: float


class Frontier:
    """The largest mean acceptance for a mean KL of what is emitted, over a set of positions.

    Parameters
    ----------
    draft, target : array_like, shape (..., V)
        Distributions p and q; means are taken over all positions.
    num_drafts : int
        k independent drafts at each position.

    Raises
    ------
    TypeError, ValueError
        If an argument is not a distribution, the shapes do not broadcast, or k is not an integer
        >= 1.

    Examples
    --------
    >>> best = Frontier(draft=[[0.75, 0.25], [0.5, 0.5]], target=[0.5, 0.5])
    >>> round(best.at_kl(0.01).acceptance_rate, 4)
    0.9248
    """

    def __init__(self, *, draft: Any, target: Any, num_drafts: int = 1) -> None:
        r = equivalent_draft(draft=draft, target=target, num_drafts=num_drafts)
        self.draft = r.reshape(-1, r.shape[-1])
        wide = np.broadcast_to(np.asarray(target, dtype=np.float64), r.shape)
        self.target = wide.reshape(self.draft.shape)
        self._sorted = [_Sorted(*pair) for pair in zip(self.draft, self.target, strict=True)]

    def emitted(self, price: float) -> np.ndarray:
        """The distributions emitted where log(a/b) = `price` >= 0, shape (positions, V)."""
        _validate.number("price", price)
        if not price >= 0:
            raise ValueError(f"price must be >= 0, got {price!r}")
        width = math.exp(min(price, _DEAREST))
        b = np.array([one.lower(width) for one in self._sorted])[:, None]
        law = np.clip(self.draft, b * self.target, b * width * self.target)
        return law / law.sum(axis=-1, keepdims=True)

    def at_price(self, price: float) -> Figures:
        """Figures where log(a/b) = `price` >= 0: one point of the frontier, plain sampling at 0."""
        law = self.emitted(price)
        return figures(np.minimum(self.draft, law), law, self.target)

    def at_kl(self, budget: float) -> Figures:
        """The largest acceptance for a mean KL of at most `budget` nats, to a relative 1e-9."""
        budget = _validate.budget("budget", budget)
        return self._last(lambda found: found.kl - budget)

    def at_acceptance(self, rate: float) -> Figures:
        """The least mean KL for a mean acceptance of `rate`, to 1e-9 and from below.

        Where the drafts cannot accept so much, all that they can; where the target's distribution
        accepts more, that.
        """
        rate = _validate.fraction("rate", rate, "[0, 1]")
        return self._last(lambda found: found.acceptance_rate - rate)

    def _last(self, excess: Callable[[Figures], float]) -> Figures:
        """The dearest point without an excess, which grows with the price."""
        if excess(free := self.at_price(0.0)) >= 0:
            return free
        high = 1.0
        while excess(found := self.at_price(high)) <= 0:
            if high >= _DEAREST:
                return found
            high = min(4 * high, _DEAREST)
        price: Any = brentq(lambda x: excess(self.at_price(x)), 0.0, high, xtol=1e-13)
        while excess(found := self.at_price(price)) > 0:
            price *= 1 - _PRECISION
        return found


class _Sorted:
    """One position's sums over the tokens below and above any level of r/q."""

    def __init__(self, r: np.ndarray, q: np.ndarray) -> None:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(q > 0, r / q, np.inf)
        order = np.argsort(ratio)
        self.ratio = ratio[order]
        self.below, self.above = (
            [np.append(0.0, np.cumsum(x[order][::step])) for x in (r, q)] for step in (1, -1)
        )

    def lower(self, width: float) -> float:
        """The b for which the mass gained equals that lost, where a is `width` times b."""
        low, high = 1 / width, 1.0
        for _ in range(_HALVINGS):
            b = math.sqrt(low) * math.sqrt(high)
            under = int(self.ratio.searchsorted(b))
            over = self.ratio.size - int(self.ratio.searchsorted(b * width))
            gained = b * self.below[1][under] - self.below[0][under]
            lost = self.above[0][over] - b * width * self.above[1][over]
            low, high = (low, b) if gained >= lost else (b, high)
        return high


def figures(kept: np.ndarray, law: np.ndarray, target: np.ndarray) -> Figures:
    """Means of accepted masses `kept` and emitted distributions `law`, of shape (..., V)."""
    found = (kept.sum(-1), total_variation(law, target), kl(law, target))
    return Figures(*(float(np.mean(figure)) for figure in found))
