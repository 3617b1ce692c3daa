"""Blocks under any other rule: by whole distributions, in float64, on the host.

Agrees token for token with `cactus_theory.specification.verify`, whose steps these are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cactus_runtime.verification.acceptance import kept_prefix, probs_of
from cactus_runtime.verification.candidates import logprobs_of
from cactus_runtime.verification.charges import Charges, Limits, limited
from cactus_runtime.verification.judgement import Judgement
from cactus_runtime.verification.reading import drafted_parts, log_normaliser
from cactus_runtime.verification.warp import Warp
from cactus_theory.emitted import Emission, emission_of, emission_sums
from cactus_theory.rules import CandidateRule, Rule, SpeculativeSampling
from cactus_theory.specification import inverse_cdf


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
) -> Judgement:
    """`judge` for any rule, by the numpy formulas of the theory."""
    batch, k = tokens.shape
    table = torch.zeros(7, batch, k, dtype=torch.float64)
    for part in drafted_parts(tokens, draft_probs, target_logits, warp, dtype=torch.float64):
        p, q = (_host(side) for side in (part.draft, part.target))
        drafted = tokens[part.place].reshape(-1, 1).cpu().numpy()
        granted, cost = _granted(rule, p, q, drafted)
        lossless = np.minimum(p, q).sum(axis=-1)
        chosen = np.take_along_axis(q, drafted, axis=-1)[:, 0]
        charges = (cost.acceptance_rate, lossless, cost.total_variation, cost.kl_bound)
        found = (chosen, granted, part.log_normaliser, *charges)
        for column, figure in zip(table, found, strict=True):
            column[part.place] = torch.as_tensor(figure).view(column[part.place].shape)
    table = table.to(tokens.device)
    target_prob, boosted, normaliser = table[:3]
    charges, lossy = limited(Charges(*table[3:]), limits)
    draft_prob = probs_of(tokens, draft_probs)
    if lossy is not None:
        boosted = torch.where(lossy, boosted, target_prob)
    accepted = kept_prefix(accept_uniforms * draft_prob < boosted, num_drafts)
    counts = torch.full_like(accepted, k) if num_drafts is None else num_drafts
    drawn = [
        _drawn(
            rule if lossy is None or j == k or lossy[i, j] else SpeculativeSampling(),
            None if j >= count else int(tokens[i, j]),
            None if draft_probs is None or j == k else _host(draft_probs[i, j]),
            warp(target_logits[i, j : j + 1], torch.tensor([i]), torch.tensor([j])),
            float(recover_uniforms[i]),
        )
        for i, (j, count) in enumerate(zip(accepted.tolist(), counts.tolist(), strict=True))
    ]
    last_token = torch.tensor(drawn, device=tokens.device)
    normaliser = torch.cat([normaliser, log_normaliser(target_logits[:, k:])], dim=-1)
    return Judgement(
        tokens=tokens,
        accepted=accepted,
        last_token=last_token,
        logprobs=logprobs_of(tokens, accepted, last_token, target_logits, normaliser),
        draft_prob=draft_prob,
        target_prob=target_prob,
        boosted=boosted,
        acceptance_rate=charges.acceptance_rate,
        total_variation=charges.total_variation,
        kl_bound=charges.kl_bound,
        log_normaliser=normaliser,
    )


def _granted(
    rule: Rule, p: np.ndarray, q: np.ndarray, drafted: np.ndarray
) -> tuple[np.ndarray, Emission]:
    """What u * p(n) must stay below, and the charges, at n positions."""
    if isinstance(rule, CandidateRule):
        chosen = np.take_along_axis(q, drafted, axis=-1)[:, 0]
        return rule.boost(chosen), emission_sums(rule, p, q, xp=np)
    kept, out = rule.accepted_and_emitted(p, q)
    return np.take_along_axis(kept, drafted, axis=-1)[:, 0], emission_of(kept, out, q, xp=np)


def _drawn(
    rule: Rule,
    rejected: int | None,
    draft: np.ndarray | None,
    logits: torch.Tensor,
    uniform: float,
) -> int:
    """The token recovered after `rejected`, or the bonus token where it is None."""
    target = _host(logits[0].softmax(-1, dtype=torch.float64))
    weights = target
    if rejected is not None:
        if draft is None:
            draft = np.zeros(len(target))
            draft[rejected] = 1.0
        recovery = rule.recovery_weights(rejected, draft, target)
        weights = recovery if recovery.sum() > 0 else target  # empty by rounding only: p = q
    return inverse_cdf(weights, uniform)


def _host(tensor: torch.Tensor) -> Any:
    return tensor.to("cpu", torch.float64).numpy()
