"""The verification of one block in torch, from logits, with its uniforms as arguments.

Agrees token for token with `cactus_theory.specification.verify`. Rules with candidates read one
log-sum-exp and one gathered value per drafted token; a full row of probabilities is made only at
the row from which a recovered or bonus token is drawn. All other rules read whole laws; they are
verified by the specification itself, on the host.

One position of the batch is looked at a time, so nothing of the size of the logits is ever copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cactus_runtime.streams import inverse_cdf
from cactus_theory import specification
from cactus_theory.emitted import Emission, emission_sums
from cactus_theory.rules import CandidateRule, Rule, SpeculativeSampling

_CACHED = 2**17  # logits: in float64 a megabyte

Position = int | torch.Tensor
Warp = Callable[[torch.Tensor, Position], torch.Tensor]


@dataclass(frozen=True)
class Verification:
    """Outcome of a batch of blocks.

    Attributes
    ----------
    accepted : int64 tensor, shape (B,)
        Drafted tokens kept, 0..k.
    last_token : int64 tensor, shape (B,)
        The recovered token (accepted < k) or the bonus token (accepted = k).
    draft_prob, target_prob, boosted : float64 tensors, shape (B, k)
        Of every drafted token n: p(n), q(n), and g(n), below which u * p(n) passes.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> block = verify(
    ...     SpeculativeSampling(), torch.tensor([[0]]), draft_probs=torch.tensor([[[0.75, 0.25]]]),
    ...     target_logits=torch.zeros(1, 2, 2), accept_uniforms=torch.tensor([[0.7]]).double(),
    ...     recover_uniforms=torch.tensor([0.7]).double())
    >>> block.accepted.tolist(), block.last_token.tolist(), block.target_prob.tolist()
    ([0], [1], [[0.5]])
    """

    accepted: torch.Tensor
    last_token: torch.Tensor
    draft_prob: torch.Tensor
    target_prob: torch.Tensor
    boosted: torch.Tensor


def as_they_are(logits: torch.Tensor, position: Position) -> torch.Tensor:
    """The warp that changes nothing, but for half-precision logits, which become float32."""
    half = logits.dtype in (torch.float16, torch.bfloat16)
    return logits.float() if half else logits


def verify(
    rule: CandidateRule,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    accept_uniforms: torch.Tensor,
    recover_uniforms: torch.Tensor,
    num_drafts: torch.Tensor | None = None,
    lossy: torch.Tensor | None = None,
    target_prob: torch.Tensor | None = None,
    warp: Warp = as_they_are,
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
        -inf excludes a token.
    accept_uniforms : float64 tensor, shape (B, k)
    recover_uniforms : float64 tensor, shape (B,)
    num_drafts : int64 tensor, shape (B,), optional
        Drafted tokens of each row that count; those after them are padding. Default all.
    lossy : bool tensor, shape (B, k), optional
        Where the rule applies; elsewhere the position is verified by plain speculative sampling.
        Default everywhere.
    target_prob : float64 tensor, shape (B, k), optional
        q(n) of every drafted token, where it is known already. Default computed.
    warp : callable (logits, position) -> logits
        Temperature, filters and penalties for logits of shape (B, V) at one position of the block,
        or at one position per row where that is an int64 tensor of shape (B,). Default none.

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
    check_shapes(
        tokens,
        target_logits,
        {
            "draft_probs": draft_probs,
            "accept_uniforms": accept_uniforms,
            "recover_uniforms": recover_uniforms,
            "num_drafts": num_drafts,
            "lossy": lossy,
            "target_prob": target_prob,
        },
    )
    batch, k = tokens.shape
    rows = torch.arange(batch, device=tokens.device)
    if target_prob is None:
        target_prob = accept_uniforms.new_zeros(batch, k)
        for j in range(k):
            target_prob[:, j] = token_log_prob(warp(target_logits[:, j], j), tokens[:, j]).exp()
    target_prob = target_prob.clamp(max=1.0)
    accepted, draft_prob, boosted = accept(
        rule,
        tokens,
        target_prob,
        draft_probs=draft_probs,
        accept_uniforms=accept_uniforms,
        num_drafts=num_drafts,
        lossy=lossy,
    )

    logits = warp(target_logits[rows, accepted], accepted)
    first = accepted.clamp(max=max(k - 1, 0))
    if k:
        shrink = rule.shrink(target_prob[rows, first], xp=torch)
        if lossy is not None:
            shrink = torch.where(lossy[rows, first], shrink, 1.0)
        rejected = accepted < (k if num_drafts is None else num_drafts)
    drawn = []
    for part in _in_cache(rows, logits):
        weights = logits[part].softmax(-1, dtype=torch.float64)
        if k:
            draft = None if draft_probs is None else draft_probs[part, first[part]]
            residual = _residual(weights, shrink[part], draft, tokens[part, first[part]])
            # A residual can be empty by rounding only: then p = q, and q is the law to draw from.
            recovers = rejected[part].unsqueeze(-1) & (residual.sum(-1, keepdim=True) > 0)
            weights = torch.where(recovers, residual, weights)
        drawn.append(inverse_cdf(weights, recover_uniforms[part]))
    last_token = torch.cat(drawn)
    return Verification(accepted, last_token, draft_prob, target_prob, boosted)


def _residual(
    target: torch.Tensor, shrink: torch.Tensor, draft: torch.Tensor | None, token: torch.Tensor
) -> torch.Tensor:
    """[shrink q - p]_+ of each row, and 0 at its rejected token, which has g < p."""
    residual = shrink.unsqueeze(-1) * target
    if draft is not None:
        residual = residual.sub_(draft).clamp_(min=0.0)
    return residual.scatter_(-1, token.unsqueeze(-1), 0.0)


def accept(
    rule: CandidateRule,
    tokens: torch.Tensor,
    target_prob: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    accept_uniforms: torch.Tensor,
    num_drafts: torch.Tensor | None,
    lossy: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Drafted tokens kept of each row, and p(n) and g(n) of all, from q(n) of shape (B, k).

    The other parameters are those of `verify`.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> half = torch.full((1, 2), 0.5, dtype=torch.float64)
    >>> accept(SpeculativeSampling(), torch.tensor([[0, 0]]), half, draft_probs=None,
    ...        accept_uniforms=half - 0.1, num_drafts=None, lossy=None)[0]
    tensor([2])
    """
    if draft_probs is None:
        draft_prob = torch.ones_like(target_prob)
    else:
        draft_prob = draft_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).double()
    boosted = rule.boost(target_prob, xp=torch)
    if lossy is not None:
        boosted = torch.where(lossy, boosted, target_prob)
    passes = accept_uniforms * draft_prob < boosted
    if num_drafts is not None:
        passes &= torch.arange(tokens.shape[1], device=tokens.device) < num_drafts.unsqueeze(-1)
    return passes.long().cumprod(-1).sum(-1), draft_prob, boosted


