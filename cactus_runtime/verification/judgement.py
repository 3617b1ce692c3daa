"""The result of verifying a block, and its packed form for one copy to the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from cactus_runtime.result.trace import Verdict
from cactus_runtime.verification.method import Method

_PER_DRAFT = ("draft_prob", "target_prob", "boosted")
_CHARGED = ("acceptance_rate", "total_variation", "kl_bound")


@dataclass(frozen=True)
class Judgement:
    """How B drafts of up to k tokens were judged.

    Attributes
    ----------
    tokens : int64 tensor, shape (B, k)
        The drafted tokens.
    accepted : int64 tensor, shape (B,)
        Drafted tokens kept, 0..k.
    last_token : int64 tensor, shape (B,)
        The recovered token (accepted < k) or the bonus token (accepted = k).
    logprobs : float64 tensor, shape (B, k + 1)
        Log-probability of each emitted token under the target's own logits, before the warp.
        Entries after the last token are undefined.
    draft_prob, target_prob, boosted : float64 tensors, shape (B, k)
        For every drafted token n: p(n), q(n), and g(n); n passes if u * p(n) < g(n).
    acceptance_rate, total_variation, kl_bound : float64 tensors, shape (B, k), or None
        For every drafted position: the chance that a token drafted there is kept, and the charges
        TV(out, q) and a bound of KL(out || q) in nats. None without a ledger.
    log_normaliser : float64 tensor, shape (B, k + 1)
        Log-sum-exp of the target's own logits; not finite where they give no distribution.
    emitted_logprobs, warped_logprobs : float64 tensors, shape (B, k + 1), or None
        If they were asked for: log-probabilities of each emitted token under the distribution it
        was drawn from, and under the target's after the warp. Entries after the last token are
        undefined.

    Examples
    --------
    >>> from cactus_runtime import judge
    >>> from cactus_theory import SpeculativeSampling
    >>> block = judge(
    ...     SpeculativeSampling(), torch.tensor([[0]]), draft_probs=torch.tensor([[[0.75, 0.25]]]),
    ...     target_logits=torch.zeros(1, 2, 2), accept_uniforms=torch.tensor([[0.7]]).double(),
    ...     recover_uniforms=torch.tensor([0.7]).double())
    >>> block.accepted.tolist(), block.last_token.tolist(), block.target_prob.tolist()
    ([0], [1], [[0.5]])
    """

    tokens: torch.Tensor
    accepted: torch.Tensor
    last_token: torch.Tensor
    logprobs: torch.Tensor
    draft_prob: torch.Tensor
    target_prob: torch.Tensor
    boosted: torch.Tensor
    acceptance_rate: torch.Tensor | None
    total_variation: torch.Tensor | None
    kl_bound: torch.Tensor | None
    log_normaliser: torch.Tensor
    emitted_logprobs: torch.Tensor | None = None
    warped_logprobs: torch.Tensor | None = None

    @property
    def emitted(self) -> torch.Tensor:
        """The drafts kept and the last token, shape (B, k + 1); what follows is undefined."""
        tokens = torch.nn.functional.pad(self.tokens, (0, 1))
        return tokens.scatter(-1, self.accepted.unsqueeze(-1), self.last_token.unsqueeze(-1))

    def packed(self) -> torch.Tensor:
        """Everything except the normalisers in one float64 tensor, for `unpacked`."""
        columns = [self.accepted.unsqueeze(-1), self.last_token.unsqueeze(-1), self.tokens]
        columns += [self.logprobs, *(getattr(self, name) for name in (*_PER_DRAFT, *_CHARGED))]
        columns += [self.emitted_logprobs, self.warped_logprobs]
        return torch.cat([column.double() for column in columns if column is not None], dim=-1)


@dataclass(frozen=True)
class RowJudgement:
    """The part of a `Judgement` that concerns one row, on the host.

    Attributes
    ----------
    tokens : list of int
        Accepted drafts and one more.
    accepted : int
    verdicts : list of Verdict
        One per drafted token, rejected ones included.
    logprobs : list of float
        Log-probabilities of `tokens` under the target itself.
    emitted_logprobs, warped_logprobs : list of float or None
        The same under what they were drawn from, and under the target's distribution after the
        warp; None if they were not asked for.
    empty_at : int or None
        The first position at which the processors left no token.
    """

    tokens: list[int]
    accepted: int
    verdicts: list[Verdict]
    logprobs: list[float]
    emitted_logprobs: list[float] | None = None
    warped_logprobs: list[float] | None = None
    empty_at: int | None = None

    @property
    def finite(self) -> bool:
        """False if logits that were used were not finite."""
        judged = [verdict.draft_prob for verdict in self.verdicts]
        return all(map(math.isfinite, [*self.logprobs, *judged]))


def unpacked(
    packed: Sequence[Sequence[float]], counts: Sequence[int], method: Method
) -> list[RowJudgement]:
    """Unpack rows of `Judgement.packed`, given the numbers of valid drafted tokens.

    `method` is that of the judgement.
    """
    rows = zip(packed, counts, strict=True)
    return [_row(numbers, count, method) for numbers, count in rows]


def _row(numbers: Sequence[float], count: int, method: Method) -> RowJudgement:
    figures = len(_PER_DRAFT) + len(_CHARGED) * method.ledger
    logs = 1 + 2 * method.emitted_logprobs
    k = (len(numbers) - 2 - logs) // (1 + figures + logs)
    columns = iter(numbers)

    def take(length: int) -> list[float]:
        return list(islice(columns, length))

    accepted, last = map(int, take(2))
    drafted = list(map(int, take(k)))
    logprobs = take(k + 1)
    judged = [take(k)[:count] for _ in range(figures)]
    others = [take(k + 1)[: accepted + 1] for _ in range(logs - 1)] or [None, None]
    return RowJudgement(
        tokens=[*drafted[:accepted], last],
        accepted=accepted,
        verdicts=[
            Verdict(token, *found) for token, *found in zip(drafted[:count], *judged, strict=True)
        ],
        logprobs=logprobs[: accepted + 1],
        emitted_logprobs=others[0],
        warped_logprobs=others[1],
    )
