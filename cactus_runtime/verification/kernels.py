"""The verification of one block in Triton, without a copy of a row or a host synchronisation.

`token_probs` reads every row of target logits once. Torch then evaluates the rule on the (B, k)
probabilities of the drafted tokens, so that any `CandidateRule` works as it stands. `draw` reads
the one row the last token comes from, and its draft row. Each of the two is a pass over chunks of
the vocabulary, a program for every chunk, since B (k + 1) rows are too few to fill a device, and a
small launch that combines them.

A block with logits of s bytes and draft laws of s' bytes an element reads (k + 2) V s + V s' bytes
and one chunk of each again (no draft row where all tokens were accepted): every row once, the one
drawn from twice. It writes 16 bytes a chunk. There are no atomics: the same input gives the same
output.

Needs triton. Where it is missing this file can be imported, and its functions say what to install.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from cactus_runtime.verification import device_functions
from cactus_runtime.verification.acceptance import accept, probs_of
from cactus_runtime.verification.candidates import figures, logprobs_of
from cactus_runtime.verification.charges import Limits, limited
from cactus_runtime.verification.judgement import Judgement
from cactus_runtime.verification.warp import Warp
from cactus_theory.rules import CandidateRule

_CHUNK = 4096  # tokens of one program


class Normaliser(NamedTuple):
    """What makes laws of rows of logits: q(x) = exp((logit(x) - peak) / temperature - log_sum).

    The two parts of a log-sum-exp are kept apart, since peak / temperature can be so large that
    their sum has no digits left for log_sum.

    Attributes
    ----------
    peak : float64 tensor, shape (B, k + 1)
        Largest logit of each row.
    log_sum : float64 tensor, shape (B, k + 1)
        Log of the sum over x of exp((logit(x) - peak) / temperature), in nats: 0 to log V.

    Examples
    --------
    >>> uniform = Normaliser(torch.tensor([[1e9]]), torch.tensor([[4.0]]).log())
    >>> uniform.log_sum.exp()
    tensor([[4.]])
    """

    peak: torch.Tensor
    log_sum: torch.Tensor


def token_probs(
    logits: torch.Tensor, tokens: torch.Tensor, *, temperature: float = 1.0
) -> tuple[torch.Tensor, Normaliser]:
    """Probability of each drafted token n under the law softmax(logits / temperature).

        q(n) = exp((logit(n) - peak) / temperature - log_sum)

    Every row is read once, V s bytes: a chunk is summed relative to its own peak, and the sums
    are then brought to the peak of the row. The exponentials summed are in float32 (float64 for
    float64 logits), the sums and q(n) in float64.

    Parameters
    ----------
    logits : tensor, shape (B, k + 1, V)
        float16, bfloat16, float32 or float64, of any strides. -inf excludes a token; every row
        has a finite logit, and no NaN or +inf.
    tokens : int64 tensor, shape (B, k)
        In [0, V); k may be 0.
    temperature : float
        In (0, inf).

    Returns
    -------
    target_prob : float64 tensor, shape (B, k)
        In [0, 1].
    normaliser : Normaliser
        Of all k + 1 rows, for `draw`.

    Raises
    ------
    ModuleNotFoundError
        If triton is missing.
    ValueError
        If a shape or the temperature is wrong, or Triton cannot run where the logits are.

    Examples
    --------
    On a GPU, with all tensors there (or with TRITON_INTERPRET=1):

    >>> logits = torch.tensor([[[0.0, 0.0, -torch.inf], [0.0] * 3]])  # doctest: +SKIP
    >>> probs, normaliser = token_probs(logits, torch.tensor([[1]]))  # doctest: +SKIP
    >>> probs.tolist(), normaliser.log_sum.exp().round().tolist()  # doctest: +SKIP
    ([[0.5]], [[2.0, 3.0]])
    """
    _check(logits, temperature)
    batch, rows, vocabulary = logits.shape
    _check_shape("tokens", tokens, (batch, rows - 1))
    chunks = -(-vocabulary // _CHUNK)
    peaks, sums = _float64(logits, batch, rows, chunks), _float64(logits, batch, rows, chunks)
    normaliser = Normaliser(_float64(logits, batch, rows), _float64(logits, batch, rows))
    target_prob = _float64(logits, batch, rows - 1)
    law = _with_strides(logits)
    with torch.cuda.device_of(logits):
        device_functions.sum_chunk[chunks, rows, batch](
            law, vocabulary, temperature, peaks, sums, _CHUNK, num_warps=8
        )
        device_functions.combine_chunks[rows, batch](
            law, tokens.contiguous(), temperature, peaks, sums, chunks, *normaliser, target_prob,
            _power_of_two(chunks), num_warps=1,
        )  # fmt: skip
    return target_prob, normaliser


def draw(
    logits: torch.Tensor,
    normaliser: Normaliser,
    row: torch.Tensor,
    *,
    shrink: torch.Tensor,
    draft_probs: torch.Tensor | None,
    rejected_token: torch.Tensor,
    uniforms: torch.Tensor,
    temperature: float = 1.0,
) -> torch.Tensor:
    """One token per block, by the inverse distribution function of `cactus_runtime.streams`.

    With q the target's law in the chosen row and p the draft's, it is the first x with

        u sum_y w(y) < w(0) + ... + w(x),    w(x) = [shrink q(x) - p(x)]_+,

    w = 0 at the rejected token. Where none was rejected, or the residual w is empty (by rounding
    only: then p = q), w = q. The chosen row and its draft row are read once for the sums of the
    chunks, V (s + s') bytes, and again in the chunk that holds the token. All is in float64.

    Parameters
    ----------
    logits : tensor, shape (B, k + 1, V)
        Those of `token_probs`.
    normaliser : Normaliser
        Of these logits at this temperature.
    row : int64 tensor, shape (B,)
        Which of the k + 1 rows to draw from.
    shrink : float64 tensor, shape (B,)
        `CandidateRule.shrink` of the rejected token's probability; elsewhere not used.
    draft_probs : tensor, shape (B, k, V), or None
        The draft's laws, of any strides; None means one-hot on the drafted tokens.
    rejected_token : int64 tensor, shape (B,)
        The token rejected in the chosen row, -1 where there is none: always so in row k.
    uniforms : float64 tensor, shape (B,)
        u, in [0, 1).
    temperature : float
        In (0, inf).

    Returns
    -------
    int64 tensor, shape (B,)
        Never a token of weight zero.

    Raises
    ------
    ModuleNotFoundError
        If triton is missing.
    ValueError
        If a shape or the temperature is wrong, or Triton cannot run where the logits are.

    References
    ----------
    Theorem 2 of Hao and Mou (2026), for the law whose residual this is.

    Examples
    --------
    On a GPU, with all tensors there (or with TRITON_INTERPRET=1):

    >>> logits, row = torch.zeros(1, 1, 4), torch.tensor([0])  # doctest: +SKIP
    >>> u = torch.tensor([0.6], dtype=torch.float64)  # doctest: +SKIP
    >>> _, normaliser = token_probs(logits, row.new_empty(1, 0))  # doctest: +SKIP
    >>> draw(  # doctest: +SKIP
    ...     logits, normaliser, row, shrink=torch.ones_like(u), draft_probs=None,
    ...     rejected_token=row - 1, uniforms=u).tolist()
    [2]
    """
    _check(logits, temperature)
    batch, rows, vocabulary = logits.shape
    choice = {"row": row, "shrink": shrink, "rejected_token": rejected_token}
    for name, tensor in {**choice, "uniforms": uniforms}.items():
        _check_shape(name, tensor, (batch,))
    if draft_probs is not None:
        _check_shape("draft_probs", draft_probs, (batch, rows - 1, vocabulary))
    chunks = -(-vocabulary // _CHUNK)
    weights = (
        _with_strides(logits), vocabulary, temperature,
        (*(part.contiguous() for part in normaliser), rows),
        None if draft_probs is None else _with_strides(draft_probs),
        tuple(tensor.contiguous() for tensor in choice.values()),
        _float64(logits, batch, chunks), _float64(logits, batch, chunks),
    )  # fmt: skip
    token = torch.empty_like(row)
    # Without fused multiply-adds both launches round a weight alike, and as torch does.
    options = {"num_warps": 8, "enable_fp_fusion": False}
    with torch.cuda.device_of(logits):
        device_functions.weigh_chunk[chunks, batch](*weights, _CHUNK, **options)
        device_functions.search[(batch,)](
            *weights, chunks, uniforms.contiguous(), token, _CHUNK, _power_of_two(chunks), **options
        )
    return token


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
    """`judge` for a rule with a candidate, where the warp is only a temperature.

    What `candidates.judge_candidates` returns for the same uniforms, up to the rounding of the
    probabilities: a uniform that near to a threshold may come to lie on its other side.

    Raises
    ------
    ModuleNotFoundError
        If triton is missing.
    ValueError
        If the temperature is wrong, or Triton cannot run where the logits are.
    """
    temperature: float = warp.temperature  # type: ignore[assignment]
    found = figures(rule, tokens, draft_probs, target_logits, warp)
    charges, lossy = limited(found.charges, limits)
    target_prob, normaliser = token_probs(target_logits, tokens, temperature=temperature)
    draft_prob = probs_of(tokens, draft_probs)
    accepted, boosted = accept(
        rule,
        target_prob,
        draft_prob,
        accept_uniforms=accept_uniforms,
        num_drafts=num_drafts,
        lossy=lossy,
    )
    shrink = rule.shrink(target_prob, xp=torch)
    if lossy is not None:
        shrink = torch.where(lossy, shrink, 1.0)
    row = accepted.unsqueeze(-1)
    rejected_token = pad(tokens, (0, 1), value=-1).gather(-1, row).squeeze(-1)
    if num_drafts is not None:
        rejected_token = torch.where(accepted < num_drafts, rejected_token, -1)
    last_token = draw(
        target_logits,
        normaliser,
        accepted,
        shrink=pad(shrink, (0, 1)).gather(-1, row).squeeze(-1),
        draft_probs=draft_probs,
        rejected_token=rejected_token,
        uniforms=recover_uniforms,
        temperature=temperature,
    )
    return Judgement(
        tokens=tokens,
        accepted=accepted,
        last_token=last_token,
        logprobs=logprobs_of(tokens, accepted, last_token, target_logits, found.log_normaliser),
        draft_prob=draft_prob,
        target_prob=target_prob,
        boosted=boosted,
        acceptance_rate=charges.acceptance_rate,
        total_variation=charges.total_variation,
        kl_bound=charges.kl_bound,
        log_normaliser=found.log_normaliser,
    )


def applies(logits: torch.Tensor) -> bool:
    """Whether the kernels can run where these logits are.

    Examples
    --------
    >>> applies(torch.zeros(1, 1, 2))
    False
    """
    return device_functions.AVAILABLE and logits.is_cuda


def _check(logits: torch.Tensor, temperature: float) -> None:
    if not device_functions.AVAILABLE:
        raise ModuleNotFoundError(
            "cactus_runtime.verification.kernels needs triton: pip install triton", name="triton"
        )
    if logits.ndim != 3 or 0 in logits.shape[1:]:
        raise ValueError(f"logits must have shape (B, k + 1, V), got {tuple(logits.shape)}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must lie in (0, inf), got {temperature!r}")
    if not (logits.is_cuda or device_functions.interpreted()):
        raise ValueError(
            f"logits must be on a device that Triton compiles for, got {logits.device} "
            "(set TRITON_INTERPRET=1 before the program starts to have the kernels interpreted)"
        )


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")


def _with_strides(tensor: torch.Tensor) -> tuple:
    return (tensor, *tensor.stride())


def _float64(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float64, device=like.device)


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
