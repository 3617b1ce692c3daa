"""Block verification: all drafts of a block together, never fewer tokens, the same emitted rows.

For ordered rules, in float64 torch; whole rows of the emitted distribution are held. Agrees token
for token with `cactus_theory.verify_block`.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from cactus_runtime.verification.acceptance import probs_of
from cactus_runtime.verification.candidates import logprobs_of
from cactus_runtime.verification.charges import Charges, Limits, charged, dense_charges, limited
from cactus_runtime.verification.drawing import Recovery, draw_last_tokens
from cactus_runtime.verification.emitted import emitted_rows
from cactus_runtime.verification.judgement import Judgement
from cactus_runtime.verification.reading import drafted_parts, log_normaliser
from cactus_runtime.verification.warp import Warp
from cactus_theory.emitted import emission_of
from cactus_theory.rules import CandidateRule, Rule


def judge_as_block(
    rule: Rule,
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
    """`judge` with ``verification="block"``.

    Given that the drafts before it are kept, token n is drafted and kept with probability
    p(n) s_i / s_(i-1), in the notation of `cactus_theory.block_verification`, and some token
    is with 1 - S_(i-1) / s_(i-1). These are the judgement's `boosted` and `acceptance_rate`. The
    first may exceed p(n), because earlier drafts are kept more often if n follows them.
    """
    batch, k = tokens.shape
    out = target_logits.new_empty(*tokens.shape, target_logits.shape[-1], dtype=torch.float64)
    table = target_logits.new_zeros(6 if ledger else 2, batch, k, dtype=torch.float64)
    for part in drafted_parts(tokens, draft_probs, target_logits, warp, dtype=torch.float64):
        draft, drafted = part.draft.double(), tokens[part.place].reshape(-1, 1)
        kept, rows = emitted_rows(rule, draft, part.target)
        out[part.place] = rows.view(out[part.place].shape)
        found = (
            part.target.gather(-1, drafted).squeeze(-1),
            part.log_normaliser,
            *(_charges(rule, draft, part.target, kept, rows) if ledger else ()),
        )
        for column, figure in zip(table, found, strict=True):
            column[part.place] = figure.view(column[part.place].shape)
    charges, lossy = limited(Charges(*table[2:]) if ledger else None, limits)
    if lossy is not None:
        for part in drafted_parts(tokens, draft_probs, target_logits, warp, dtype=torch.float64):
            own = out[part.place]
            plain = part.target.view(own.shape)
            out[part.place] = torch.where(lossy[part.place].unsqueeze(-1), own, plain)

    draft_prob = probs_of(tokens, draft_probs)
    survival, missing = _survival(tokens, draft_probs, draft_prob, out)
    accepted = _accepted(survival, missing, accept_uniforms, num_drafts)
    last_token = draw_last_tokens(
        _recovery(accepted, survival, out),
        tokens,
        accepted,
        draft_probs=draft_probs,
        target_logits=target_logits,
        uniforms=recover_uniforms,
        num_drafts=num_drafts,
        warp=warp,
    )
    normaliser = torch.cat([table[1], log_normaliser(target_logits[:, k:])], -1)
    reached = survival[:, :-1]
    divisor = torch.where(reached > 0, reached, 1.0)
    if charges is not None:
        rate = (1 - missing / divisor).clamp(0.0, 1.0)
        charges = charges._replace(acceptance_rate=rate)
    return Judgement(
        tokens=tokens,
        accepted=accepted,
        last_token=last_token,
        logprobs=logprobs_of(tokens, accepted, last_token, target_logits, normaliser),
        draft_prob=draft_prob,
        target_prob=table[0],
        boosted=draft_prob * survival[:, 1:] / divisor,
        log_normaliser=normaliser,
        **charged(charges),
    )


def _charges(
    rule: Rule, draft: torch.Tensor, target: torch.Tensor, kept: torch.Tensor, out: torch.Tensor
) -> Charges:
    if isinstance(rule, CandidateRule):
        return dense_charges(rule, draft, target)
    cost = emission_of(kept, out, target, xp=torch)
    lossless = torch.minimum(draft, target).sum(-1)
    return Charges(cost.acceptance_rate, lossless, cost.total_variation, cost.kl_bound)


def _survival(
    tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_prob: torch.Tensor,
    out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """s_0 ... s_k, shape (B, k + 1), and S_0 ... S_(k-1), shape (B, k)."""
    chosen = out.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    possible = draft_prob > 0
    ratio = torch.where(possible, chosen, 0.0) / torch.where(possible, draft_prob, 1.0)
    survival = [out.new_ones(len(tokens))]
    missing = []
    for i in range(tokens.shape[1]):
        residual = survival[i].unsqueeze(-1) * out[:, i]
        if draft_probs is None:
            residual.scatter_add_(-1, tokens[:, i : i + 1], -torch.ones_like(residual[:, :1]))
        else:
            residual -= draft_probs[:, i]
        missing.append(residual.clamp_(min=0.0).sum(-1))
        survival.append((survival[i] * ratio[:, i]).clamp(max=1.0))
    return torch.stack(survival, -1), torch.stack(missing, -1) if missing else ratio


def _accepted(
    survival: torch.Tensor,
    missing: torch.Tensor,
    uniforms: torch.Tensor,
    num_drafts: torch.Tensor | None,
) -> torch.Tensor:
    """Drafts kept: the largest i with u_i (S_i + 1 - s_i) < S_i, or u_i < s_i at the last."""
    k = missing.shape[1]
    number = torch.arange(1, k + 1, device=missing.device)
    count = k if num_drafts is None else num_drafts.unsqueeze(-1)
    after = survival[:, 1:]
    later = pad(missing[:, 1:], (0, min(k, 1)))
    last = number == count
    passes = torch.where(last, uniforms, uniforms * (later + 1 - after))
    kept = (passes < torch.where(last, after, later)) & (number <= count)
    return pad(number * kept, (1, 0)).amax(-1)


def _recovery(accepted: torch.Tensor, survival: torch.Tensor, out: torch.Tensor) -> Recovery:
    """[s out - p]_+ of rows that did not keep all drafts; out where that is empty by rounding."""

    def recovery(rows: torch.Tensor, draft: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        at = accepted[rows].clamp(max=out.shape[1] - 1)
        own = out[rows, at]
        residual = (survival[rows, at].unsqueeze(-1) * own - draft).clamp(min=0.0)
        return torch.where(residual.sum(-1, keepdim=True) > 0, residual, own)

    return recovery