def verify_by_law(
    rule: Rule,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    accept_uniforms: torch.Tensor,
    recover_uniforms: torch.Tensor,
    num_drafts: torch.Tensor | None = None,
    lossy: torch.Tensor | None = None,
    warp: Warp = as_they_are,
) -> Verification:
    """`verify` for any rule, by `cactus_theory.specification.verify` on the host.

    Parameters are those of `verify`. Reads whole laws of both models, in float64.

    Examples
    --------
    >>> from cactus_theory import Lenience
    >>> block = verify_by_law(
    ...     Lenience(0.5), torch.tensor([[1]]), draft_probs=torch.tensor([[[0.0, 1.0]]]),
    ...     target_logits=torch.zeros(1, 2, 2), accept_uniforms=torch.tensor([[0.99]]).double(),
    ...     recover_uniforms=torch.tensor([0.3]).double())
    >>> block.accepted.tolist(), block.last_token.tolist()
    ([1], [0])
    """
    check_shapes(
        tokens,
        target_logits,
        {
            "draft_probs": draft_probs,
            "accept_uniforms": accept_uniforms,
            "recover_uniforms": recover_uniforms,
            "num_drafts": num_drafts,
            "lossy": lossy,
        },
    )
    batch, k = tokens.shape
    drafts, targets = _laws(tokens, draft_probs, target_logits, warp)
    ids: Any = tokens.cpu().numpy()
    accept: Any = accept_uniforms.cpu().numpy()
    recover = recover_uniforms.cpu().numpy()
    counts = [k] * batch if num_drafts is None else num_drafts.tolist()
    figures = np.zeros((3, batch, k))
    outcomes = []
    for i, count in enumerate(counts):
        here = slice(0, count)
        applies = [True] * count if lossy is None else lossy[i, here].tolist()
        rules = [rule if lossily else SpeculativeSampling() for lossily in applies]
        emitted, accepted = specification.verify(
            rules,
            ids[i, here],
            draft=drafts[i, here],
            target=targets[i, : count + 1],
            accept_uniforms=accept[i, here],
            recover_uniform=recover[i],
        )
        outcomes.append((accepted, emitted[-1]))
        for j, token in enumerate(ids[i, here]):
            mass = rules[j].accepted_mass(drafts[i, j], targets[i, j])[token]
            figures[:, i, j] = drafts[i, j, token], targets[i, j, token], mass
    accepted, last = torch.tensor(outcomes, device=tokens.device).unbind(-1)
    return Verification(accepted, last, *torch.tensor(figures, device=tokens.device))


