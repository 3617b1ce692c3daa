"""The records of a decode: judged drafts, emitted tokens, blocks, seconds.

Knows no model and no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Origin = Literal["accepted", "recovered", "bonus", "plain"]
FinishReason = Literal["length", "eos", "stop", "interrupted"]


@dataclass(frozen=True)
class Verdict:
    """A drafted token, how it was judged, and the charge of its position.

    Attributes
    ----------
    id : int
        The drafted token n; also the emitted token if it was accepted.
    draft_prob, target_prob, boosted : float
        p(n), q(n), and g(n): the chance to pass was min(g/p, 1). Under block verification g is the
        probability that n is drafted and kept, given that the drafts before it are kept.
    acceptance_rate : float or None
        sum_x min(p, g): the chance that a token drafted here passes. Under block verification, the
        chance that some token drafted here is kept, given the same.
    total_variation, kl_bound : float or None
        TV(out, q), exact, and the upper bound of KL(out || q) in nats (exact for rules without
        candidates). These three are None if the request had no ledger.

    Examples
    --------
    >>> Verdict(7, 0.5, 0.2, 0.4, 0.9, 0.1, 0.02).acceptance_probability
    0.8
    """

    id: int
    draft_prob: float
    target_prob: float
    boosted: float
    acceptance_rate: float | None = None
    total_variation: float | None = None
    kl_bound: float | None = None

    @property
    def charges(self) -> tuple[float, float] | None:
        """`total_variation` and `kl_bound`; None if the request had no ledger."""
        if self.total_variation is None or self.kl_bound is None:
            return None
        return self.total_variation, self.kl_bound

    @property
    def acceptance_probability(self) -> float:
        """min(g/p, 1): the chance to pass that this drafted token had."""
        return min(self.boosted / self.draft_prob, 1.0)


@dataclass(frozen=True)
class Token:
    """One emitted token.

    Attributes
    ----------
    id : int
    text : str
        The text it completes: "" while a character is incomplete or a stop string may have begun.
    origin : str
        "accepted" (drafted and kept), "recovered" (after a rejection), "bonus" (after all drafts
        were kept) or "plain" (there was no draft to verify).
    logprob : float
        Log-probability under the target itself, before temperature, filters and penalties.
    verdict : Verdict or None
        The verdict on the token drafted here, with its charge; None where nothing was drafted.
    emitted_logprob, warped_logprob : float or None
        If the request asked for `emitted_logprobs`: log-probabilities (nats), given everything
        before, under the distribution that this token was really drawn from, and under the target's
        after temperature, filters and penalties. They are equal where there was no draft to verify,
        and under plain speculative sampling. `warped_logprob` is -inf for a token that the target
        never emits.

    Examples
    --------
    >>> Token(7, " seven", "bonus", -0.5, None)
    Token(id=7, text=' seven', origin='bonus')
    """

    id: int
    text: str
    origin: Origin
    logprob: float = field(repr=False)
    verdict: Verdict | None = field(repr=False)
    emitted_logprob: float | None = field(default=None, repr=False)
    warped_logprob: float | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Block:
    """One target pass: tokens drafted, drafted tokens kept and emitted, all tokens emitted.

    Attributes
    ----------
    drafted, accepted, emitted : int

    Examples
    --------
    >>> Block(drafted=4, accepted=2, emitted=3).emitted
    3
    """

    drafted: int
    accepted: int
    emitted: int


@dataclass(frozen=True)
class Dtypes:
    """Types of the weights that were multiplied, by name.

    Attributes
    ----------
    target : str
        Such as "bfloat16"; every distribution and charge is that of the target in this type.
    draft : str or None
        "int4" for a copy of that kind; None where no model drafts.

    Examples
    --------
    >>> str(Dtypes("bfloat16", "int4"))
    'bfloat16 target, int4 draft'
    """

    target: str
    draft: str | None = None

    def __str__(self) -> str:
        drafts = "" if self.draft is None else f", {self.draft} draft"
        return f"{self.target} target{drafts}"


@dataclass
class Seconds:
    """Wall-clock seconds, as seen by the host;

    `overhead` is `total` without the other parts. `fused` is the time of blocks that were one
    launch on a GPU: the host cannot separate their draft, target and verification. For other blocks
    on a GPU, work is only queued until its result is needed, so most of the wait counts as
    `verification`. For a row of a batch, all times are those during which the row was decoded,
    shared with other rows. `compilation` was spent before decoding, and is no part of `total`.
    """

    draft: float = 0.0
    target: float = 0.0
    verification: float = 0.0
    total: float = 0.0
    fused: float = 0.0
    compilation: float = 0.0

    @property
    def overhead(self) -> float:
        parts = self.draft + self.target + self.verification + self.fused
        return self.total - parts
