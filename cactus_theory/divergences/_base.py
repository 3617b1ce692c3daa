"""What an f-divergence is, and the largest probability a budget of it allows.

A divergence defines its term q f(p/q). Sums of terms, generators and optima follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory._chunks import by_chunks
from cactus_theory.divergences import _root
from cactus_theory.divergences._optimum import Optimum, ratio_and_gap

_PIECE = 32768  # elements solved at once; half as many were measured 1.25 times as slow


class Divergence(ABC):
    r"""An f-divergence D(p || q) = sum_x q(x) f(p(x) / q(x)), f convex, f(1) = 0.

    The generator is normalised to f'(1) = 0 as well (f'(1) multiplies sum p - sum q = 0), so that f
    >= 0, every term of the sum is >= 0, and nothing cancels where the distributions nearly agree.
    By Theorem 2 the candidate that raises one token from q to h costs the divergence of two
    Bernoulli distributions, `binary(h, q)`, and `optimum` is the largest h it allows.

    Objects are immutable and hashable. Everything is float64 over numpy; `solve` runs over another
    namespace where the optimum has a formula that does.

    Attributes
    ----------
    curvature : float or None
        f''(1), so that D is about curvature / 2 * chi-square near p = q; None where f has a kink.
    torch_ready : bool
        Whether `solve` runs with ``xp=torch`` on float64 tensors.

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
    def _term(self, p: Any, q: Any, gain: Any, *, xp: Any = np) -> Any:
        """q f(p/q), where gain = p - q may be known more exactly than p and q."""

    @property
    def _slack(self) -> float:
        """Relative error allowed to `_binary`; the largest error seen was below 5 * 2**-52."""
        return 12 * 2.0**-52

    @property
    def torch_ready(self) -> bool:
        """Whether `solve` runs with ``xp=torch`` on float64 tensors; here the root needs numpy."""
        return False

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
        with np.errstate(over="ignore"):  # t far above any ratio of probabilities
            return self._term(t, np.ones_like(t), t - 1)[()]

    def between(self, p: Any, q: Any) -> Any:
        """D(p || q) = sum_x q(x) f(p(x) / q(x)).

        Parameters
        ----------
        p, q : array_like, shape (..., V)
            Distributions over the same vocabulary; leading axes broadcast.

        Returns
        -------
        float64 array, shape (...)
            Every term has full relative precision, also where the distributions nearly agree.

        Raises
        ------
        ValueError
            If either is not a distribution, or the shapes do not broadcast.
        """
        p, q = np.broadcast_arrays(*_validate.law_pair(p=p, q=q))
        return self._term(p, q, p - q).sum(axis=-1)

    def binary(self, h: Any, q: Any) -> Any:
        """q f(h/q) + (1-q) f((1-h)/(1-q)): the divergence of two Bernoulli distributions.

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

        g = 1 where even that is within the budget, g = q where delta = 0, and g = q for q in {0,
        1}. The target's support is never left, although a divergence that stays finite there would
        allow it.

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
        RuntimeError
            If no root is found. A divergence of your own may cause this, if it is not convex or
            returns nan.

        References
        ----------
        Theorem 2 of Hao and Mou (2026).
        """
        return self.root(target_prob, delta)

    def root(self, target_prob: Any, delta: Any) -> Optimum:
        """`optimum` by a bracketed root, even where there is a closed form.

        The root is that of a budget a few ulp below delta, by more than the error of evaluating
        the divergence, so that the lower end of its bracket keeps the budget. As the divergence is
        convex in the gain and 0 without one, g inherits no more than that relative error. 1 - g is
        the complement of the lower budget's root: near saturation, where a relative change of
        delta is multiplied, it keeps the budget but loses digits, and g = 1 is given only from a
        budget that is as much larger than its cost.

        Parameters, Returns and Raises are those of `optimum`.
        """
        q, delta = arguments(target_prob, delta)
        dtypes = [*([np.float64] * 5), np.int16, np.int8]
        found = by_chunks(self._solve_piece, q, delta, outputs=dtypes, size=_PIECE)
        value, complement, ratio, upper, gap, iterations, status = found
        gap = None if self.curvature is None else gap
        return Optimum(value, complement, ratio, (value, upper), gap, iterations, status)

    def _solve_piece(self, q: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, ...]:
        value, complement, upper, *how = _root.solve(
            q,
            delta,
            cost=self._cost,
            overspent=self._overspent,
            slack=self._slack,
            curvature=self.curvature,
            name=repr(self),
        )
        ratio, gap = ratio_and_gap(value, complement, q, delta, self.curvature)
        return value, complement, ratio, upper, q if gap is None else gap, *how

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

    def _cost(self, gain: Any, q: Any, room: Any) -> Any:
        """The divergence of q + gain from q."""
        return self._binary(q + gain, room - gain, q, room, gain)

    def _overspent(self, rest: Any, q: Any, room: Any, delta: Any) -> Any:
        """The divergence of 1 - rest from q, less a budget lower than delta by the slack."""
        return self._binary(1 - rest, rest, q, room, room - rest) - delta * (1 - self._slack)


def arguments(target_prob: Any, delta: Any) -> tuple[np.ndarray, np.ndarray]:
    """Check probabilities and budgets, and broadcast them to one shape."""
    q, delta = np.broadcast_arrays(
        _validate.probabilities("target_prob", target_prob), _validate.budgets("delta", delta)
    )
    return q, delta
