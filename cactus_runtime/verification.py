"""The verification of one block in torch, from logits, with its uniforms as arguments.

Agrees token for token with `cactus_theory.specification.verify`. Of the target it computes one
log-sum-exp per row and one gathered value per drafted token; a full row of probabilities only at
the row from which a recovered or bonus token is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cactus_runtime.random import inverse_cdf
from cactus_theory.laws import Emission, emission_sums
from cactus_theory.rules import CandidateRule


@dataclass(frozen=True)
class Verification:
    """Outcome of a batch of blocks.

    Attributes
    ----------
    accepted : int64 tensor, shape (B,)
        Drafted tokens kept, 0..k.
    last_token : int64 tensor, shape (B,)
        The recovered token (accepted < k) or the bonus token (accepted = k).
    """

    accepted: torch.Tensor
    last_token: torch.Tensor


def verify(
    rule: CandidateRule,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    accept_uniforms: torch.Tensor,
    recover_uniforms: torch.Tensor,
    lossy: torch.Tensor | None = None,
) -> Verification:
    """Keep a prefix of each row's drafted tokens and draw one more token.

    Parameters
    ----------
    rule : CandidateRule
    tokens : int64 tensor, shape (B, k)
        Drafted tokens; k may be 0.
    draft_probs : tensor, shape (B, k, V), or None
        The laws the tokens were drawn from; None means one-hot on the tokens.
    target_logits : floating tensor, shape (B, k + 1, V)
        After temperature and filters; -inf excludes a token. At least float32.
    accept_uniforms : float64 tensor, shape (B, k)
    recover_uniforms : float64 tensor, shape (B,)
    lossy : bool tensor, shape (B, k), optional
        Where the rule applies; elsewhere the position is verified by plain speculative sampling.
        Default everywhere.

    Returns
    -------
    Verification
        Without a host synchronisation.

    Raises
    ------
    ValueError
        If the shapes do not fit.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> block = verify(
    ...     Cactus(0.5), torch.tensor([[1]]), draft_probs=torch.tensor([[[0.5, 0.5]]]),
    ...     target_logits=torch.tensor([[[0.0, 0.0], [0.0, -torch.inf]]]),
    ...     accept_uniforms=torch.tensor([[0.3]]).double(),
    ...     recover_uniforms=torch.tensor([0.3]).double())
    >>> block.accepted.tolist(), block.last_token.tolist()
    ([1], [0])
    """
    _check_shapes(tokens, draft_probs, target_logits, accept_uniforms, recover_uniforms, lossy)
    batch, num_drafts = tokens.shape
    rows = torch.arange(batch, device=tokens.device)
    if num_drafts == 0:
        bonus = inverse_cdf(target_logits[:, 0].double().softmax(-1), recover_uniforms)
        return Verification(torch.zeros_like(rows), bonus)

    index = tokens.unsqueeze(-1)
    drafted_logits = target_logits[:, :-1]
    # Relative to the row's peak: a log-sum-exp near 1e6 would swallow log V in float32.
    drafted_logits = drafted_logits - drafted_logits.amax(-1, keepdim=True)
    log_prob = drafted_logits.gather(-1, index).squeeze(-1) - drafted_logits.logsumexp(-1)
    target_prob = log_prob.double().exp().clamp(max=1.0)
    if draft_probs is None:
        draft_prob = torch.ones_like(target_prob)
    else:
        draft_prob = draft_probs.gather(-1, index).squeeze(-1).double()
    boosted = rule.boost(target_prob, xp=torch)
    if lossy is not None:
        boosted = torch.where(lossy, boosted, target_prob)
    passes = accept_uniforms * draft_prob < boosted
    accepted = passes.long().cumprod(-1).sum(-1)

    first = accepted.clamp(max=num_drafts - 1)
    rejected_token = tokens[rows, first].unsqueeze(-1)
    target_row = target_logits[rows, accepted].double().softmax(-1)
    shrink = rule.shrink(target_prob[rows, first], xp=torch)
    if lossy is not None:
        shrink = torch.where(lossy[rows, first], shrink, 1.0)
    residual = shrink.unsqueeze(-1) * target_row
    if draft_probs is not None:
        residual = (residual - draft_probs[rows, first]).clamp(min=0.0)
    residual = residual.scatter(-1, rejected_token, 0.0)  # a rejected token has g < p

    # A residual can be empty by rounding only: then p = q, and q is the law to draw from.
    rejected = (accepted < num_drafts).unsqueeze(-1) & (residual.sum(-1, keepdim=True) > 0)
    weights = torch.where(rejected, residual, target_row)
    return Verification(accepted, inverse_cdf(weights, recover_uniforms))


def block_emission(
    rule: CandidateRule,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
) -> Emission:
    """Acceptance rate, total variation and KL bound at every drafted position, shape (B, k) each.

    Exact given the laws (see `cactus_theory.emission`); costs a full row per drafted position.

    Parameters are those of `verify`.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> block_emission(
    ...     SpeculativeSampling(), torch.tensor([[0]]), draft_probs=torch.tensor([[[0.75, 0.25]]]),
    ...     target_logits=torch.zeros(1, 2, 2)).acceptance_rate
    tensor([[0.7500]], dtype=torch.float64)
    """
    target = target_logits[:, :-1].double().softmax(-1)
    if draft_probs is None:
        draft = torch.zeros_like(target).scatter_(-1, tokens.unsqueeze(-1), 1.0)
    else:
        draft = draft_probs.double()
    return emission_sums(rule, draft, target, xp=torch)


def _check_shapes(
    tokens, draft_probs, target_logits, accept_uniforms, recover_uniforms, lossy
) -> None:
    if tokens.ndim != 2:
        raise ValueError(f"tokens must have shape (B, k), got {tuple(tokens.shape)}")
    batch, num_drafts = tokens.shape
    if target_logits.ndim != 3 or target_logits.shape[:2] != (batch, num_drafts + 1):
        raise ValueError(
            f"target_logits must have shape ({batch}, {num_drafts + 1}, V), "
            f"got {tuple(target_logits.shape)}"
        )
    vocabulary = target_logits.shape[-1]
    wanted = {
        "draft_probs": (draft_probs, (batch, num_drafts, vocabulary)),
        "accept_uniforms": (accept_uniforms, (batch, num_drafts)),
        "recover_uniforms": (recover_uniforms, (batch,)),
        "lossy": (lossy, (batch, num_drafts)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