def block_emission(
    rule: Rule,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    warp: Warp = as_they_are,
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
    return emission_and_target_prob(
        rule, tokens, draft_probs=draft_probs, target_logits=target_logits, warp=warp
    )[0]


def emission_and_target_prob(
    rule: Rule,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    warp: Warp,
) -> tuple[Emission, torch.Tensor]:
    """`block_emission`, and q(n) of every drafted token, which it comes to see."""
    on_host = tokens.is_cpu or not reads_one_number(rule)
    figures = tokens.new_zeros(4, *tokens.shape, dtype=torch.float64)
    for j in range(tokens.shape[1]):
        target = warp(target_logits[:, j], j).softmax(-1, dtype=torch.float64)
        drafted = tokens[:, j, None]
        if draft_probs is None:
            draft = torch.zeros_like(target).scatter_(-1, drafted, 1.0)
        else:
            draft = draft_probs[:, j].double()
        if on_host:
            cost = emission_sums(rule, draft.cpu().numpy(), target.cpu().numpy(), xp=np)
        else:
            cost = emission_sums(rule, draft, target, xp=torch)
        found = (cost.acceptance_rate, cost.total_variation, cost.kl_bound)
        for i, figure in enumerate((*found, target.gather(-1, drafted).squeeze(-1))):
            figures[i, :, j] = torch.as_tensor(figure)
    return Emission(*figures[:3]), figures[3]


def reads_one_number(rule: Rule) -> bool:
    """Whether `verify` can evaluate the rule: candidates, in formulas that torch can run."""
    if not isinstance(rule, CandidateRule):
        return False
    try:
        rule.boost(torch.ones(1, dtype=torch.float64), xp=torch)
    except TypeError:
        return False
    return True


def log_normaliser(logits: torch.Tensor) -> torch.Tensor:
    """log sum exp over the last axis, in float64; nan or inf where there is no law.

    Relative to each row's peak, as a float32 near 1e6 would swallow log V.

    Examples
    --------
    >>> log_normaliser(torch.full((1, 2), 1e6)) - 1e6
    tensor([0.6931], dtype=torch.float64)
    """
    rows = logits.reshape(-1, logits.shape[-1])
    found = []
    for part in _in_cache(rows, logits):
        part = as_they_are(part, 0)
        peak = part.amax(-1, keepdim=True)
        total = (part - peak).exp_().sum(-1)
        found.append(peak.squeeze(-1).double() + total.double().log())
    return torch.cat(found).reshape(logits.shape[:-1])


def _in_cache(rows: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows in parts that a CPU's caches hold; elsewhere all together."""
    most = max(_CACHED // logits.shape[-1], 1) if logits.is_cpu else max(len(rows), 1)
    return rows.split(most)


def token_log_prob(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log softmax(logits)[token] per row, for logits (..., V) and tokens (...); float64."""
    value = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return value.double() - log_normaliser(logits)


def _laws(
    tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    warp: Warp,
) -> tuple[np.ndarray, np.ndarray]:
    """Laws of draft and target as float64 arrays, shapes (B, k, V) and (B, k + 1, V)."""
    rows: Sequence[torch.Tensor] = [
        warp(target_logits[:, j], j).softmax(-1, dtype=torch.float64)
        for j in range(target_logits.shape[1])
    ]
    targets = torch.stack(rows, dim=1)
    if draft_probs is None:
        drafts = torch.zeros_like(targets[:, :-1]).scatter_(-1, tokens.unsqueeze(-1), 1.0)
    else:
        drafts = draft_probs.double()
    return drafts.cpu().numpy(), targets.cpu().numpy()


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
        "lossy": (batch, k),
        "target_prob": (batch, k),
    }
    for name, tensor in others.items():
        if tensor is not None and tuple(tensor.shape) != wanted[name]:
            raise ValueError(f"{name} must have shape {wanted[name]}, got {tuple(tensor.shape)}")
