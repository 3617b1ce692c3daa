"""How many tokens to draft: a fixed number, or as many as are worth their cost.

The decision to draft one more token depends on the past and on the tokens drafted so far, never on
the token it decides about, and a drafted token is always verified. So the emitted distribution and
its charges are those of the rule (see `cactus_theory.ledger`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cactus_runtime.result.trace import Verdict
from cactus_theory._validate import integer
from cactus_theory.planning import VerifyCost, block_cost

_BINS = 10  # for the draft's probability of its token
_LONGEST = 1024
_PROBE = 16  # blocks after which one token is drafted even if that does not seem worthwhile
_FIRST_GUESS = 0.8  # acceptance rate, with the weight of one observation


@dataclass(frozen=True)
class AdaptiveDraft:
    """Draft one more token while its expected gain is at least the value of its time.

    With R the estimated chance that all tokens drafted so far pass, a the mean acceptance so far
    and v the best speed-up that the rates and costs allow, one more token is drafted while
    R a >= v * (its cost). Chances are learned per request, from min(g/p, 1) of the judged tokens,
    binned by the draft's probability of the token. Nothing is timed while decoding, so a seed
    repeats its result.

    Parameters
    ----------
    draft_cost : float
        Cost of drafting one token, in plain target passes; see `measure_costs`.
    verify_cost : float, callable or sequence
        Cost of a target pass over k + 1 tokens, in the same unit; see
        `cactus_theory.planning.block_cost`.
    max_draft_tokens : int
        Maximum number of drafted tokens per target pass.

    Raises
    ------
    TypeError, ValueError
        If a cost or the number is out of range.

    Examples
    --------
    >>> length = AdaptiveDraft(draft_cost=0.1, max_draft_tokens=4).start()
    >>> length.should_draft_more([]), length.should_draft_more([0.9, 0.9, 0.9, 0.9])
    (True, False)
    """

    draft_cost: float
    verify_cost: VerifyCost = 1.0
    max_draft_tokens: int = 16
    costs: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if integer("max_draft_tokens", self.max_draft_tokens, 1) > _LONGEST:
            raise ValueError(
                f"max_draft_tokens must lie in [1, {_LONGEST}], got {self.max_draft_tokens}"
            )
        if isinstance(self.verify_cost, Sequence):
            object.__setattr__(self, "verify_cost", tuple(self.verify_cost))
        costs = tuple(
            block_cost(k, draft_cost=self.draft_cost, verify_cost=self.verify_cost)
            for k in range(self.max_draft_tokens + 1)
        )
        object.__setattr__(self, "costs", costs)

    @property
    def longest(self) -> int:
        return self.max_draft_tokens

    def start(self) -> AdaptiveLength:
        return AdaptiveLength(self)


@dataclass(frozen=True)
class FixedLength:
    """Always the same number of tokens."""

    longest: int

    def start(self) -> FixedLength:
        return self

    def planned(self) -> int:
        return self.longest

    def should_draft_more(self, drafted: Sequence[float]) -> bool:
        return len(drafted) < self.longest

    def learn(self, verdicts: Sequence[Verdict]) -> None: ...


class AdaptiveLength:
    """What an `AdaptiveDraft` has learned from one request."""

    def __init__(self, policy: AdaptiveDraft) -> None:
        self._costs = np.array(policy.costs)
        self.longest = policy.max_draft_tokens
        self._weights = np.zeros(_BINS)
        self._passed = np.zeros(_BINS)
        self._blocks = 0

    def planned(self) -> int:
        """Tokens to draft if each passes with the mean chance."""
        best = int(np.argmax(self._speeds()))
        return max(best, 1) if self._blocks % _PROBE == 0 else best

    def should_draft_more(self, drafted: Sequence[float]) -> bool:
        """Whether to draft one more after tokens of these draft probabilities."""
        count = len(drafted)
        if count >= self.longest:
            return False
        if count == 0 and self._blocks % _PROBE == 0:
            return True
        reached = float(np.prod([self._chance(prob) for prob in drafted]))
        price = self._speeds().max() * (self._costs[count + 1] - self._costs[count])
        return reached * self._mean() >= price

    def learn(self, verdicts: Sequence[Verdict]) -> None:
        """Learn from a block's judged tokens."""
        self._blocks += 1
        for verdict in verdicts:
            place = _bin(verdict.draft_prob)
            self._weights[place] += 1
            self._passed[place] += min(verdict.boosted / verdict.draft_prob, 1.0)

    def _speeds(self) -> np.ndarray:
        """Speed-up over plain decoding of every number of drafted tokens."""
        tokens = np.cumsum(self._mean() ** np.arange(self.longest + 1))
        return tokens / self._costs

    def _mean(self) -> float:
        return float((self._passed.sum() + _FIRST_GUESS) / (self._weights.sum() + 1))

    def _chance(self, draft_prob: float) -> float:
        place = _bin(draft_prob)
        return float((self._passed[place] + self._mean()) / (self._weights[place] + 1))


def _bin(draft_prob: float) -> int:
    return min(int(draft_prob * _BINS), _BINS - 1)
