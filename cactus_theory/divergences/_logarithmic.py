"""KL, reverse KL and Jensen-Shannon: divergences made of logarithms, in nats.

f is the generator, D(p || q) = sum q f(p/q), written without the linear term that the code adds to
make f'(1) = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory.divergences._base import Divergence
from cactus_theory.divergences._kl_root import kl_root
from cactus_theory.divergences._kl_terms import kl_term_of


@dataclass(frozen=True)
class KL(Divergence):
    """Kullback-Leibler divergence KL(p || q) = sum p log(p/q): f(t) = t log t, in nats.

    inf where p leaves the support of q; at most -log(q) for a candidate, so that g = 1 where
    q >= exp(-delta). The optimum is a root, with 1 - g within a few ulp as well, unless -log(q) and
    delta nearly cancel: then it is larger than it need be, by some 1e-16 max(delta, 1).

    References
    ----------
    Theorem 2 of Hao and Mou (2026).

    Examples
    --------
    >>> round(float(KL().optimum(1e-4, 1.0).value), 4)
    0.1555
    """

    @property
    def torch_ready(self) -> bool:
        """True: the Newton steps of `solve` run over any namespace."""
        return True

    def _term(self, p: Any, q: Any, gain: Any, *, xp: Any = np) -> Any:
        return kl_term_of(p, q, gain, xp=xp)

    def _overspent(self, rest: Any, q: Any, room: Any, delta: Any) -> Any:
        """The excess of g = 1 over the budget, -log(q) - delta, less what `rest` saves.

        That is precise to the last digits of `rest`, where the divergence itself is not. It is
        raised by more than the error of -log(q), and of an evaluation.
        """
        log_q = np.log(q)
        deficit = -log_q - delta
        deficit = deficit + np.spacing(np.abs(log_q)) + 8 * 2.0**-52 * np.abs(deficit)
        shrunk = np.log1p(-rest)
        slope = shrunk - log_q - np.log(np.maximum(rest, 5e-324) / room)
        return deficit - (rest * slope - shrunk)

    def solve(self, target_prob: Any, delta: Any, *, xp: Any = np) -> tuple[Any, Any, Any]:
        """g, 1 - g and (1 - g)/(1 - q) by Newton steps over a namespace ``xp``, unrounded."""
        return kl_root(target_prob, delta, xp=xp)


@dataclass(frozen=True)
class ReverseKL(Divergence):
    """Reverse KL, D(p || q) = KL(q || p) = sum q log(q/p): f(t) = -log t, in nats.

    inf where p excludes a token that q does not, so that g < 1 for every budget (1 - g is about
    exp(-delta / (1-q)), and may lie below the smallest float: the complement is then that float).

    Examples
    --------
    >>> round(float(ReverseKL().optimum(1e-4, 1.0).value), 4)
    0.6325
    """

    def _term(self, p: Any, q: Any, gain: Any, *, xp: Any = np) -> Any:
        return kl_term_of(q, p, -gain, xp=xp)


@dataclass(frozen=True)
class JensenShannon(Divergence):
    """Jensen-Shannon divergence (1/2) KL(p || m) + (1/2) KL(q || m), m = (p+q)/2, in nats.

    f(t) = (1/2) [t log(2t/(1+t)) + log(2/(1+t))], symmetric in p and q, at most log 2: g = 1 for
    every q > 0 from that budget on.

    Examples
    --------
    >>> float(JensenShannon().between([1.0, 0.0], [0.0, 1.0])) == float(np.log(2))
    True
    """

    curvature = 0.25

    def _term(self, p: Any, q: Any, gain: Any, *, xp: Any = np) -> Any:
        middle = p / 2 + q / 2
        sides = kl_term_of(p, middle, gain / 2, xp=xp), kl_term_of(q, middle, -gain / 2, xp=xp)
        return (sides[0] + sides[1]) / 2
