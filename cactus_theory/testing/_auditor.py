"""Evidence from transcripts: are these tokens drawn from the distributions they are said to be?

Knows tokens and the distributions of their positions, of one sampler. Does not know models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import kstest, norm

from cactus_theory import _validate
from cactus_theory.emitted import output_distribution
from cactus_theory.rules import Rule
from cactus_theory.testing._alternatives import ALTERNATIVES, Alternative, Situation
from cactus_theory.testing._audit import Audit, Likely
from cactus_theory.testing._phases import BlockPhases

_STRAY = 1e-3  # weight of the null in a likelihood, so that one stray token rules nothing out
_ALIKE = math.log(20.0)  # nats of a likelihood ratio that tell two alternatives apart
_ITSELF = Alternative("the target's own distribution", lambda s: s.target)


class Auditor:
    r"""Gathers evidence token by token; it may be asked for a verdict at any time.

    For each alternative r, and q the distribution that the token should have,

        E_n = prod over t <= n of (1/2 + r_t(x_t) / (2 q_t(x_t)))

    has mean 1 for a correct sampler, given everything before, so E is a non-negative martingale,
    and so is its weighted average over alternatives. Hence P(sup_n E_n >= 1/alpha) <= alpha
    (Ville's inequality), whichever prompts are chosen and whenever one stops. Families of
    alternatives have equal weights, and so have the parameters of each.

    *Tolerance.* The null may be all samplers s whose distributions lie near q, as those of other
    kernels do: for every n, sum_(t<=n) D_2(s_t || q_t) <= n eps, D_2 = log sum s^2/q being the
    divergence of Renyi of order 2. Then sup_n sqrt(E_n exp(-n eps)) is used in place of E.
    Proof sketch: with b the factor of E, Cauchy and Schwarz give
    E_s[sqrt b] = sum sqrt(q b) (s / sqrt q) <= sqrt(sum q b) sqrt(sum s^2/q) = exp(D_2(s || q)/2).
    So prod sqrt(b_t) exp(-D_2(s_t || q_t)/2) is a non-negative supermartingale, and it is at least
    sqrt(E_n exp(-n eps)).

    *A lossy rule as the null.* With `rule`, and the number of drafts known, q is replaced by the
    exact distribution of the next token given the text (`BlockPhases`). If it is not known, a
    token may follow out or q, and the null is every mixture of the two at every position: the
    factor is then 1/2 + r(x) / (2 max(out(x), q(x))), whose mean is at most 1 under all of them.

    Parameters
    ----------
    rule : Rule, optional
        The rule that the sampler is said to follow; None: the target's own distribution.
    num_draft_tokens : int, optional
        Drafted tokens of each block. With it, rules are compared by the distribution of the next
        token given the text; without it, as if all positions were verified.
    max_new_tokens : int, optional
        The longest text, which shortens the last blocks.
    alternatives : sequence of Alternative
    level : float
        alpha, in (0, 1).
    tolerance : float
        eps >= 0, in nats per token; see `measured_tolerance`.
    seed : int
        Of the uniforms of the randomised probability integral transform.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range.

    References
    ----------
    Ville, Etude critique de la notion de collectif, 1939; Shafer, Testing by betting, 2021. The
    null with a tolerance is ours.

    Examples
    --------
    >>> auditor = Auditor(level=0.01)
    >>> while auditor.log_evidence < math.log(1 / 0.01):
    ...     auditor.add(0, target=np.array([0.5, 0.5]))
    >>> auditor.result().decided_after
    15
    """

    def __init__(
        self,
        *,
        rule: Rule | None = None,
        num_draft_tokens: int | None = None,
        max_new_tokens: int | None = None,
        alternatives: Sequence[Alternative] = ALTERNATIVES,
        level: float = 1e-6,
        tolerance: float = 0.0,
        seed: int = 0,
    ) -> None:
        if rule is not None and not isinstance(rule, Rule):
            raise TypeError(f"rule must be a Rule or None, got {rule!r}")
        if not alternatives:
            raise ValueError("alternatives must hold at least one, got none")
        self._level = _validate.fraction("level", level, "(0, 1)")
        self._tolerance = _validate.budget("tolerance", tolerance)
        self._rule, self._drafts, self._longest = rule, num_draft_tokens, max_new_tokens
        self._phases = None if rule is None else self._phases_of(rule)
        self._offered = (*(() if rule is None else (_ITSELF,)), *alternatives)
        self._alternatives: tuple[Alternative, ...] = ()
        self._uniforms = np.random.default_rng(_validate.word("seed", seed))
        self._curve: list[float] = []
        self._transforms: list[float] = []
        self._excess, self._variance, self._impossible = 0.0, 0.0, 0

    def _phases_of(self, rule: Rule) -> BlockPhases | None:
        if self._drafts is None:
            return None
        return BlockPhases(rule, self._drafts, max_new_tokens=self._longest)

    def _choose(self, situation: Situation) -> None:
        self._alternatives = tuple(a for a in self._offered if a.readable(situation))
        if not self._alternatives:
            raise ValueError("alternatives must hold one that the given distributions suffice for")
        if self._rule is not None and situation.draft is None:
            raise ValueError(f"draft must be given where the null is rule={self._rule!r}")
        self._log_weights = np.log(family_weights(self._alternatives))
        self._log_e = np.zeros(len(self._alternatives))
        self._ratios: list[np.ndarray] = []
        self._of_rules = [
            self._phases_of(a.rule) if a.rule is not None else None for a in self._alternatives
        ]

    @property
    def tokens(self) -> int:
        """Tokens read so far."""
        return len(self._curve)

    @property
    def log_evidence(self) -> float:
        """Logarithm of the average e-process after the tokens read so far."""
        return self._curve[-1] if self._curve else 0.0

    def new_text(self) -> None:
        """Say that the next token begins another text, and so a block."""
        for phases in (self._phases, *(self._of_rules if self._alternatives else ())):
            if phases is not None:
                phases.new_text()

    def add(
        self,
        token: int,
        *,
        target: Any,
        draft: Any = None,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        """Read one token and the distributions of its position.

        Parameters
        ----------
        token : int
        target, draft : array_like, shape (V,)
            q and p, after temperature and filters; the draft is optional.
        others : mapping of str to array_like, shape (V,), optional
            Distributions that alternatives read.

        Raises
        ------
        TypeError, ValueError
            If one is not a distribution, or the token lies outside the vocabulary.
        """
        q = _validate.law("target", target)
        p = None if draft is None else _validate.law_pair(draft=draft, target=q)[0]
        rows = {name: np.asarray(row, np.float64) for name, row in (others or {}).items()}
        situation, x = Situation(q, p, rows), _validate.token("tokens", token, q.size)
        if not self._alternatives:
            self._choose(situation)
        for needed in self._alternatives:
            if not needed.readable(situation):
                raise ValueError(f"every position must have {needed.needs}, as the first had")
        null, single = self._null(situation)
        laws = [self._law(i, a, situation) for i, a in enumerate(self._alternatives)]
        self._read(x, null[x], np.array([law[x] for law in laws]))
        if single:
            self._summarise(x, null)
        for phases in (self._phases, *self._of_rules):
            if phases is not None:
                # What cannot follow refutes this rule; any law of the rest is a fair bet on it.
                phases.emit(x) if phases.allows(x) else phases.new_text()

    def _null(self, situation: Situation) -> tuple[np.ndarray, bool]:
        """What the factor is divided by, and whether it is a distribution."""
        if self._rule is None:
            return situation.target, True
        if self._phases is not None:
            assert situation.draft is not None
            return self._phases.next_distribution(
                draft=situation.draft, target=situation.target
            ), True
        out = output_distribution(self._rule, draft=situation.draft, target=situation.target)
        return np.maximum(out, situation.target), False

    def _law(self, i: int, alternative: Alternative, situation: Situation) -> np.ndarray:
        phases = self._of_rules[i]
        if phases is None:
            return alternative.distribution(situation)
        assert situation.draft is not None
        return phases.next_distribution(draft=situation.draft, target=situation.target)

    def _read(self, x: int, null: float, alternatives: np.ndarray) -> None:
        if null == 0:
            self._impossible += 1
            self._log_e += np.inf
        else:
            ratios = alternatives / null
            self._log_e += np.log(0.5 + 0.5 * ratios)
            self._ratios.append(np.log((1 - _STRAY) * ratios + _STRAY))
        read = len(self._curve) + 1
        wealth = self._log_e
        if self._tolerance:
            wealth = (wealth - read * self._tolerance) / 2
        total: Any = logsumexp(self._log_weights + wealth)
        self._curve.append(float(total))

    def _summarise(self, x: int, null: np.ndarray) -> None:
        """The surprise and the probability integral transform, most probable tokens first."""
        earlier = (null > null[x]) | ((null == null[x]) & (np.arange(null.size) < x))
        self._transforms.append(float(null[earlier].sum() + self._uniforms.random() * null[x]))
        if null[x] > 0:
            held = null[null > 0]
            logs = np.log(held)
            mean = float(held @ logs)
            self._excess += math.log(null[x]) - mean
            self._variance += max(float(held @ (logs - mean) ** 2), 0.0)

    def result(self) -> Audit:
        """The verdict on the tokens read so far.

        Returns
        -------
        Audit

        Raises
        ------
        ValueError
            If no token was read.
        """
        if not self._curve:
            raise ValueError("tokens must hold at least one token, got none")
        curve = np.array(self._curve)
        over = np.flatnonzero(curve >= -math.log(self._level))
        z = self._excess / math.sqrt(self._variance) if self._variance > 0 else None
        likely = self._likely()
        return Audit(
            level=self._level,
            tolerance=self._tolerance,
            tokens=curve.size,
            log_evidence=curve,
            names=tuple(a.name for a in self._alternatives),
            log_e=self._log_e.copy(),
            decided_after=int(over[0]) + 1 if over.size else None,
            p_value=math.exp(-max(float(curve.max()), 0.0)),
            surprise=z,
            surprise_p=None if z is None else float(2 * norm.sf(abs(z))),
            uniformity_p=(
                float(kstest(np.minimum(self._transforms, 1.0), "uniform").pvalue)
                if self._transforms
                else None
            ),
            impossible=self._impossible,
            likely=likely,
            alike=() if likely is None else self._alike(likely),
        )

    def _likely(self) -> Likely | None:
        if not self._ratios:
            return None
        ratios = np.array(self._ratios)
        sums = ratios.sum(axis=0)
        best = int(np.argmax(sums))
        if sums[best] <= 0:
            return None
        own, chosen = ratios[:, best], self._alternatives[best]
        half = 1.96 * float(own.std(ddof=1 if own.size > 1 else 0)) / math.sqrt(own.size)
        rate = float(own.mean())
        return Likely(
            chosen.name,
            chosen.family,
            chosen.value,
            float(sums[best]),
            rate,
            rate - half,
            rate + half,
        )

    def _alike(self, likely: Likely) -> tuple[str, ...]:
        sums = np.array(self._ratios).sum(axis=0)
        best: dict[str, int] = {}
        for i in np.argsort(-sums, kind="stable"):
            if sums[i] > max(likely.log_likelihood_ratio - _ALIKE, 0.0):
                best.setdefault(self._alternatives[i].family, int(i))
        best.pop(likely.family, None)
        return tuple(self._alternatives[i].name for i in best.values())


def family_weights(alternatives: Sequence[Alternative]) -> np.ndarray:
    """Equal weights for families, and within each for its parameters; their sum is 1.

    Examples
    --------
    >>> found = family_weights(ALTERNATIVES)
    >>> round(float(found.sum()), 12), found[0] < found.max()
    (1.0, np.True_)
    """
    families = [a.family for a in alternatives]
    counts = {name: families.count(name) for name in families}
    return np.array([1 / (len(counts) * counts[name]) for name in families])
