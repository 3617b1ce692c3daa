"""Divergences whose optimum is a formula: chi-square, total variation, squared Hellinger.

f is the generator, D(p || q) = sum q f(p/q), written without the linear term that the code adds to
make f'(1) = 0. None of the three has a unit.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory.divergences._base import Divergence, arguments
from cactus_theory.divergences._compensated import compensated_sum, two_product
from cactus_theory.divergences._optimum import Optimum, Status, ratio_and_gap

_ULPS = 8  # by which a closed form is rounded to the safe side; it takes only a few roundings


class ClosedForm(Divergence):
    """A divergence whose optimum is a formula in + - * / and sqrt, over any namespace."""

    @property
    def torch_ready(self) -> bool:
        """True."""
        return True

    @abstractmethod
    def _closed(self, q: Any, room: Any, delta: Any, *, xp: Any) -> tuple[Any, Any, Any]:
        """g, 1 - g and (1 - g)/(1 - q) for q in (0, 1) and delta > 0; 1 - g <= 0 where g = 1."""

    def solve(self, target_prob: Any, delta: Any, *, xp: Any = np) -> tuple[Any, Any, Any]:
        """g, 1 - g and (1 - g)/(1 - q) by the closed form, over a namespace ``xp``, unrounded."""
        still = (target_prob <= 0) | (target_prob >= 1) | (delta <= 0)
        q = xp.where(still, 0.5, target_prob)
        room = 1 - q
        value, complement, ratio = self._closed(q, room, delta + 0 * q, xp=xp)
        sure = complement <= 0
        value = xp.where(value > q, value, q)
        value = xp.where(still, target_prob, xp.where(sure, 1.0, xp.clip(value, 0.0, 1.0)))
        complement = xp.where(complement < room, complement, room)
        complement = xp.where(still, 1 - target_prob, xp.where(sure, 0.0, complement))
        ratio = xp.where(still, 1.0, xp.where(sure, 0.0, xp.clip(ratio, 0.0, 1.0)))
        return value[()], complement[()], ratio[()]

    def optimum(self, target_prob: Any, delta: Any) -> Optimum:
        """`Divergence.optimum` by the closed form; 1 - g has full relative precision as well."""
        q, delta = arguments(target_prob, delta)
        value, complement, _ = self.solve(q, delta)
        raised = (q > 0) & (q < 1) & (delta > 0) & (complement > 0)
        room, step = 1 - q, _ULPS * np.spacing(value)
        upper = np.where(raised, np.minimum(value + step, 1.0), value)
        value = np.where(raised, np.maximum(value - step, q), value)
        more = complement + _ULPS * np.spacing(complement)
        complement = np.where(raised, np.minimum(more, room), complement)
        ratio, gap = ratio_and_gap(value, complement, q, delta, self.curvature)
        status = np.where(raised, Status.CLOSED_FORM, Status.LIMIT).astype(np.int8)
        results = (value, complement, ratio, upper, np.zeros(q.shape, dtype=np.int16), status)
        value, complement, ratio, upper, iterations, status = (result[()] for result in results)
        gap = None if gap is None else gap[()]
        return Optimum(value, complement, ratio, (value, upper), gap, iterations, status)


@dataclass(frozen=True)
class ChiSquare(ClosedForm):
    """Pearson's chi-square, sum (p-q)^2 / q: f(t) = (t-1)^2, no factor 1/2, no unit.

    The optimum is min(q + sqrt(delta q (1-q)), 1): Cactus's closed form is the one of budget
    2 delta.

    Examples
    --------
    >>> round(float(ChiSquare().optimum(0.2, 1.0).value), 6)
    0.6
    """

    curvature = 2.0

    def _term(self, p: Any, q: Any, gain: Any, *, xp: Any = np) -> Any:
        inside = q > 0
        with np.errstate(over="ignore"):
            ratio = gain / xp.where(inside, q, 1.0)
            return xp.where(inside, gain * ratio, xp.where(gain > 0, np.inf, 0.0))

    def _closed(self, q: Any, room: Any, delta: Any, *, xp: Any) -> tuple[Any, Any, Any]:
        # 1 - g = (1-q) (1 - q - delta q) / (1 - q + sqrt(delta q (1-q))), where only the difference
        # could cancel.
        spread = xp.sqrt(delta) * xp.sqrt(q * room)
        spent, lost = two_product(delta, q)
        ratio = compensated_sum(1.0, -q, -spent, -lost) / (room + spread)
        return q + spread, room * ratio, ratio


@dataclass(frozen=True)
class TotalVariation(ClosedForm):
    """Total variation distance (1/2) sum |p-q|: f(t) = |t-1| / 2, in [0, 1], no unit.

    The optimum is min(q + delta, 1), for q > 0: by convention g = 0 for q = 0, where the constraint
    alone would allow g = delta. f has a kink at 1, so there is no second order.

    Examples
    --------
    >>> round(float(TotalVariation().optimum(0.25, 0.5).value), 6)
    0.75
    """

    curvature = None

    def _term(self, p: Any, q: Any, gain: Any, *, xp: Any = np) -> Any:
        return xp.abs(gain) / 2

    def _closed(self, q: Any, room: Any, delta: Any, *, xp: Any) -> tuple[Any, Any, Any]:
        left = compensated_sum(1.0, -q, -delta)
        return q + delta, left, left / room


@dataclass(frozen=True)
class SquaredHellinger(ClosedForm):
    r"""Squared Hellinger distance (1/2) sum (sqrt p - sqrt q)^2 = 1 - sum sqrt(p q), in [0, 1].

    f(t) = (sqrt t - 1)^2 / 2, with the factor 1/2; no unit. With q = sin^2(a) and g = sin^2(b) it
    is 1 - cos(b - a), so that b = a + arccos(1 - delta):

        sqrt(g)     = sqrt(q) (1-delta) + sqrt(1-q) sqrt(delta (2-delta)),
        sqrt(1 - g) = sqrt(1-q) (1-delta) - sqrt(q) sqrt(delta (2-delta)),

    and g = 1 where delta >= 1 - sqrt(q).

    Examples
    --------
    >>> round(float(SquaredHellinger().optimum(0.25, 1 - 3**0.5 / 2).value), 6)
    0.75
    """

    curvature = 0.25

    def _term(self, p: Any, q: Any, gain: Any, *, xp: Any = np) -> Any:
        roots = xp.sqrt(p) + xp.sqrt(q)
        return (gain / xp.where(roots > 0, roots, 1.0)) ** 2 / 2

    def _closed(self, q: Any, room: Any, delta: Any, *, xp: Any) -> tuple[Any, Any, Any]:
        # sqrt(1-g) times its conjugate is (1-delta)^2 - q, the only difference that could cancel.
        delta = xp.clip(delta, 0.0, 1.0)
        square, lost = two_product(delta, delta)
        left = xp.clip(compensated_sum(1.0, -q, -2 * delta, square, lost), 0.0, 1.0)
        keep, spread = 1 - delta, xp.sqrt(delta * (2 - delta))
        root = xp.sqrt(q) * keep + xp.sqrt(room) * spread
        rest = left / (xp.sqrt(room) * keep + xp.sqrt(q) * spread)
        return root * root, rest * rest, rest * rest / room
