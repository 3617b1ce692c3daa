"""The alpha family of Cressie and Read, which joins KL, reverse KL, Hellinger and chi-square."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.divergences._base import Divergence
from cactus_theory.divergences._closed import ChiSquare, SquaredHellinger
from cactus_theory.divergences._logarithmic import KL, ReverseKL
from cactus_theory.divergences._optimum import Optimum

_MEMBERS: dict[float, tuple[Divergence, float]] = {
    0.0: (ReverseKL(), 1.0),
    0.5: (SquaredHellinger(), 0.25),
    1.0: (KL(), 1.0),
    2.0: (ChiSquare(), 2.0),
}
_SERIES = tuple(1 / math.factorial(k + 2) for k in range(18))


@dataclass(frozen=True)
class Alpha(Divergence):
    r"""Alpha divergence [sum p^alpha q^(1-alpha) - 1] / (alpha (alpha-1)), Cressie-Read's scaling.

    f(t) = (t^alpha - 1) / (alpha (alpha-1)), f''(1) = 1 for every alpha, and Cressie and Read's
    lambda is alpha - 1. Exchanging p and q exchanges alpha and 1 - alpha. In nats, as its limits:

    * alpha = 1: `KL`, the limit;
    * alpha = 0: `ReverseKL`, the limit;
    * alpha = 1/2: 4 `SquaredHellinger`;
    * alpha = 2: `ChiSquare` / 2;
    * alpha = -1: Neyman's chi-square / 2, sum (p-q)^2 / p / 2.

    Renyi's divergence log(1 + alpha (alpha-1) D) / (alpha-1) is increasing in it, so a Renyi budget
    r is the budget expm1((alpha-1) r) / (alpha (alpha-1)) here. Finite at g = 1 for alpha > 0 (a
    large enough budget gives g = 1), inf there for alpha <= 0. At the first four alphas the optimum
    is that of the named divergence; close to them it is the root.

    Parameters
    ----------
    alpha : float
        Order, finite.

    Raises
    ------
    TypeError, ValueError
        If alpha is not a finite number.

    Examples
    --------
    >>> float(Alpha(2).binary(0.5, 0.25)), float(Alpha(1).binary(1.0, 0.5)) == float(np.log(2))
    (0.16666666666666666, True)
    """

    alpha: float

    def __post_init__(self) -> None:
        alpha = _validate.number("alpha", self.alpha)
        if not math.isfinite(alpha):
            raise ValueError(f"alpha must be finite, got {alpha!r}")
        object.__setattr__(self, "alpha", float(alpha))

    @property
    def _slack(self) -> float:
        return (12 + 4 * abs(self.alpha)) * 2.0**-52

    @property
    def torch_ready(self) -> bool:
        """Whether it is a multiple of a divergence that is torch-ready."""
        member, _ = self._member()
        return member is not None and member.torch_ready

    def _term(self, p: Any, q: Any, gain: Any, *, xp: Any = np) -> Any:
        # q f(p/q) for alpha is p f(q/p) for 1 - alpha. Up to 1/2 nothing cancels.
        if self.alpha > 0.5:
            return _term(q, p, -gain, 1 - self.alpha, xp=xp)
        return _term(p, q, gain, self.alpha, xp=xp)

    def optimum(self, target_prob: Any, delta: Any) -> Optimum:
        """`Divergence.optimum`: that of the named divergence where there is one, else the root."""
        member, scale = self._member()
        if member is None:
            return self.root(target_prob, delta)
        delta = _validate.budgets("delta", delta)
        scaled = delta * scale
        scaled = np.where(scaled / scale > delta, np.nextafter(scaled, 0.0), scaled)  # subnormal
        return member.optimum(target_prob, np.minimum(scaled, _validate.LARGEST_BUDGET))

    def solve(self, target_prob: Any, delta: Any, *, xp: Any = np) -> tuple[Any, Any, Any]:
        """g, 1 - g and (1 - g)/(1 - q); over ``xp`` where the named divergence allows it."""
        member, scale = self._member()
        if member is None:
            return super().solve(target_prob, delta, xp=xp)
        return member.solve(target_prob, delta * scale, xp=xp)

    def _member(self) -> tuple[Divergence | None, float]:
        """The named divergence this one is a multiple of, and its budget for a budget of 1."""
        return _MEMBERS.get(self.alpha, (None, 1.0))


def _term(p: Any, q: Any, gain: Any, alpha: float, *, xp: Any) -> Any:
    """q [s - (r^alpha - 1)/alpha] / (1-alpha) with r = 1 + s = p/q, for alpha <= 1/2.

    Near r = 1, with L = log r and G(x) = (e^x - 1 - x)/x^2, it is q L^2 [G(L) - alpha G(alpha L)]
    / (1-alpha), where the bracket keeps at least a fifth of G(L).
    """
    inside = (p > 0) & (q > 0)
    a, b, x = xp.where(inside, p, 1.0), xp.where(inside, q, 1.0), xp.where(inside, gain, 0.0)
    with np.errstate(over="ignore", divide="ignore"):
        near = xp.abs(x) < b / 2
        ratio = a / b
        usual = (ratio > 0) & (ratio < np.inf)
        far = xp.where(usual, xp.log(xp.where(usual, ratio, 1.0)), xp.log(a) - xp.log(b))
        log = xp.where(near, xp.log1p(xp.where(near, x, 0.0) / b), far)
        close = xp.abs(log) < 1
        small = xp.where(close, log, 0.0)
        bracket = _excess(small, xp=xp) - alpha * _excess(alpha * small, xp=xp)
        cancelling = b * (small * small * bracket)
        power = _power_excess(b, ratio, log, alpha, xp=xp)
        direct = xp.where(inside, xp.where(close, cancelling, x - power), 0.0)
    edge = xp.where(p > 0, gain, q * (1 / alpha - 1) if alpha > 0 else np.inf)
    return xp.where(inside, direct, xp.where(gain == 0, 0.0, edge)) / (1 - alpha)


def _power_excess(q: Any, ratio: Any, log: Any, alpha: float, *, xp: Any) -> Any:
    """q (r^alpha - 1)/alpha; q log(r) for alpha = 0."""
    if alpha == 0:
        return q * log
    gentle = xp.abs(alpha * log) < 1
    share = q / alpha
    flat = share * xp.expm1(xp.where(gentle, alpha * log, 0.0))
    usual = (ratio > 0) & (ratio < np.inf) & ~gentle
    power = xp.where(usual, ratio, 1.0) ** (alpha / 2)  # r^alpha may overflow, q r^alpha not
    root = xp.where(usual, power, xp.exp(alpha / 2 * log))
    return xp.where(gentle, flat, share * root * root - share)


def _excess(x: Any, *, xp: Any) -> Any:
    """(e^x - 1 - x) / x^2, relative error a few ulp."""
    close = xp.abs(x) < 1
    near, far = xp.where(close, x, 0.0), xp.where(close, 1.0, x)
    series = 0.0
    for coefficient in reversed(_SERIES):
        series = series * near + coefficient
    return xp.where(close, series, (xp.expm1(far) - far) / (far * far))
