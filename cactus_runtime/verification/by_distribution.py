"""Blocks under rules that read whole distributions, in float64.

Away from the CPU, formulas that run in torch are evaluated on the device. All others run on the
host with numpy, which sorts faster there than torch. Agrees token for token with
`cactus_theory.specification.verify`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cactus_runtime.verification.acceptance import kept_prefix, probs_of
from cactus_runtime.verification.candidates import logprobs_of
from cactus_runtime.verification.charges import Charges, Limits, charged, limited
from cactus_runtime.verification.drawing import Recovery, draw_last_tokens
from cactus_runtime.verification.judgement import Judgement
from cactus_runtime.verification.reading import drafted_parts, log_normaliser
from cactus_runtime.verification.warp import Warp
from cactus_theory.emitted import emission_of, emission_sums
from cactus_theory.rules import CandidateRule, Rule, SharedRecoveryRule


def judge_by_distribution(
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
    """`judge` for any rule."""
    figures = 7 if ledger else 3
    table = target_logits.new_zeros(figures, *tokens.shape, dtype=torch.float64)
    for part in drafted_parts(tokens, draft_probs, target_logits, warp, dtype=torch.float64):
        draft, drafted = part.draft.double(), tokens[part.place].reshape(-1, 1)
        chosen = part.target.gather(-1, drafted).squeeze(-1)
        granted, charges = _granted(rule, draft, part.target, drafted, ledger)
        found = (chosen, granted, part.log_normaliser, *charges)
        for column, figure in zip(table, found, strict=True):
            column[part.place] = figure.view(column[part.place].shape)
    target_prob, boosted, normaliser = table[:3]
    charges, lossy = limited(Charges(*table[3:]) if ledger else None, limits)
    draft_prob = probs_of(tokens, draft_probs)
    if lossy is not None:
        boosted = torch.where(lossy, boosted, target_prob)
    accepted = kept_prefix(accept_uniforms * draft_prob < boosted, num_drafts)
    last_token = draw_last_tokens(
        _recovery(rule, tokens, accepted, lossy),
        tokens,
        accepted,
        draft_probs=draft_probs,
        target_logits=target_logits,
        uniforms=recover_uniforms,
        num_drafts=num_drafts,
        warp=warp,
    )
    normaliser = torch.cat([normaliser, log_normaliser(target_logits[:, tokens.shape[1] :])], -1)
    return Judgement(
        tokens=tokens,
        accepted=accepted,
        last_token=last_token,
        logprobs=logprobs_of(tokens, accepted, last_token, target_logits, normaliser),
        draft_prob=draft_prob,
        target_prob=target_prob,
        boosted=boosted,
        log_normaliser=normaliser,
        **charged(charges),
    )


def _on_device(rule: Rule, tensor: torch.Tensor) -> bool:
    return not tensor.is_cpu and rule.torch_ready and isinstance(rule, SharedRecoveryRule)


def _granted(
    rule: Rule,
    draft: torch.Tensor,
    target: torch.Tensor,
    drafted: torch.Tensor,
    ledger: bool,
) -> tuple[torch.Tensor, Charges | tuple[()]]:
    """The upper limits of u * p(n), and with a ledger the charges, at n positions."""
    on_device = _on_device(rule, target)
    xp: Any = torch if on_device else np
    p, q = (draft, target) if on_device else (_host(draft), _host(target))
    cost = None
    if isinstance(rule, CandidateRule):
        granted = rule.boost(_host(target.gather(-1, drafted).squeeze(-1)))
        if ledger:
            cost = emission_sums(rule, p, q, xp=xp)
    else:
        if ledger:
            kept, out = rule.accepted_and_emitted(p, q, xp=xp)
            cost = emission_of(kept, out, q, xp=xp)
        else:
            kept = rule.accepted_mass(p, q, xp=xp)
        granted = torch.as_tensor(kept, device=target.device).gather(-1, drafted).squeeze(-1)
    granted = torch.as_tensor(granted, device=target.device)
    if cost is None:
        return granted, ()
    rate, distance, divergence = (
        torch.as_tensor(figure, device=target.device)
        for figure in (cost.acceptance_rate, cost.total_variation, cost.kl_bound)
    )
    lossless = torch.minimum(draft, target).sum(-1)
    return granted, Charges(rate, lossless, distance, divergence)


def _recovery(
    rule: Rule, tokens: torch.Tensor, accepted: torch.Tensor, lossy: torch.Tensor | None
) -> Recovery:
    """The weights from which rows that rejected a token draw another one."""

    def recovery(rows: torch.Tensor, draft: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        at = accepted[rows].clamp(max=tokens.shape[1] - 1)
        if _on_device(rule, target):
            weights = rule.shared_weights(draft, target, xp=torch)  # type: ignore[attr-defined]
        else:
            sides = zip(tokens[rows, at].tolist(), _host(draft), _host(target), strict=True)
            found = np.stack([rule.recovery_weights(*side) for side in sides])
            weights = torch.as_tensor(found, device=target.device)
        if lossy is None:
            return weights
        plain = (target - draft).clamp(min=0.0)
        return torch.where(lossy[rows, at].unsqueeze(-1), weights, plain)

    return recovery


def _host(tensor: torch.Tensor) -> Any:
    return tensor.cpu().numpy()
