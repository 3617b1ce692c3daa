"""Blocks under rules that boost one candidate, in torch.

Every row of logits is read once: for its normaliser, its drafted token's probability and, if there
is a ledger, its position's charges. The row that the last token is drawn from is read again. Only a
few rows are processed at a time, so no temporary has the size of all logits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from cactus_runtime.verification.acceptance import accept, probs_of
from cactus_runtime.verification.charges import (
    CandidateCharges,
    Charges,
    Limits,
    charged,
    limited,
)
from cactus_runtime.verification.drawing import Recovery, draw_last_tokens
from cactus_runtime.verification.judgement import Judgement
from cactus_runtime.verification.reading import drafted_parts, log_normaliser
from cactus_runtime.verification.warp import Warp
from cactus_theory.rules import CandidateRule


class Figures(NamedTuple):
    """Results of one pass over all rows of a block.

    Attributes
    ----------
    target_prob : float64 tensor, shape (B, k)
        q(n) of every drafted token.
    log_normaliser : float64 tensor, shape (B, k + 1)
    charges : Charges of shape (B, k), or None
    """

    target_prob: torch.Tensor
    log_normaliser: torch.Tensor
    charges: Charges | None


def judge_candidates(
    rule: CandidateRule,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    accept_uniforms: torch.Tensor,
    recover_uniforms: torch.Tensor,
    num_drafts: torch.Tensor | None,
    limits: Limits | None,
    warp: Warp,
    ledger: bool = True,
) -> Judgement:
    """`judge` for a rule with a candidate, whose formulas run in torch."""
    found = figures(rule, tokens, draft_probs, target_logits, warp, ledger=ledger)
    charges, lossy = limited(found.charges, limits)
    draft_prob = probs_of(tokens, draft_probs)
    accepted, boosted = accept(
        rule,
        found.target_prob,
        draft_prob,
        accept_uniforms=accept_uniforms,
        num_drafts=num_drafts,
        lossy=lossy,
    )
    last_token = draw_last_tokens(
        _recovery(rule, tokens, accepted, found.target_prob, lossy),
        tokens,
        accepted,
        draft_probs=draft_probs,
        target_logits=target_logits,
        uniforms=recover_uniforms,
        num_drafts=num_drafts,
        warp=warp,
    )
    return Judgement(
        tokens=tokens,
        accepted=accepted,
        last_token=last_token,
        logprobs=logprobs_of(tokens, accepted, last_token, target_logits, found.log_normaliser),
        draft_prob=draft_prob,
        target_prob=found.target_prob,
        boosted=boosted,
        log_normaliser=found.log_normaliser,
        **charged(charges),
    )


def figures(
    rule: CandidateRule,
    tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    warp: Warp,
    *,
    ledger: bool,
) -> Figures:
    """Normalisers, probabilities of the drafted tokens, and with a ledger the charges."""
    charges, found = CandidateCharges(rule), []
    for part in drafted_parts(tokens, draft_probs, target_logits, warp):
        drafted = tokens[part.place].reshape(-1, 1)
        log_prob = part.logits.gather(-1, drafted).squeeze(-1).double() - part.log_sum
        found.append(torch.stack([log_prob.exp().clamp(max=1.0), part.log_normaliser]))
        if ledger:
            charges.add(part.draft, part.target, part.logits, part.log_sum)
    last = log_normaliser(target_logits[:, tokens.shape[1] :])
    if not found:
        empty = last.new_empty(tokens.shape)
        return Figures(empty, last, Charges(empty, empty, empty, empty) if ledger else None)
    target_prob, normaliser = (rows.view(tokens.shape) for rows in torch.cat(found, -1))
    total = Charges(*(row.view(tokens.shape) for row in charges.total())) if ledger else None
    return Figures(target_prob, torch.cat([normaliser, last], dim=-1), total)


def logprobs_of(
    tokens: torch.Tensor,
    accepted: torch.Tensor,
    last_token: torch.Tensor,
    target_logits: torch.Tensor,
    normaliser: torch.Tensor,
) -> torch.Tensor:
    """Log-probabilities of the emitted tokens under the target's own logits, shape (B, k + 1)."""
    emitted = torch.nn.functional.pad(tokens, (0, 1))
    emitted = emitted.scatter(-1, accepted.unsqueeze(-1), last_token.unsqueeze(-1))
    chosen = target_logits.gather(-1, emitted.unsqueeze(-1)).squeeze(-1)
    return chosen.double() - normaliser


def _recovery(
    rule: CandidateRule,
    tokens: torch.Tensor,
    accepted: torch.Tensor,
    target_prob: torch.Tensor,
    lossy: torch.Tensor | None,
) -> Recovery:
    """[shrink q - p]_+ of rows that rejected a token, and 0 at that token, which has g < p."""
    shrink = rule.shrink(target_prob, xp=torch)
    if lossy is not None:
        shrink = torch.where(lossy, shrink, 1.0)

    def recovery(rows: torch.Tensor, draft: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        at = accepted[rows].clamp(max=tokens.shape[1] - 1)
        residual = (shrink[rows, at].unsqueeze(-1) * target).sub_(draft).clamp_(min=0.0)
        return residual.scatter_(-1, tokens[rows, at].unsqueeze(-1), 0.0)

    return recovery
