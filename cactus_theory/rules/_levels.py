"""Levels a and b of clip(p, b q, a q) for many positions at once, over torch.

Tokens are sorted by t = p/q once, and sums up to every token answer what a level costs. Nothing is
decided on the host. `_clip` solves one position over numpy without sorting all of it.
"""

from __future__ import annotations

from typing import Any

from cactus_theory.divergences import Divergence

_STEPS = 64  # halve the range of log a below an ulp
_WIDEST = 709.0  # log of the largest level: only target probabilities below 1e-300 need more


class SortedRatios:
    """Sums over the tokens below and above any level, at positions of shape (...).

    Parameters
    ----------
    draft, target : float64 tensor, shape (..., V)
        Distributions p and q.
    xp : module
        torch, or a namespace with its functions.
    """

    def __init__(self, draft: Any, target: Any, *, xp: Any) -> None:
        inside = target > 0
        ratio = xp.where(inside, draft / xp.where(inside, target, 1.0), float("inf"))
        order = xp.argsort(ratio, -1)
        self.xp = xp
        self.ratio, self.draft, self.target = (
            xp.take_along_dim(x, order, -1) for x in (ratio, draft, target)
        )
        self.over = self.ratio > 1
        self.low_draft, self.low_target = self._before(self.draft), self._before(self.target)
        # What the tokens before each one would receive if the level were its ratio.
        below = xp.where(self.over, 0.0, self.ratio) * self.low_target[..., :-1]
        lacking = xp.where(self.over, float("inf"), below - self.low_draft[..., :-1])
        self.lacking = lacking.contiguous()

    def lower(self, mass: Any) -> tuple[Any, Any]:
        """b <= 1 with sum [b q - p]_+ = mass, and how many tokens lie below it; shape (..., 1)."""
        below = self.xp.searchsorted(self.lacking, mass, right=True)
        share = _at(self.low_target, below, self.xp)
        level = (mass + _at(self.low_draft, below, self.xp)) / self.xp.where(share > 0, share, 1.0)
        return self.xp.where(share > 0, level, 1.0).clip(max=1.0), below

    def clip(self, divergence: Divergence, epsilon: float) -> tuple[Any, Any]:
        """The largest a, and its b, for which clip(p, b q, a q) costs at most `epsilon`.

        a is inf and b is 0 where the draft itself costs no more. Shape (..., 1).
        """
        xp = self.xp
        high_draft, high_target = self._after(self.draft), self._after(self.target)
        term = divergence._term(self.draft, self.target, self.draft - self.target, xp=xp)
        over_terms = self._before(xp.where(self.over, term, 0.0))
        under_terms = self._after(xp.where(self.over, 0.0, term))

        def clipped(level: Any, mass: Any) -> Any:
            return divergence._term(level * mass, mass, (level - 1) * mass, xp=xp)

        def levels(log_level: Any) -> tuple[Any, Any, Any]:
            a = xp.exp(log_level)
            above = xp.searchsorted(self.ratio, a, right=True)
            mass = _at(high_target, above, xp)
            b, below = self.lower((_at(high_draft, above, xp) - a * mass).clip(min=0.0))
            cost = clipped(a, mass) + _at(over_terms, above, xp)
            cost = cost + clipped(b, _at(self.low_target, below, xp))
            return a, b, cost + _at(under_terms, below, xp)

        low = xp.zeros_like(self.draft[..., :1])
        high = low + _WIDEST
        for _ in range(_STEPS):
            middle = (low + high) / 2
            kept = levels(middle)[2] <= epsilon
            low, high = xp.where(kept, middle, low), xp.where(kept, high, middle)
        a, b, _ = levels(low)
        free = term.sum(-1, keepdims=True) <= epsilon
        return xp.where(free, float("inf"), a), xp.where(free, 0.0, b)

    def _before(self, amount: Any) -> Any:
        """Sums of the tokens before each token, and of all."""
        return self.xp.cat([self.xp.zeros_like(amount[..., :1]), amount.cumsum(-1)], -1)

    def _after(self, amount: Any) -> Any:
        """Sums of the tokens from each token on, and 0."""
        return self._before(amount.flip(-1)).flip(-1)


def _at(sums: Any, index: Any, xp: Any) -> Any:
    return xp.take_along_dim(sums, index, -1)
