"""The device functions of `cactus_runtime.verification.passes`: pointers in, no shapes checked.

Logits and draft distributions come as (pointer, strides of batch, row and token); a normaliser as
(peak, log_sum, number of rows), with log q(x) = (logit(x) - peak) / temperature - log_sum; draft
distributions that are one-hot as None.

Without triton this file can be imported, but nothing in it launched.
"""
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false
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
def sum_chunk(
    logits, vocabulary, temperature: tl.float64, peaks, sums, raw_sums, CHUNK: tl.constexpr
):
    """Peak of one chunk of a row, and the sums of its exponentials relative to that peak.

    One sum is at the temperature, and one at temperature 1, unless `raw_sums` is None. Grid
    (chunks, rows, B). Reads each logit once. The exponentials are in float32, or in float64 where
    the logits are; the sums are in float64.
    """
    chunk, row, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    at = _address(logits, batch, row, token)
    logit = tl.load(at, mask=token < vocabulary, other=-float("inf"))
    if logit.dtype != tl.float64:
        logit = logit.to(tl.float32)
    peak = tl.max(logit)
    origin = tl.where(peak == -float("inf"), 0.0, peak)  # a chunk may be excluded as a whole
    below = logit - origin
    weight = tl.exp(below / tl.full((), temperature, logit.dtype))
    at = (batch * tl.num_programs(1) + row) * tl.num_programs(0) + chunk
    tl.store(peaks + at, peak.to(tl.float64))
    tl.store(sums + at, tl.sum(weight.to(tl.float64)))
    if raw_sums is not None:
        tl.store(raw_sums + at, tl.sum(tl.exp(below).to(tl.float64)))


