"""Acceptance rates and charges of verified positions, under rules that boost one candidate.

Exact sums over the vocabulary, given the two distributions, in float64. On a CPU and over a
large vocabulary, the many tokens that the rule keeps for certain are summed in the precision of the
logits instead. On other devices the host decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from cactus_runtime.verification.reading import precision
from cactus_theory.emitted import emission_sums, spent_on
from cactus_theory.rules import CandidateRule, Rule

_CERTAIN = 1 - 1e-5  # of a squared gain: more than the roundings of float32
_MANY = 64  # if more than one token in so many is not certain, all are summed in float64


class Charges(NamedTuple):
    """Sums over the vocabulary at n positions, float64 tensors of shape (n,).

    Attributes
    ----------
    acceptance_rate : tensor
        sum_x min(p, g): the chance that a token drafted here is kept.
    lossless_acceptance_rate : tensor
        sum_x min(p, q): the same under plain speculative sampling.
    total_variation, kl_bound : tensor
        The charges: TV(out, q), and a bound of KL(out || q) in nats.
    """

    acceptance_rate: torch.Tensor
    lossless_acceptance_rate: torch.Tensor
    total_variation: torch.Tensor
    kl_bound: torch.Tensor


Limits = Callable[[Charges], torch.Tensor]


def charged(charges: Charges | None) -> dict[str, torch.Tensor | None]:
    """The fields of a `Judgement` that only a ledger needs."""
    names = ("acceptance_rate", "total_variation", "kl_bound")
    return {name: charges and getattr(charges, name) for name in names}


def limited(
    charges: Charges | None, limits: Limits | None
) -> tuple[Charges | None, torch.Tensor | None]:
    """The charges where only some positions of each row may be lossy, and which those are.

    Parameters
    ----------
    charges : Charges of shape (B, k), or None
    limits : callable, optional
        Maps the charges to the number of lossy positions of each row, shape (B,).

    Returns
    -------
    (Charges or None, bool tensor of shape (B, k) or None)
        The second is None where every position may be lossy.
    """
    if charges is None or limits is None:
        return charges, None
    rate, lossless, distance, divergence = charges
    lossy = torch.arange(rate.shape[1], device=rate.device) < limits(charges).unsqueeze(-1)
    zero = torch.zeros_like(rate)
    rate = torch.where(lossy, rate, lossless)
    distance = torch.where(lossy, distance, zero)
    return Charges(rate, lossless, distance, torch.where(lossy, divergence, zero)), lossy


class CandidateCharges:
    """Charges of positions that are added part by part, under a rule that boosts one candidate.

    On a CPU and over a large vocabulary, a token with p > q and (p - q)^2 < c q (1 - q), c being
    the rule's `chi_square_floor`, is kept for certain: its g is at least p. For practical budgets
    few other tokens have p > q. The rule is asked about those of all positions at once.
    """

    def __init__(self, rule: CandidateRule) -> None:
        self._rule = rule
        self._sums: list[Charges] = []
        self._uncertain: list[tuple[np.ndarray, np.ndarray]] = []

    def add(
        self,
        draft: torch.Tensor,
        target: torch.Tensor,
        logits: torch.Tensor,
        log_sum: torch.Tensor,
    ) -> None:
        """Add n positions.

        Parameters
        ----------
        draft, target : tensors, shape (n, V)
            The two distributions.
        logits : tensor, shape (n, V)
            Of which `target` is the softmax.
        log_sum : float64 tensor, shape (n,)
            Their log-sum-exp.
        """
        if self._rule.lossless:
            kept = _overlap(draft, target)
            self._sums.append(Charges(kept, kept, torch.zeros_like(kept), torch.zeros_like(kept)))
        elif (
            draft.is_cpu and precision(draft.shape[-1]) is None and self._rule.chi_square_floor > 0
        ):
            for row in zip(draft, target, logits, log_sum, strict=True):
                sums, *uncertain = _by_certainty(self._rule, *row)
                self._sums.append(sums)
                self._uncertain.append((uncertain[0], uncertain[1]))
        else:
            target = logits.softmax(-1, dtype=torch.float64)
            self._sums.append(dense_charges(self._rule, draft, target))

    def total(self) -> Charges:
        """The charges of all positions, in the order in which they were added."""
        sums = Charges(*(torch.cat(parts) for parts in zip(*self._sums, strict=True)))
        if not self._uncertain:
            return sums
        p, q = (np.concatenate(parts) for parts in zip(*self._uncertain, strict=True))
        counts = [len(few) for few, _ in self._uncertain]
        place = np.repeat(np.arange(len(counts)), counts)
        kept = self._rule.accepted_mass(p, q)
        spent = spent_on(kept, q, xp=np)
        # Summed one after the other, so that a position's charges do not depend on the others.
        more = (
            torch.from_numpy(np.bincount(place, weights=terms, minlength=len(counts)))
            for terms in (kept - p, kept - q, spent)
        )
        rate, distance, divergence = more
        return Charges(
            (sums.acceptance_rate + rate).clamp_(0.0, 1.0),
            sums.lossless_acceptance_rate.clamp(0.0, 1.0),
            sums.total_variation + distance,
            sums.kl_bound + divergence,
        )


def dense_charges(rule: Rule, draft: torch.Tensor, target: torch.Tensor) -> Charges:
    """Charges at n positions, by float64 formulas over whole rows; any rule."""
    draft, target = draft.double(), target.double()
    lossless = _overlap(draft, target)
    if draft.is_cpu:
        found = emission_sums(rule, draft.numpy(), target.numpy(), xp=np)
    else:
        found = emission_sums(rule, draft, target, xp=torch)
    sums = (found.acceptance_rate, found.total_variation, found.kl_bound)
    rate, distance, divergence = (torch.as_tensor(figure) for figure in sums)
    return Charges(rate, lossless, distance, divergence)


def _overlap(draft: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """sum_x min(p, q) at n positions, each summed in the same order for every n."""
    dtype = precision(draft.shape[-1]) or draft.dtype
    common = torch.minimum(draft.to(dtype), target.to(dtype))
    if draft.is_cpu and dtype == torch.float64:
        return torch.from_numpy(common.numpy().sum(axis=-1)).clamp(max=1.0)
    return common.sum(-1).double().clamp(max=1.0)


def _by_certainty(
    rule: CandidateRule,
    p: torch.Tensor,
    q: torch.Tensor,
    logits: torch.Tensor,
    log_sum: torch.Tensor,
) -> tuple[Charges, np.ndarray, np.ndarray]:
    """Sums at one position as if every uncertain token were kept too, without what those cost.

    And p and q of the uncertain tokens, in float64. If they are many, there are none, and the sums
    are complete.
    """
    if q.dtype != p.dtype:
        q, logits = (part.to(torch.promote_types(q.dtype, p.dtype)) for part in (q, logits))
    gain = (p - q).clamp_(min=0.0)  # within S = {p > q}
    whole = p.sum().double()
    lossless = whole - gain.sum().double()
    floor = _CERTAIN * rule.chi_square_floor
    excess = torch.addcmul(q, q, q, value=-1).mul_(-floor).addcmul_(gain, gain)
    few = torch.from_numpy(np.flatnonzero(excess.numpy() > 0.0))  # much faster than torch's own
    if len(few) * _MANY > gain.numel():
        target = logits.softmax(-1, dtype=torch.float64)
        return dense_charges(rule, p[None], target[None]), np.empty(0), np.empty(0)
    gain[few] = 0.0
    distance = gain.sum().double()
    torch.clamp(q, min=torch.finfo(q.dtype).tiny, out=excess)
    divergence = gain.div_(excess).log1p_().mul_(p).sum().double()
    few_p = p[few].double().numpy()
    few_q = (logits[few].double() - log_sum).exp().numpy()
    sums = Charges(*(part[None] for part in (whole, lossless, distance, divergence)))
    return sums, few_p, few_q
