"""Which drafted tokens are kept, given their probabilities; and checks of a block's shapes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cactus_theory.rules import CandidateRule


def accept(
    rule: CandidateRule,
    target_prob: torch.Tensor,
    draft_prob: torch.Tensor,
    *,
    accept_uniforms: torch.Tensor,
    num_drafts: torch.Tensor | None,
    lossy: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Drafted tokens kept of each row, shape (B,), and g(n) of all, shape (B, k).

    Parameters
    ----------
    rule : CandidateRule
    target_prob, draft_prob : float64 tensors, shape (B, k)
        q(n) and p(n) of every drafted token n.
    accept_uniforms : float64 tensor, shape (B, k)
    num_drafts : int64 tensor, shape (B,), or None
        Valid drafted tokens of each row; None: all.
    lossy : bool tensor, shape (B, k), or None
        Where the rule applies; elsewhere g = q. None: everywhere.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> half = torch.full((1, 2), 0.5, dtype=torch.float64)
    >>> accept(SpeculativeSampling(), half, torch.ones_like(half), accept_uniforms=half - 0.1,
    ...        num_drafts=None, lossy=None)[0]
    tensor([2])
    """
    boosted = rule.boost(target_prob, xp=torch)
    if lossy is not None:
        boosted = torch.where(lossy, boosted, target_prob)
    passes = accept_uniforms * draft_prob < boosted
    return kept_prefix(passes, num_drafts), boosted


def kept_prefix(passes: torch.Tensor, num_drafts: torch.Tensor | None) -> torch.Tensor:
    """Number of drafted tokens before the first that does not pass or is padding.

    Examples
    --------
    >>> kept_prefix(torch.tensor([[True, False, True], [True, True, True]]), torch.tensor([3, 2]))
    tensor([1, 2])
    """
    if num_drafts is not None:
        places = torch.arange(passes.shape[1], device=passes.device)
        passes = passes & (places < num_drafts.unsqueeze(-1))
    return passes.long().cumprod(-1).sum(-1)


def probs_of(tokens: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
    """p(n) of every drafted token, float64 of shape (B, k); 1 where the draft was one-hot."""
    if draft_probs is None:
        return torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)
    return draft_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).double()


def check_shapes(
    tokens: torch.Tensor, target_logits: torch.Tensor, others: Mapping[str, torch.Tensor | None]
) -> None:
    """Raise ValueError naming the first tensor whose shape does not fit those of tokens, (B, k)."""
    if tokens.ndim != 2:
        raise ValueError(f"tokens must have shape (B, k), got {tuple(tokens.shape)}")
    batch, k = tokens.shape
    if target_logits.ndim != 3 or target_logits.shape[:2] != (batch, k + 1):
        raise ValueError(
            f"target_logits must have shape ({batch}, {k + 1}, V), got {tuple(target_logits.shape)}"
        )
    wanted = {
        "draft_probs": (batch, k, target_logits.shape[-1]),
        "accept_uniforms": (batch, k),
        "recover_uniforms": (batch,),
        "num_drafts": (batch,),
    }
    for name, tensor in others.items():
        if tensor is not None and tuple(tensor.shape) != wanted[name]:
            raise ValueError(f"{name} must have shape {wanted[name]}, got {tuple(tensor.shape)}")
