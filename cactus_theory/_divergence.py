"""What an f-divergence is, and the root of `divergence = budget` for any of them.

A divergence says one thing, the term q f(p/q); sums of terms, generators and optima follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory._solution import Optimum, solution

_HALVINGS = 63  # float64 in [0, 1] have bit patterns below 2**62


class Divergence(ABC):
    r"""An f-divergence D(p || q) = sum_x q(x) f(p(x) / q(x)), f convex, f(1) = 0.

    The generator is normalised to f'(1) = 0 as well (f'(1) multiplies sum p - sum q = 0), so that
    f >= 0, every term of the sum is >= 0, and nothing cancels where the laws nearly agree. By
    Theorem 2 the candidate that raises one token from q to h costs the divergence of two Bernoulli
    laws, `binary(h, q)`, and `optimum` is the largest h it allows.

    Objects are immutable and hashable. Everything is float64 over numpy; `solve` runs over another
    namespace where the optimum has a formula that does.

    Attributes
    ----------
    curvature : float or None
        f''(1), so that D is about curvature / 2 * chi-square near p = q; None where f has a kink.

    Examples
    --------
    >>> from cactus_theory import ChiSquare
    >>> divergence = ChiSquare()
    >>> bool(divergence.binary(0.75, 0.5) == divergence.between([0.75, 0.25], [0.5, 0.5]))
    True
    >>> divergence.curvature
    2.0
    """

    curvature: float | None = 1.0

    @abstractmethod
    def _term(self, p: Any, q: Any, gain: Any) -> Any:
        """q f(p/q), where gain = p - q may be known better than p and q say."""

    @property
    def _evaluation_ulps(self) -> float:
        """Relative error allowed to `_binary`, in units of 2**-52; below 5 was seen."""
        return 12.0

    def generator(self, t: Any) -> Any:
        """f(t), normalised to f(1) = f'(1) = 0 (total variation has a kink there).

        Parameters
        ----------
        t : array_like
            Ratios p/q, finite and >= 0.

        Returns
        -------
        float64 array
            inf at t = 0 where f is unbounded there.

        Raises
        ------
        ValueError
            If a ratio is negative or not finite.
        """
        t = np.asarray(t, dtype=np.float64)
        if not (np.isfinite(t) & (t >= 0)).all():
            raise ValueError(f"t must be finite and >= 0, got {t!r}")
        with np.errstate(over="ignore"):  # of a threshold far above any probability
            return self._term(t, np.ones_like(t), t - 1)[()]

    def between(self, p: Any, q: Any) -> Any:
        """D(p || q) = sum_x q(x) f(p(x) / q(x)).

        Parameters
        ----------
        p, q : array_like, shape (..., V)
            Laws over the same vocabulary; leading axes broadcast.

        Returns
        -------
        float64 array, shape (...)
            Every term has full relative precision, also where the laws nearly agree.

        Raises
        ------
        ValueError
            If either is not a law, or the shapes do not fit.
        """
        p, q = np.broadcast_arrays(*_validate.law_pair(p=p, q=q))
        return self._term(p, q, p - q).sum(axis=-1)

    def binary(self, h: Any, q: Any) -> Any:
        """q f(h/q) + (1-q) f((1-h)/(1-q)): the divergence of two Bernoulli laws.

        Parameters
        ----------
        h, q : array_like, broadcastable
            Probabilities in [0, 1].

        Returns
        -------
        float64 array
            Relative error of a few ulp (of the h - q given), also near h = q.

        Raises
        ------
        ValueError
            If either lies outside [0, 1].

        References
        ----------
        Theorem 2 of Hao and Mou (2026).
        """
        h, q = np.broadcast_arrays(_validate.probabilities("h", h), _validate.probabilities("q", q))
        return self._binary(h, 1 - h, q, 1 - q, h - q)[()]

    def optimum(self, target_prob: Any, delta: Any) -> Optimum:
        """The largest g in [q, 1] with binary(g, q) <= delta, rounded to keep the budget.

        g = 1 where even that is within the budget, g = q where delta = 0, and g = q for q in
        {0, 1}: the target's support is never left, although a divergence that stays finite
        there would pay for it.

        Parameters
        ----------
        target_prob : array_like
            q, in [0, 1].
        delta : array_like, broadcastable with `target_prob`
            Budget, in the units of the divergence, in [0, 1e100].

        Returns
        -------
        Optimum
            g within a few tens of ulp; of 1 - g, see the class.

        Raises
        ------
        ValueError
            If a probability lies outside [0, 1], or a budget outside [0, 1e100].

        References
        ----------
        Theorem 2 of Hao and Mou (2026).
        """
        return self.root(target_prob, delta)

    def root(self, target_prob: Any, delta: Any) -> Optimum:
        """`optimum` by bisection, whether or not there is a closed form.

        Both ends of the bracket are roots, of budgets a few tens of ulp below and above delta: more
        than the error of evaluating the divergence, so the lower end keeps the budget. As the
        divergence is convex in the gain and 0 without one, g inherits no more than that relative
        error. 1 - g is the complement of the lower budget's root: near saturation, where a
        relative change of delta is multiplied, it keeps the budget but loses digits.

        Parameters, Returns and Raises are those of `optimum`.
        """
        q, delta = _arguments(target_prob, delta)
        slack = self._evaluation_ulps * 2.0**-52
        lower, complement = self._bisect(q, delta * (1 - slack))
        upper, _ = self._bisect(q, delta * (1 + slack))
        still = (q <= 0) | (q >= 1) | (delta <= 0)
        lower, upper = np.where(still, q, lower), np.where(still, q, upper)
        return solution(
            q,
            delta,
            lower=lower,
            upper=upper,
            complement=np.where(still, 1 - q, complement),
            ulps=2,
            curvature=self.curvature,
        )

    def solve(self, target_prob: Any, delta: Any, *, xp: Any = np) -> tuple[Any, Any, Any]:
        """g, 1 - g and (1 - g)/(1 - q) as a rule needs them, over a namespace ``xp``.

        Raises
        ------
        TypeError
            If `xp` is not numpy and the optimum is a root found with numpy only.
        """
        if xp is not np:
            raise TypeError(
                f"the optimum of {self!r} is a root found with numpy; "
                f"it cannot be evaluated over {getattr(xp, '__name__', xp)!r}"
            )
        answer = self.optimum(target_prob, delta)
        return answer.value, answer.complement, answer.ratio

    def _binary(self, h: Any, rest: Any, q: Any, room: Any, gain: Any) -> Any:
        return self._term(h, q, gain) + self._term(rest, room, -gain)

    def _bisect(self, q: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """g and 1 - g, feasible ends of an interval between adjacent floats.

        The unknown is the gain up to half-way, the complement above, bisected by bit pattern, so
        that either has full relative precision however small it is.
        """
        q = np.where((q > 0) & (q < 1), q, 0.5)
        room = 1 - q
        half = room / 2
        beyond = self._binary(q + half, half, q, room, half) <= delta
        sure = self._binary(np.ones_like(q), np.zeros_like(q), q, room, room) <= delta
        low, high = np.zeros(q.shape, dtype=np.int64), np.array(half).view(np.int64)
        for _ in range(_HALVINGS):
            middle = low + (high - low) // 2
            z = middle.view(np.float64)
            gain, rest = np.where(beyond, room - z, z), np.where(beyond, z, room - z)
            h = np.where(beyond, 1 - z, q + z)
            to_high = (self._binary(h, rest, q, room, gain) <= delta) == beyond
            low, high = np.where(to_high, low, middle), np.where(to_high, middle, high)
        low, high = low.view(np.float64), high.view(np.float64)
        value = np.where(beyond, 1 - high, q + low)
        complement = np.where(beyond, high, room - low)
        return np.where(sure, 1.0, value), np.where(sure, 0.0, complement)


class ClosedForm(Divergence):
    """A divergence whose optimum is a formula in + - * / and sqrt, over any namespace."""

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
        q, delta = _arguments(target_prob, delta)
        value, complement, _ = self.solve(q, delta)
        return solution(
            q,
            delta,
            lower=value,
            upper=value,
            complement=complement,
            ulps=8,
            curvature=self.curvature,
        )


def _arguments(target_prob: Any, delta: Any) -> tuple[np.ndarray, np.ndarray]:
    q, delta = np.broadcast_arrays(
        _validate.probabilities("target_prob", target_prob), _validate.budgets("delta", delta)
    )
    return q, delta
