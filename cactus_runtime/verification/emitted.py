"""The distribution that a position emits: whole rows, and log-probabilities of a block's tokens.

In float64. On a CPU the theory's numpy formulas run, elsewhere torch formulas that make no decision
on the host.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

from cactus_runtime.verification.judgement import Judgement
from cactus_runtime.verification.reading import Part, drafted_parts, most_rows
from cactus_runtime.verification.warp import Warp
from cactus_theory.emitted import accepted_and_emitted
from cactus_theory.rules import CandidateRule, Rule


def emitted_rows(
    rule: Rule, draft: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mass accepted, and the distribution emitted, at n positions; both of shape (n, V).

    Parameters
    ----------
    rule : Rule
    draft, target : float64 tensors, shape (n, V)
        p and q.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> p, q = torch.tensor([[0.75, 0.25]]).double(), torch.tensor([[0.5, 0.5]]).double()
    >>> emitted_rows(Cactus(0.02), p, q)[1]
    tensor([[0.6000, 0.4000]], dtype=torch.float64)
    """
    candidates = isinstance(rule, CandidateRule)
    if candidates and rule.lossless:
        return torch.minimum(draft, target), target
    if rule.torch_ready and not draft.is_cpu:
        if not candidates:
            return rule.accepted_and_emitted(draft, target, xp=torch)
        kept = rule.accepted_mass(draft, target, xp=torch)
        return kept, by_candidates(rule, draft, target, kept)
    found = accepted_and_emitted(rule, draft.cpu().numpy(), target.cpu().numpy())
    kept, out = (torch.as_tensor(rows, device=target.device) for rows in found)
    return kept, out


def by_candidates(
    rule: CandidateRule, draft: torch.Tensor, target: torch.Tensor, kept: torch.Tensor
) -> torch.Tensor:
    r"""Emitted distribution of a rule with candidates, from the mass accepted, in O(V log V).

    With t = p/q, c_n = (1-g(n))/(1-q(n)) and w(n) the mass rejected at n,

        out(x) = min(p, g)(x) + q(x) sum_n w(n) [c_n - t(x)]_+ / Z(c_n),
        Z(c) = sum_x q(x) [c - t(x)]_+.

    Levels c_n and ratios t are sorted together. Z is summed from each to the next, upwards, and
    then the factor of q, downwards, so that every term is non-negative.

    Parameters
    ----------
    rule : CandidateRule
        Whose `shrink` runs in torch.
    draft, target, kept : float64 tensors, shape (n, V)
        p, q and min(p, g).
    """
    lost = draft - kept
    level = torch.where(lost > 0, rule.shrink(target, xp=torch), 0.0)
    under = draft < target
    ratio = torch.where(under, draft, 1.0) / torch.where(under, target, 1.0)
    point, order = torch.cat([ratio, level], dim=-1).sort(-1)
    mass = torch.cat([target, torch.zeros_like(target)], dim=-1).gather(-1, order)
    loss = torch.cat([torch.zeros_like(lost), lost], dim=-1).gather(-1, order)
    gap = point.diff(dim=-1)
    total = pad((mass.cumsum(-1)[..., :-1] * gap).cumsum(-1), (1, 0))
    empty = total <= 0  # by rounding only: then q is drawn from
    share = torch.where(empty, 0.0, loss) / torch.where(empty, 1.0, total)
    factor = pad(_sum_from(_sum_from(share)[..., 1:] * gap), (0, 1))
    factor = torch.empty_like(factor).scatter_(-1, order, factor)[..., : target.shape[-1]]
    stray = torch.where(empty, loss, 0.0).sum(-1, keepdim=True)
    return kept + target * (factor + stray)


def _sum_from(terms: torch.Tensor) -> torch.Tensor:
    """Sums of each term and all after it."""
    return terms.flip(-1).cumsum(-1).flip(-1)


def emitted_logprobs(
    rule: Rule,
    judgement: Judgement,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    num_drafts: torch.Tensor | None,
    warp: Warp,
    lossy: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Log-probabilities of a block's tokens under what they were drawn from, and under q.

    Parameters
    ----------
    rule : Rule
    judgement : Judgement
        Of this block.
    draft_probs, target_logits, num_drafts, warp
        As for `judge`.
    lossy : bool tensor, shape (B, k), or None
        Where the rule was applied. None: everywhere.

    Returns
    -------
    dict of str to float64 tensor, shape (B, k + 1)
        The fields `emitted_logprobs` and `warped_logprobs` of `Judgement`.
    """
    tokens, k = judgement.emitted, judgement.tokens.shape[1]
    lossless = isinstance(rule, CandidateRule) and rule.lossless
    last = judgement.accepted.unsqueeze(-1)
    place = torch.arange(k, device=last.device)
    drawn = place <= last  # positions of the block that the text reaches
    if num_drafts is not None:
        drawn = drawn & (place < num_drafts.unsqueeze(-1))
    if lossy is not None:
        drawn = drawn & lossy
    warped = _of_bonus(tokens, target_logits, warp)
    emitted = warped.clone()
    for part in drafted_parts(
        judgement.tokens, draft_probs, target_logits, warp, dtype=torch.float64
    ):
        token = tokens[part.place].reshape(-1, 1)
        own = (part.logits.gather(-1, token).squeeze(-1).double() - part.log_sum).view(
            warped[part.place].shape
        )
        warped[part.place] = emitted[part.place] = own
        if not lossless:
            wanted = drawn[part.place]
            out = _at_tokens(rule, part, token, wanted.reshape(-1)).log().view(own.shape)
            emitted[part.place] = torch.where(wanted, out, own)
    return {"emitted_logprobs": emitted, "warped_logprobs": warped}


def _at_tokens(rule: Rule, part: Part, token: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """out(x) of one token at each of n positions; on a CPU only where it is wanted."""
    draft, target = part.draft, part.target
    if not draft.is_cpu:
        return emitted_rows(rule, draft.double(), target)[1].gather(-1, token).squeeze(-1)
    found = torch.ones(len(token), dtype=torch.float64)
    p, q = (rows.gather(-1, token).squeeze(-1).double() for rows in (draft, target))
    if isinstance(rule, CandidateRule):  # where p > q, out = min(p, g) is no sum over tokens
        raised = p > q
        kept: Any = rule.accepted_mass(p[raised].numpy(), q[raised].numpy())
        found[raised] = torch.as_tensor(kept)
        wanted = wanted & ~raised
    rows = wanted.nonzero().squeeze(-1)
    if len(rows):
        out = emitted_rows(rule, draft[rows].double(), target[rows])[1]
        found[rows] = out.gather(-1, token[rows]).squeeze(-1)
    return found


def _of_bonus(tokens: torch.Tensor, target_logits: torch.Tensor, warp: Warp) -> torch.Tensor:
    """log q of the token after all drafts, in the last column of shape (B, k + 1)."""
    batch, length = tokens.shape
    found = target_logits.new_zeros(batch, length, dtype=torch.float64)
    for rows in torch.arange(batch, device=tokens.device).split(most_rows(target_logits)):
        logits = warp(target_logits[rows, -1], rows, torch.full_like(rows, length - 1))
        logs = logits.log_softmax(-1, dtype=torch.float64)
        found[rows, -1] = logs.gather(-1, tokens[rows, -1:]).squeeze(-1)
    return found