@_jit
def combine_chunks(
    logits, tokens, temperature: tl.float64, peaks, sums, raw_sums, chunks,
    peak, log_sum, log_normaliser, target_prob, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Peak, log-sum and log-normaliser of a row, and the probability of its drafted token.

    Grid (rows, B). The last row has no drafted token.
    """
    row, batch = tl.program_id(0), tl.program_id(1)
    at = batch * tl.num_programs(0) + row
    chunk = tl.arange(0, CHUNKS)
    inside = chunk < chunks
    part = tl.load(peaks + at * chunks + chunk, mask=inside, other=-float("inf"))
    part_sum = tl.load(sums + at * chunks + chunk, mask=inside, other=0.0)
    highest = tl.max(part)
    total = tl.sum(part_sum * tl.exp((part - highest) / temperature))  # 1 of it is the peak's
    raw_total = total
    if raw_sums is not None:
        part_sum = tl.load(raw_sums + at * chunks + chunk, mask=inside, other=0.0)
        raw_total = tl.sum(part_sum * tl.exp(part - highest))
    tl.store(peak + at, highest)
    tl.store(log_sum + at, tl.log(total))
    tl.store(log_normaliser + at, highest + tl.log(raw_total))
    if row < tl.num_programs(0) - 1:
        drafted = at - batch
        token = tl.load(tokens + drafted)
        logit = tl.load(_address(logits, batch, row, token)).to(tl.float64)
        tl.store(target_prob + drafted, tl.exp((logit - highest) / temperature) / total)


@_jit
def weigh_chunk(
    logits, vocabulary, temperature: tl.float64, normaliser, draft, tokens, shrink, chosen, drafts,
    delta: tl.float64, reach: tl.float64, residuals, charges,
    GAIN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sums over one chunk of a drafted position: of the residual, and of what is charged.

    Grid (chunks, positions, B). Position i is i itself, or the one that `chosen` names for the row
    of the batch: `drafts` there is no position, and has no residual. Reads each logit and each
    draft probability once. With q the target's distribution, p the draft's, n the drafted token:

        residuals   sum of [shrink(n) q - p]_+ over x != n, if there is a tensor for them
        charges     sums of min(p, q), of gain and of (q + gain) log(1 + gain / q), likewise

    where gain = min(p, g) - q over the tokens of p > q. `GAIN` is how g - q is found: "lossless"
    (0, and only the first of the charges is stored), "closed" (reach sqrt(q (1-q))), or "root"
    (that of KL(Bernoulli(g) || Bernoulli(q)) = delta, where p - q is beyond the closed form).
    """
    chunk, position, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (batch * tl.num_programs(1) + position) * tl.num_programs(0) + chunk
    if chosen is not None:
        position = tl.load(chosen + batch)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = (token < vocabulary) & (position < drafts)
    log_q = _log_prob(logits, batch, position, token, inside, temperature, normaliser)
    q = tl.exp(log_q)
    drafted = tl.load(tokens + batch * drafts + position, mask=position < drafts, other=-1)
    p = _draft_prob(draft, batch, position, token, inside, drafted)
    if residuals is not None:
        factor = tl.load(shrink + batch * drafts + position, mask=position < drafts, other=0.0)
        tl.store(residuals + at, tl.sum(_residual(factor, q, p, token, drafted)))
    if charges is not None:
        plane = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
        tl.store(charges + at, tl.sum(tl.minimum(p, q)))
        if GAIN != "lossless":
            over = tl.maximum(p - q, 0.0)
            gain = tl.minimum(over, reach * tl.sqrt(q * tl.maximum(1 - q, 0.0)))
            if GAIN == "root":
                beyond = (over > gain) & (q > 0)
                if tl.max(beyond.to(tl.int32)) > 0:
                    root = _kl_gain(tl.where(beyond, q, 0.5), tl.where(beyond, log_q, -0.7), delta)
                    root = tl.minimum(over, tl.maximum(gain, root))
                    gain = tl.where(beyond, root, gain)
            growth = _log_growth(gain, tl.where(q > 0, q, 1.0), log_q)
            tl.store(charges + plane + at, tl.sum(gain))
            tl.store(charges + 2 * plane + at, tl.sum((q + gain) * growth))


@_jit
def search(
    logits, vocabulary, temperature: tl.float64, normaliser, draft, chosen, shrink, rejected,
    peaks, sums, residuals, chunks, uniforms, drawn, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Find the chunk in which the sum passes the threshold, then the token in it. Grid (B,).

    Sums are those of the residual, given as (pointer, strides of batch and position); where no
    token was rejected, or the residual is empty, those of the target's distribution.
    """
    batch = tl.program_id(0)
    row = tl.load(chosen + batch)
    token = tl.load(rejected + batch)
    chunk = tl.arange(0, CHUNKS)
    inside = chunk < chunks
    at = batch * normaliser[2] + row
    part = tl.load(peaks + at * chunks + chunk, mask=inside, other=-float("inf"))
    weights = tl.load(sums + at * chunks + chunk, mask=inside, other=0.0)
    peak, log_sum = tl.load(normaliser[0] + at), tl.load(normaliser[1] + at)
    weights = weights * tl.exp((part - peak) / temperature - log_sum)
    recovers = token >= 0
    if residuals is not None:
        start = residuals[0] + batch * residuals[1] + row * residuals[2]
        residual = tl.load(start + chunk, mask=inside & recovers, other=0.0)
        recovers = recovers & (tl.max(residual) > 0)
        weights = tl.where(recovers, residual, weights)
    cumulative = tl.cumsum(weights)
    threshold = tl.load(uniforms + batch) * tl.max(cumulative)
    found = _first_beyond(chunk, weights, cumulative, threshold)
    rest = threshold - tl.sum(tl.where(chunk < found, weights, 0.0))
    expected = tl.sum(tl.where(chunk == found, weights, 0.0))

    index = found * CHUNK + tl.arange(0, CHUNK)
    inside = index < vocabulary
    weight = tl.exp(_log_prob(logits, batch, row, index, inside, temperature, normaliser))
    if residuals is not None:
        p = _draft_prob(draft, batch, row, index, inside & recovers, token)
        residual = _residual(tl.load(shrink + batch), weight, p, index, token)
        weight = tl.where(recovers, residual, weight)
    rest *= tl.sum(weight) / expected  # 1, or nearly so: sums of chunks may be of float32 numbers
    found = _first_beyond(index, weight, tl.cumsum(weight), rest)
    tl.store(drawn + batch, found.to(tl.int64))


@_jit
def _address(rows, batch, row, token):
    """In 64 bits: a batch of rows of a large vocabulary may have more than 2^31 elements."""
    start = rows[0] + batch.to(tl.int64) * rows[1] + row.to(tl.int64) * rows[2]
    return start + token.to(tl.int64) * rows[3]


@_jit
def _log_prob(logits, batch, row, token, inside, temperature, normaliser):
    """log q(token), -inf where not inside."""
    at = batch * normaliser[2] + row
    peak, log_sum = tl.load(normaliser[0] + at), tl.load(normaliser[1] + at)
    logit = tl.load(_address(logits, batch, row, token), mask=inside, other=-float("inf"))
    return (logit.to(tl.float64) - peak) / temperature - log_sum


@_jit
def _draft_prob(draft, batch, row, token, inside, drafted):
    """p(token), 0 where not inside."""
    if draft is None:
        prob = tl.where(inside & (token == drafted), 1.0, 0.0)
    else:
        prob = tl.load(_address(draft, batch, row, token), mask=inside, other=0.0)
    return prob.to(tl.float64)


@_jit
def _residual(shrink, q, p, token, drafted):
    """[shrink q - p]_+, and 0 at the drafted token."""
    return tl.where(token == drafted, 0.0, tl.maximum(shrink * q - p, 0.0))


@_jit
def _first_beyond(index, weight, cumulative, threshold):
    """First index of positive weight with threshold < cumulative; else the last such weight's."""
    positive = weight > 0
    last = tl.max(tl.where(positive, index, 0))  # sums by chunks may round to the threshold
    return tl.min(tl.where(positive & (threshold < cumulative), index, last))


@_jit
def _log1p(x):
    """log(1 + x) for x > -1, to a few units in the last place; Triton has none."""
    up = 1 + x
    rounded = up == 1
    return tl.where(rounded, x, tl.log(up) * (x / tl.where(rounded, 1.0, up - 1)))


@_jit
def _log_growth(gain, q, log_q):
    """log((q + gain) / q), also where the quotient overflows."""
    steep = gain > q * 2.0**60  # 1 + gain / q = gain / q in float64
    usual = _log1p(tl.where(steep, 0.0, gain) / q)
    return tl.where(steep, tl.log(tl.where(steep, gain, 1.0)) - log_q, usual)


@_jit
def _kl_gain(q, log_q, delta):
    """g - q with KL(Bernoulli(g) || Bernoulli(q)) = delta, as in cactus_theory.rules._kl_root.

    By the gain x = g - q up to the half-way point (1 + q)/2, by c = 1 - g beyond it; with as many
    steps of Newton's as there.
    """
    room = 1 - q
    deficit = -log_q - delta  # what g = 1 would overspend
    upper = 2 * delta >= (1 + q) * (_log1p(-room / 2) - log_q) - 0.6931471805599453 * room
    complement = _kl_complement(room, log_q, tl.where(deficit > 0, deficit, 0.1))
    gain = tl.where(upper, room - complement, _kl_small_gain(q, room, log_q, delta))
    return tl.where(deficit > 0, gain, room)


@_jit
def _kl_small_gain(q, room, log_q, delta):
    """x <- (delta - q a - (1-q) b) / (a - b), a = log(1 + x/q), b = log(1 - x/(1-q))."""
    above_half = tl.sqrt(2 * delta * q * room)
    below_half = delta + tl.sqrt(delta) * tl.sqrt(delta + 2 * q)
    x = tl.minimum(tl.where(q >= 0.5, above_half, below_half), room / 2)
    close = q * room / 4
    for _ in range(6):
        a, b = _log_growth(x, q, log_q), _log1p(-x / room)
        # For small x, -q a - (1-q) b would cancel.
        spent = x * (_departure(x / (2 * q + x)) - _departure(x / (x - 2 * room)))
        spent = tl.where(x < close, spent, -q * a - room * b)
        x = tl.minimum((delta + spent) / (a - b), room / 2)
    return x


@_jit
def _departure(r):
    """1 - log(1+t)/t with t = 2r/(1-r), for |r| <= 1/7."""
    square = r * r
    series = tl.full(r.shape, 1 / 21, tl.float64)
    for i in tl.static_range(9):
        series = series * square + 1 / (19 - 2 * i)
    return r - (1 - r) * square * series


@_jit
def _kl_complement(room, log_q, deficit):
    """c <- (deficit + log(1-c)) / log((1-c)(1-q)/(c q)), for log(1/q) - delta = deficit."""
    c = deficit / (1 + tl.log(room) - log_q - tl.log(deficit))
    for _ in range(6):
        c = tl.minimum(tl.minimum(tl.maximum(c, 1e-320), 0.5), room / 2)
        shrunk = _log1p(-c)
        c = (deficit + shrunk) / (shrunk - log_q - tl.log(c / room))
    return c
