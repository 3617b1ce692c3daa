"""The last token of each row: recovered after a rejection, or the bonus after none."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cactus_runtime.streams import draw_tokens
from cactus_runtime.verification.reading import most_rows
from cactus_runtime.verification.warp import Warp

Recovery = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def draw_last_tokens(
    recovery: Recovery,
    tokens: torch.Tensor,
    accepted: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    uniforms: torch.Tensor,
    num_drafts: torch.Tensor | None,
    warp: Warp,
) -> torch.Tensor:
    """One token of each row, int64 of shape (B,), from one row of probabilities in float64.

    Parameters
    ----------
    recovery : callable (rows, draft, target) -> weights
        Unnormalised recovery distributions of shape (n, V), for rows of the batch, shape (n,),
        and their two distributions at the rejected position.
    tokens, draft_probs, target_logits, num_drafts, warp
        As for `judge`.
    accepted : int64 tensor, shape (B,)
    uniforms : float64 tensor, shape (B,)
    """
    batch, k = tokens.shape
    rejected = accepted < (k if num_drafts is None else num_drafts)
    drawn = []
    for rows in torch.arange(batch, device=tokens.device).split(most_rows(target_logits)):
        place = accepted[rows]
        logits = warp(target_logits[rows, place], rows, place)
        weights = target = logits.softmax(-1, dtype=torch.float64)
        if k:
            at = place.clamp(max=k - 1)
            if draft_probs is None:
                draft = torch.zeros_like(target).scatter_(-1, tokens[rows, at].unsqueeze(-1), 1.0)
            else:
                draft = draft_probs[rows, at].double()
            residual = recovery(rows, draft, target)
            # A residual is empty only by rounding: then p = q, and q is drawn from.
            recovers = rejected[rows].unsqueeze(-1) & (residual.sum(-1, keepdim=True) > 0)
            weights = torch.where(recovers, residual, target)
        drawn.append(draw_tokens(weights, uniforms[rows]))
    return torch.cat(drawn)
