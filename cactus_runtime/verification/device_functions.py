"""The device functions of `cactus_runtime.verification.kernels`: pointers in, no shapes checked.

Logits and draft laws come as (pointer, strides of batch, row and token); a normaliser as
(peak, log_sum, number of rows), with q(x) = exp((logit(x) - peak) / temperature - log_sum); the
choice of what to draw from as (row, shrink, rejected token).

Without triton this file can be imported, but nothing in it launched.
"""
# pyright: reportInvalidTypeForm=false
# Triton reads the annotations of its arguments: their types are its own.

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

AVAILABLE = find_spec("triton") is not None
if AVAILABLE:
    import triton
    import triton.language as tl

_jit: Any = triton.jit if AVAILABLE else lambda function: function


def interpreted() -> bool:
    """Whether the functions of this file are interpreted, which is decided on import."""
    return not isinstance(sum_chunk, triton.JITFunction)


@_jit
def sum_chunk(logits, vocabulary, temperature: tl.float64, peaks, sums, CHUNK: tl.constexpr):
    """Peak of one chunk of a row, and the sum of its exponentials relative to that peak.

    Grid (chunks, rows, B). Reads each logit once. The exponentials are in float32, or in float64
    where the logits are; the sum is in float64.
    """
    chunk, row, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    at = _address(logits, batch, row, token)
    logit = tl.load(at, mask=token < vocabulary, other=-float("inf"))
    if logit.dtype != tl.float64:
        logit = logit.to(tl.float32)
    peak = tl.max(logit)
    origin = tl.where(peak == -float("inf"), 0.0, peak)  # a chunk may be excluded as a whole
    weight = tl.exp((logit - origin) / tl.full((), temperature, logit.dtype))
    at = (batch * tl.num_programs(1) + row) * tl.num_programs(0) + chunk
    tl.store(peaks + at, peak.to(tl.float64))
    tl.store(sums + at, tl.sum(weight.to(tl.float64)))


@_jit
def combine_chunks(
    logits, tokens, temperature: tl.float64, peaks, sums, chunks, peak, log_sum, target_prob,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Peak and log-sum of a row from its chunks, and the probability of its drafted token.

    Grid (rows, B). The last row has no drafted token.
    """
    row, batch = tl.program_id(0), tl.program_id(1)
    at = batch * tl.num_programs(0) + row
    chunk = tl.arange(0, CHUNKS)
    part = tl.load(peaks + at * chunks + chunk, mask=chunk < chunks, other=-float("inf"))
    part_sum = tl.load(sums + at * chunks + chunk, mask=chunk < chunks, other=0.0)
    highest = tl.max(part)
    total = tl.sum(part_sum * tl.exp((part - highest) / temperature))  # 1 of it is the peak's
    tl.store(peak + at, highest)
    tl.store(log_sum + at, tl.log(total))
    if row < tl.num_programs(0) - 1:
        drafted = at - batch
        token = tl.load(tokens + drafted)
        logit = tl.load(_address(logits, batch, row, token)).to(tl.float64)
        tl.store(target_prob + drafted, tl.exp((logit - highest) / temperature) / total)


@_jit
def weigh_chunk(
    logits, vocabulary, temperature: tl.float64, normaliser, draft, choice,
    target_sums, residual_sums, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sums over one chunk of the target's law and of the residual. Grid (chunks, B)."""
    chunk, batch = tl.program_id(0), tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    target, residual = _weights(
        token, batch, logits, vocabulary, temperature, normaliser, draft, choice
    )
    at = batch * tl.num_programs(0) + chunk
    tl.store(target_sums + at, tl.sum(target))
    tl.store(residual_sums + at, tl.sum(residual))


@_jit
def search(
    logits, vocabulary, temperature: tl.float64, normaliser, draft, choice,
    target_sums, residual_sums, chunks, uniforms, drawn, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Find the chunk in which the sum passes the threshold, then the token in it. Grid (B,)."""
    batch = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    at = batch * chunks + chunk
    target_sum = tl.load(target_sums + at, mask=chunk < chunks, other=0.0)
    residual_sum = tl.load(residual_sums + at, mask=chunk < chunks, other=0.0)
    empty = tl.max(residual_sum) == 0
    sums = tl.where(empty, target_sum, residual_sum)
    cumulative = tl.cumsum(sums)
    threshold = tl.load(uniforms + batch) * tl.max(cumulative)
    found = _first_beyond(chunk, sums, cumulative, threshold)
    before = tl.sum(tl.where(chunk < found, sums, 0.0))
    token = found * CHUNK + tl.arange(0, CHUNK)
    target, residual = _weights(
        token, batch, logits, vocabulary, temperature, normaliser, draft, choice
    )
    weight = tl.where(empty, target, residual)
    found = _first_beyond(token, weight, before + tl.cumsum(weight), threshold)
    tl.store(drawn + batch, found.to(tl.int64))


@_jit
def _address(law, batch, row, token):
    """In 64 bits: a batch of rows of a large vocabulary may have more than 2^31 elements."""
    start = law[0] + batch.to(tl.int64) * law[1] + row.to(tl.int64) * law[2]
    return start + token.to(tl.int64) * law[3]


@_jit
def _weights(token, batch, logits, vocabulary, temperature, normaliser, draft, choice):
    """q(token) and [shrink q - p]_+; the latter is zero at, and without, a rejected token."""
    row = tl.load(choice[0] + batch)
    shrink = tl.load(choice[1] + batch)
    rejected = tl.load(choice[2] + batch)
    peak = tl.load(normaliser[0] + batch * normaliser[2] + row)
    log_sum = tl.load(normaliser[1] + batch * normaliser[2] + row)
    inside = token < vocabulary
    logit = tl.load(_address(logits, batch, row, token), mask=inside, other=-float("inf"))
    target = tl.exp((logit.to(tl.float64) - peak) / temperature - log_sum)
    residual = shrink * target
    if draft is not None:
        read = inside & (rejected >= 0)
        prob = tl.load(_address(draft, batch, row, token), mask=read, other=0.0)
        residual = tl.maximum(residual - prob.to(tl.float64), 0.0)
    return target, tl.where((rejected < 0) | (token == rejected), 0.0, residual)


@_jit
def _first_beyond(index, weight, cumulative, threshold):
    """First index of positive weight with threshold < cumulative; else the last such weight's."""
    positive = weight > 0
    last = tl.max(tl.where(positive, index, 0))  # sums by chunks may round to the threshold
    return tl.min(tl.where(positive & (threshold < cumulative), index, last))
