"""The passes over a block's logits: what is launched, with which shapes.

Each runs over chunks of the vocabulary, a program for every chunk, since the rows of a block are
too few to fill a device.

Needs triton. Where it is missing this file can be imported, and `normalise`, which comes first,
says what to install.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from cactus_runtime.verification import device_functions
from cactus_runtime.verification.charges import Charges

_CHUNK = 2048  # tokens of one program
# Without fused multiply-adds, a weight is rounded alike wherever it is computed, and as in torch.
_OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}
_LOSSY_OPTIONS = _OPTIONS | {"num_warps": 16}  # a gain takes many registers


class Normalised(NamedTuple):
    """What makes distributions of rows: log q(x) = (logit(x) - peak) / temperature - log_sum.

    The two parts of a log-sum-exp are kept apart, since peak / temperature can be so large that
    their sum has no digits left for log_sum.

    Attributes
    ----------
    peak : float64 tensor, shape (B, k + 1)
        Largest logit of each row.
    log_sum : float64 tensor, shape (B, k + 1)
        Log of the sum over x of exp((logit(x) - peak) / temperature), in nats: 0 to log V.
    log_normaliser : float64 tensor, shape (B, k + 1)
        Log-sum-exp of the logits themselves, at temperature 1; not finite where they make no
        distribution.
    target_prob : float64 tensor, shape (B, k)
        q(n) of the drafted tokens n.
    chunk_peaks, chunk_sums : float64 tensors, shape (B, k + 1, chunks)
        Largest logit of each chunk, and the sum relative to it, at the temperature.
    temperature : float
    """

    peak: torch.Tensor
    log_sum: torch.Tensor
    log_normaliser: torch.Tensor
    target_prob: torch.Tensor
    chunk_peaks: torch.Tensor
    chunk_sums: torch.Tensor
    temperature: float


class Gain(NamedTuple):
    """How a kernel finds g - q for a token x with q = q(x).

    Attributes
    ----------
    kind : str
        "lossless": 0. "closed": min(reach sqrt(q (1-q)), 1 - q). "root": that of
        KL(Bernoulli(g) || Bernoulli(q)) = delta, which is no less than the closed form.
    delta : float
        Only read by "root".
    reach : float
    """

    kind: str
    delta: float = 0.0
    reach: float = 0.0


NOTHING = Gain("lossless")


def normalise(
    logits: torch.Tensor, tokens: torch.Tensor, *, temperature: float = 1.0
) -> Normalised:
    """Normalisers of all rows, and the probabilities of the drafted tokens; the first pass.

    Every row is read once: a chunk is summed relative to its own peak, and the sums are then
    brought to the peak of the row. The exponentials summed are in float32 (float64 for float64
    logits), the sums and q(n) in float64.

    Parameters
    ----------
    logits : tensor, shape (B, k + 1, V)
        float16, bfloat16, float32 or float64, of any strides. -inf excludes a token.
    tokens : int64 tensor, shape (B, k)
        The drafted tokens n.
    temperature : float
        In (0, inf).

    Raises
    ------
    ModuleNotFoundError
        If triton is missing.
    ValueError
        If a shape or the temperature is wrong, or Triton cannot run where the logits are.

    Examples
    --------
    On a GPU, with all tensors there (or with TRITON_INTERPRET=1):

    >>> rows = normalise(torch.zeros(1, 2, 4), torch.tensor([[2]]))  # doctest: +SKIP
    >>> rows.target_prob.tolist()  # doctest: +SKIP
    [[0.25]]
    """
    _check(logits, temperature)
    batch, rows, vocabulary = logits.shape
    _check_shape("tokens", tokens, (batch, rows - 1))
    chunks = -(-vocabulary // _CHUNK)
    peaks, sums = _float64(logits, batch, rows, chunks), _float64(logits, batch, rows, chunks)
    raw_sums = None if temperature == 1 else torch.empty_like(sums)
    peak, log_sum, log_normaliser = (_float64(logits, batch, rows) for _ in range(3))
    target_prob = _float64(logits, batch, rows - 1)
    given = _with_strides(logits)
    with torch.cuda.device_of(logits):
        device_functions.sum_chunk[chunks, rows, batch](
            given, vocabulary, temperature, peaks, sums, raw_sums, _CHUNK, num_warps=8
        )
        device_functions.combine_chunks[rows, batch](
            given, tokens.contiguous(), temperature, peaks, sums, raw_sums, chunks,
            peak, log_sum, log_normaliser, target_prob, _power_of_two(chunks), num_warps=1,
        )  # fmt: skip
    return Normalised(peak, log_sum, log_normaliser, target_prob, peaks, sums, temperature)


def charge_and_weigh(
    logits: torch.Tensor,
    normalised: Normalised,
    tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    *,
    gain: Gain,
    shrink: torch.Tensor,
) -> tuple[Charges, torch.Tensor]:
    """What drafted positions are charged, and the sums of their residuals; the second pass.

    Each drafted row of logits, and of draft probabilities, is read once. All is in float64. With S
    the tokens of p > q, and gain = min(p, g) - q on S,

        lossless acceptance rate    sum_x min(p, q)
        total variation             sum_S gain
        acceptance rate             their sum
        KL bound                    sum_S (q + gain) log(1 + gain / q)

    Parameters
    ----------
    logits : tensor, shape (B, k + 1, V)
        Those of `normalise`.
    normalised : Normalised
    tokens : int64 tensor, shape (B, k)
    draft_probs : tensor, shape (B, k, V), or None
        The distributions the tokens were drawn from, of any strides; None means one-hot on them.
    gain : Gain
        Of the rule.
    shrink : float64 tensor, shape (B, k)
        `CandidateRule.shrink` of the drafted tokens.

    Returns
    -------
    charges : Charges of shape (B, k)
    residuals : float64 tensor, shape (B, k, chunks)
        Sums over chunks of [shrink q - p]_+ without the drafted token.
    """
    batch, k = tokens.shape
    sums, residuals = _sums(normalised, 3, batch, k), _sums(normalised, batch, k)
    _second_pass(
        logits, normalised, tokens, draft_probs,
        gain=gain, sums=sums, shrink=shrink, residuals=residuals,
    )  # fmt: skip
    return _charges(gain, sums), residuals


def charge(
    logits: torch.Tensor,
    normalised: Normalised,
    tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    *,
    gain: Gain,
) -> Charges:
    """The charges of `charge_and_weigh`, where residuals are not known before them."""
    sums = _sums(normalised, 3, *tokens.shape)
    _second_pass(logits, normalised, tokens, draft_probs, gain=gain, sums=sums)
    return _charges(gain, sums)


def weigh(
    logits: torch.Tensor,
    normalised: Normalised,
    tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    *,
    shrink: torch.Tensor,
    row: torch.Tensor,
) -> torch.Tensor:
    """The residuals of `charge_and_weigh` of one row of each block; row k has none, and sums of 0.

    They are in all k positions of what is returned, shape (B, k, chunks).
    """
    batch, k = tokens.shape
    residuals = _sums(normalised, batch, min(k, 1))
    _second_pass(
        logits, normalised, tokens, draft_probs, shrink=shrink, residuals=residuals, row=row
    )
    return residuals.expand(batch, k, -1)


def _second_pass(
    logits: torch.Tensor,
    normalised: Normalised,
    tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    *,
    gain: Gain = NOTHING,
    sums: torch.Tensor | None = None,
    shrink: torch.Tensor | None = None,
    residuals: torch.Tensor | None = None,
    row: torch.Tensor | None = None,
) -> None:
    batch, k = tokens.shape
    if draft_probs is not None:
        _check_shape("draft_probs", draft_probs, (batch, k, logits.shape[-1]))
    if not k:
        return
    grid = normalised.chunk_sums.shape[-1], k if row is None else 1, batch
    with torch.cuda.device_of(logits):
        device_functions.weigh_chunk[grid](
            *_given(logits, normalised, draft_probs), tokens.contiguous(),
            None if shrink is None else shrink.contiguous(), row, k, gain.delta, gain.reach,
            residuals, sums, gain.kind, _CHUNK,
            **(_OPTIONS if gain.kind == "lossless" else _LOSSY_OPTIONS),
        )  # fmt: skip


def _charges(gain: Gain, sums: torch.Tensor) -> Charges:
    if gain.kind == "lossless":
        kept = sums[0].sum(-1).clamp(max=1.0)
        return Charges(kept, kept, torch.zeros_like(kept), torch.zeros_like(kept))
    lossless, distance, divergence = sums.sum(-1).unbind()
    kept = (lossless + distance).clamp(max=1.0)
    return Charges(kept, lossless.clamp(max=1.0), distance, divergence)


def _sums(normalised: Normalised, *shape: int) -> torch.Tensor:
    """Room for a sum of each chunk."""
    return _float64(normalised.chunk_sums, *shape, normalised.chunk_sums.shape[-1])


def draw(
    logits: torch.Tensor,
    normalised: Normalised,
    row: torch.Tensor,
    *,
    residuals: torch.Tensor | None,
    shrink: torch.Tensor,
    draft_probs: torch.Tensor | None,
    rejected_token: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """One token per block, by the inverse distribution function of `cactus_runtime.streams`.

    With q the target's distribution in the chosen row and p the draft's, it is the first x with

        u sum_y w(y) < w(0) + ... + w(x),    w(x) = [shrink q(x) - p(x)]_+,

    w = 0 at the rejected token. Where none was rejected, or the residual w is empty (by rounding
    only: then p = q), w = q. The chunk that holds the token is found by sums of the two
    passes, and is all that is read. All is in float64.

    Parameters
    ----------
    logits : tensor, shape (B, k + 1, V)
        Those of `normalise`.
    normalised : Normalised
    row : int64 tensor, shape (B,)
        Which of the k + 1 rows to draw from.
    residuals : float64 tensor, shape (B, k, chunks), or None
        Sums over chunks of w. None: no token was rejected.
    shrink : float64 tensor, shape (B,)
        `CandidateRule.shrink` of the rejected token's probability; elsewhere not used.
    draft_probs : tensor, shape (B, k, V), or None
    rejected_token : int64 tensor, shape (B,)
        The token rejected in the chosen row, -1 where there is none: always so in row k.
    uniforms : float64 tensor, shape (B,)
        u, in [0, 1).

    Returns
    -------
    int64 tensor, shape (B,)
        Never a token of weight zero.

    Raises
    ------
    ValueError
        If a shape is wrong.

    References
    ----------
    Theorem 2 of Hao and Mou (2026), for the distribution whose residual this is.

    Examples
    --------
    On a GPU, with all tensors there (or with TRITON_INTERPRET=1):

    >>> logits, row = torch.zeros(1, 1, 4), torch.tensor([0])  # doctest: +SKIP
    >>> u = torch.tensor([0.6], dtype=torch.float64)  # doctest: +SKIP
    >>> draw(  # doctest: +SKIP
    ...     logits, normalise(logits, row.new_empty(1, 0)), row, residuals=None,
    ...     shrink=torch.ones_like(u), draft_probs=None, rejected_token=row - 1,
    ...     uniforms=u).tolist()
    [2]
    """
    batch, rows, _ = logits.shape
    chunks = normalised.chunk_sums.shape[-1]
    choice = {"row": row, "shrink": shrink, "rejected_token": rejected_token}
    for name, tensor in {**choice, "uniforms": uniforms}.items():
        _check_shape(name, tensor, (batch,))
    if residuals is not None:
        _check_shape("residuals", residuals, (batch, rows - 1, chunks))
        residuals = None if rows == 1 else residuals
    token = torch.empty_like(row)
    with torch.cuda.device_of(logits):
        device_functions.search[(batch,)](
            *_given(logits, normalised, draft_probs),
            *(tensor.contiguous() for tensor in choice.values()),
            normalised.chunk_peaks, normalised.chunk_sums,
            None if residuals is None else _with_strides(residuals)[:3],
            chunks, uniforms.contiguous(), token, _CHUNK, _power_of_two(chunks), **_OPTIONS,
        )  # fmt: skip
    return token


def _given(logits: torch.Tensor, normalised: Normalised, draft_probs: torch.Tensor | None) -> tuple:
    """The arguments that say what q and p are."""
    normaliser = normalised.peak, normalised.log_sum, logits.shape[1]
    draft = None if draft_probs is None else _with_strides(draft_probs)
    return _with_strides(logits), logits.shape[2], normalised.temperature, normaliser, draft


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
