"""Blocks under rules that boost one candidate, in torch.

Every row of logits is read once: for its normaliser, its drafted token's probability and its
position's charges. The row that the last token is drawn from is read again. A few rows are looked
at at a time, so that nothing of the size of the logits is ever made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from cactus_runtime.streams import inverse_cdf
from cactus_runtime.verification.acceptance import accept, probs_of
from cactus_runtime.verification.charges import Charges, Limits, candidate_charges, limited
from cactus_runtime.verification.judgement import Judgement
from cactus_runtime.verification.reading import drafted_parts, log_normaliser, most_rows
from cactus_runtime.verification.warp import Warp
from cactus_theory.rules import CandidateRule


class Figures(NamedTuple):
    """What one look at all rows of a block finds.

    Attributes
    ----------
    target_prob : float64 tensor, shape (B, k)
        q(n) of every drafted token.
    log_normaliser : float64 tensor, shape (B, k + 1)
    charges : Charges of shape (B, k)
    """

    target_prob: torch.Tensor
    log_normaliser: torch.Tensor
    charges: Charges


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
) -> Judgement:
    """`judge` for a rule with a candidate, whose formulas run in torch."""
    found = figures(rule, tokens, draft_probs, target_logits, warp)
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
    last_token = _draw(
        rule,
        tokens,
        accepted,
        found.target_prob,
        draft_probs=draft_probs,
        target_logits=target_logits,
        uniforms=recover_uniforms,
        num_drafts=num_drafts,
        lossy=lossy,
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
        acceptance_rate=charges.acceptance_rate,
        total_variation=charges.total_variation,
        kl_bound=charges.kl_bound,
        log_normaliser=found.log_normaliser,
    )


def figures(
    rule: CandidateRule,
    tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    warp: Warp,
) -> Figures:
    """Normalisers, probabilities of the drafted tokens, and charges."""
    batch, k = tokens.shape
    table = target_logits.new_zeros(6, batch, k, dtype=torch.float64)
    for part in drafted_parts(tokens, draft_probs, target_logits, warp):
        drafted = tokens[part.place].reshape(-1, 1)
        log_prob = part.logits.gather(-1, drafted).squeeze(-1).double() - part.log_sum
        charges = candidate_charges(rule, part.draft, part.target, part.logits, part.log_sum)
        found = (log_prob.exp(), part.log_normaliser, *charges)
        for column, figure in zip(table, found, strict=True):
            column[part.place] = figure.view(column[part.place].shape)
    target_prob, normaliser, *charges = table.unbind()
    last = log_normaliser(target_logits[:, k:])
    return Figures(
        target_prob.clamp(max=1.0), torch.cat([normaliser, last], dim=-1), Charges(*charges)
    )


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


def _draw(
    rule: CandidateRule,
    tokens: torch.Tensor,
    accepted: torch.Tensor,
    target_prob: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    uniforms: torch.Tensor,
    num_drafts: torch.Tensor | None,
    lossy: torch.Tensor | None,
    warp: Warp,
) -> torch.Tensor:
    """The recovered or bonus token of each row, from one row of probabilities in float64."""
    batch, k = tokens.shape
    rows = torch.arange(batch, device=tokens.device)
    first = accepted.clamp(max=max(k - 1, 0))
    shrink: Any = None
    if k:
        shrink = rule.shrink(target_prob[rows, first], xp=torch)
        if lossy is not None:
            shrink = torch.where(lossy[rows, first], shrink, 1.0)
        rejected = accepted < (k if num_drafts is None else num_drafts)
    drawn = []
    for part in rows.split(most_rows(target_logits)):
        logits = warp(target_logits[part, accepted[part]], part, accepted[part])
        weights = logits.softmax(-1, dtype=torch.float64)
        if k:
            draft = None if draft_probs is None else draft_probs[part, first[part]]
            residual = _residual(weights, shrink[part], draft, tokens[part, first[part]])
            # A residual can be empty by rounding only: then p = q, and q is drawn from.
            recovers = rejected[part].unsqueeze(-1) & (residual.sum(-1, keepdim=True) > 0)
            weights = torch.where(recovers, residual, weights)
        drawn.append(inverse_cdf(weights, uniforms[part]))
    return torch.cat(drawn)


def _residual(
    target: torch.Tensor, shrink: torch.Tensor, draft: torch.Tensor | None, token: torch.Tensor
) -> torch.Tensor:
    """[shrink q - p]_+ of each row, and 0 at its rejected token, which has g < p."""
    residual = shrink.unsqueeze(-1) * target
    if draft is not None:
        residual = residual.sub_(draft).clamp_(min=0.0)
    return residual.scatter_(-1, token.unsqueeze(-1), 0.0)
