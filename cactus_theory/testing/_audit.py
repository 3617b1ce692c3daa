"""The result of an audit: evidence, what it looks like, and in one sentence whether it conforms.

Knows figures only; `_auditor` gathers them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Likely:
    """An alternative as an explanation of the tokens.

    Attributes
    ----------
    name : str
        With its parameter.
    family : str
    value : float or None
        The parameter, a value of the family's grid.
    log_likelihood_ratio : float
        Sum of log(r(x) / q(x)) over the tokens, in nats, with .999 r + .001 q in place of r.
    rate, low, high : float
        Its mean for one token, and a normal 95 % interval, in nats. The mean estimates
        KL(s || q) - KL(s || r) where s is what is emitted: the divergence of what is emitted from
        the target if the alternative is right, and less if not.

    Examples
    --------
    >>> Likely("greedy", "greedy", None, 12.0, 0.12, 0.1, 0.14).rate
    0.12
    """

    name: str
    family: str
    value: float | None
    log_likelihood_ratio: float
    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class Audit:
    """Whether tokens are consistent with what their sampler was said to emit.

    Attributes
    ----------
    level : float
        alpha: the chance that a correct sampler is ever accused, for any number of tokens.
    tolerance : float
        Nats per token by which the sampler's own rounding may differ.
    tokens : int
    log_evidence : float64 array, shape (tokens,)
        Logarithm of the average e-process after each token, in nats.
    names : tuple of str
        The alternatives.
    log_e : float64 array, shape (len(names),)
        Logarithm of each alternative's e-process after the last token.
    decided_after : int or None
        Tokens after which the evidence first reached 1/alpha.
    p_value : float
        1 / sup of the evidence, at most 1: valid at any stopping time.
    surprise, surprise_p : float or None
        z = sum(log q(x) + H(q)) / sqrt(sum Var log q), positive where tokens are too probable, and
        its two-sided normal p-value, which is approximate. None where the null is a set of
        distributions or the target is deterministic.
    uniformity_p : float or None
        p-value of a Kolmogorov-Smirnov test on the randomised probability integral transforms.
    impossible : int
        Tokens of probability 0.
    likely : Likely or None
        The most likely alternative, if it is more likely than the null.
    alike : tuple of str
        The best of each other family that is less than 20 times less likely than that one: the
        tokens do not tell which of them it is.

    Examples
    --------
    >>> from cactus_theory.testing import audit
    >>> found = audit([0] * 60, target=[[0.5, 0.5]] * 60, level=1e-3)
    >>> found.consistent, found.decided_after, found.likely.name
    (False, 21, 'greedy (the most probable token)')
    """

    level: float
    tolerance: float
    tokens: int
    log_evidence: np.ndarray
    names: tuple[str, ...]
    log_e: np.ndarray
    decided_after: int | None
    p_value: float
    surprise: float | None
    surprise_p: float | None
    uniformity_p: float | None
    impossible: int
    likely: Likely | None
    alike: tuple[str, ...] = ()

    @property
    def consistent(self) -> bool:
        """Whether the evidence stayed below 1/alpha."""
        return self.decided_after is None

    @property
    def log_p_value(self) -> float:
        """Logarithm of the p-value, which may be too small for a float."""
        return -max(float(self.log_evidence.max(initial=0.0)), 0.0)

    def __str__(self) -> str:
        verdict = "consistent" if self.consistent else "not consistent"
        lines = [f"{verdict} at level {self.level:g} after {self.tokens} tokens"]
        if self.decided_after is not None:
            lines[0] += f", decided after {self.decided_after}"
        lines.append(f"log evidence {-self.log_p_value:.1f} of {-math.log(self.level):.1f} nats")
        if self.surprise is not None:
            lines.append(f"surprise z {self.surprise:+.2f}")
        if self.uniformity_p is not None:
            lines.append(f"uniformity p {self.uniformity_p:.3g}")
        if self.impossible:
            lines.append(f"{self.impossible} tokens of probability 0")
        if self.likely is not None:
            found = self.likely
            lines.append(
                f"{'looks' if not self.consistent else 'nearest:'}"
                f"{' like' if not self.consistent else ''} {found.name}, "
                f"{found.rate:.4f} nats per token [{found.low:.4f}, {found.high:.4f}]"
            )
            if self.alike:
                lines.append(f"not told apart from {', '.join(self.alike)}")
        return "; ".join(lines)
