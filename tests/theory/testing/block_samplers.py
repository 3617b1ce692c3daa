"""Verifiers of whole blocks, right and wrong.

A wrong one is the loop of one, written out with its steps replaceable: none of them runs the code
of the kit.
"""

from __future__ import annotations

import numpy as np

from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    Clamp,
    Lenience,
    Mixture,
    OneLevelRecovery,
    SpeculativeSampling,
    TopKAcceptance,
    TypicalAcceptance,
)
from cactus_theory.specification import inverse_cdf

PLAIN, LOSSY = SpeculativeSampling(), Cactus(0.05)
RULES = [
    PLAIN,
    LOSSY,
    CactusExact(0.1),
    CactusSafe(0.2),
    Clamp(0.05),
    OneLevelRecovery(Cactus(0.1)),
    Lenience(0.5),
    Mixture(0.7),
    TypicalAcceptance(),
    TopKAcceptance(2),
]


def recovered(rule, tokens, draft, target, place, v):
    weights = rule.recovery_weights(tokens[place], draft[place], target[place])
    return inverse_cdf(weights if weights.sum() > 0 else target[place], v)


def bonus(rule, tokens, draft, target, v):
    return inverse_cdf(target[-1], v)


def row_of(rule, *, recovered=recovered, bonus=bonus, uniform=lambda u, i: u[i]):
    """Verifies one row: (tokens emitted, accepted)."""

    def row(tokens, draft, target, u, v):
        for i, token in enumerate(tokens):
            if not uniform(u, i) * draft[i][token] < rule.threshold(token, draft[i], target[i]):
                return [*tokens[:i], recovered(rule, tokens, draft, target, i, v)], i
        return [*tokens, bonus(rule, tokens, draft, target, v)], len(tokens)

    return row


def batched(row, *, padded=False, told=True):
    """Rows verified one by one, in either convention of output."""

    def verifier(tokens, draft, target, accept, recover):
        blocks = [row(*each) for each in zip(tokens, draft, target, accept, recover, strict=True)]
        emitted = [block for block, _ in blocks]
        if padded:
            width = 1 + max(map(len, tokens))
            emitted = np.array([[*block, *[-1] * (width - len(block))] for block in emitted])
        return emitted, [accepted for _, accepted in blocks] if told else None

    return verifier


def shown(rule, show):
    """The right row, and what `show` makes of its result."""
    right = row_of(rule)

    def row(tokens, draft, target, u, v):
        return show(list(tokens), *right(tokens, draft, target, u, v), draft, target, u)

    return row


def flags(rule, tokens, draft, target, u):
    rows = zip(u, tokens, draft, target, strict=False)
    return [a * p[x] < rule.threshold(x, p, q) for a, x, p, q in rows]


def verified_on(rule):
    def row(tokens, draft, target, u, v):
        passed = flags(rule, tokens, draft, target, u)
        emitted = [
            # another number for each, that the one given only sets in motion
            token if kept else recovered(rule, tokens, draft, target, i, v * (i + 3) * 7.3 % 1)
            for i, (token, kept) in enumerate(zip(tokens, passed, strict=True))
        ]
        return [*emitted, *([inverse_cdf(target[-1], v)] if all(passed) else [])], sum(passed)

    return row


def elsewhere(place):
    def at(rule, tokens, draft, target, i, v):
        j = place(i, len(tokens))
        return recovered(rule, {j: tokens[i]}, draft, target, j, v)

    return at


def rolled(rule, order):
    right = row_of(rule)
    return lambda tokens, draft, target, u, v: right(tokens, draft, order(target), u, v)


def argmax(law):
    return int(np.argmax(law))


def wrong_rows(rule):
    """Name of the mistake, and a row verified with it."""
    cut = slice(None, -1)
    return {
        "the count includes the recovered or bonus token": shown(
            rule, lambda x, out, n, *_: (out, n + 1)
        ),
        "the count is one too small": shown(rule, lambda x, out, n, *_: (out, max(n - 1, 0))),
        "the count goes on after the first rejection": shown(
            rule, lambda x, out, n, p, q, u: (out, sum(flags(rule, x, p, q, u)))
        ),
        "drafted tokens after the rejection are not cut": shown(
            rule, lambda x, out, n, *_: (out + x[n + 1 :], n)
        ),
        "positions after the rejection are verified on": verified_on(rule),
        "off by one: the rejected token is kept": shown(
            rule, lambda x, out, n, *_: (x[: n + 1] + out[-1:], n)
        ),
        "off by one: the last accepted token is lost": shown(
            rule, lambda x, out, n, *_: (x[: max(n - 1, 0)] + out[-1:], n)
        ),
        "no bonus token": shown(
            rule, lambda x, out, n, *_: (out[cut] if n == len(x) > 0 else out, n)
        ),
        "no token after a rejection": shown(
            rule, lambda x, out, n, *_: (out if n == len(x) else out[cut], n)
        ),
        "bonus drawn from the draft at the last position": row_of(
            rule, bonus=lambda r, x, p, q, v: inverse_cdf(p[-1] if len(x) else q[-1], v)
        ),
        "bonus drawn from the target one position early": row_of(
            rule, bonus=lambda r, x, p, q, v: inverse_cdf(q[max(len(x) - 1, 0)], v)
        ),
        "bonus drawn from a residual": row_of(
            rule,
            bonus=lambda r, x, p, q, v: inverse_cdf(
                np.maximum(q[-1] - p[-1], 0) if len(x) else q[-1], v
            ),
        ),
        "bonus is the target's argmax": row_of(
            rule, bonus=lambda r, x, p, q, v: argmax(q[-1]) if len(x) else inverse_cdf(q[-1], v)
        ),
        "residual of the first position": row_of(rule, recovered=elsewhere(lambda i, k: 0)),
        "residual of the last position": row_of(rule, recovered=elsewhere(lambda i, k: k - 1)),
        "residual of the next position": row_of(
            rule, recovered=elsewhere(lambda i, k: min(i + 1, k - 1))
        ),
        "residual of the position before": row_of(
            rule, recovered=elsewhere(lambda i, k: max(i - 1, 0))
        ),
        "target one position late": rolled(rule, lambda q: q[[0, *range(len(q) - 1)]]),
        "target one position early": rolled(rule, lambda q: q[[*range(1, len(q)), len(q) - 1]]),
        "one uniform for the whole block": row_of(rule, uniform=lambda u, i: u[0]),
        "recovery from the target": row_of(
            rule, recovered=lambda r, x, p, q, i, v: inverse_cdf(q[i], v)
        ),
        "everything accepted (the draft itself)": row_of(rule, uniform=lambda u, i: -1.0),
    } | ({"plain speculative sampling (no boost)": row_of(PLAIN)} if rule != PLAIN else {})


def reused(rule):
    def row(tokens, draft, target, u, v):
        emitted, n = row_of(rule)(tokens, draft, target, u, v)
        if n < len(tokens):
            emitted[-1] = recovered(rule, tokens, draft, target, n, u[n])
        return emitted, n

    return row


REUSED = "the uniform that rejected also draws the recovered token"
MISTAKES = [(name, PLAIN, row) for name, row in wrong_rows(PLAIN).items()]
MISTAKES += [(name, LOSSY, row) for name, row in wrong_rows(LOSSY).items()]
MISTAKES += [(REUSED, rule, reused(rule)) for rule in (PLAIN, LOSSY)]
COUNTS = {name for name, _, _ in MISTAKES if name.startswith("the count ")}
NAMES = [f"{rule!r}, {name}" for name, rule, _ in MISTAKES]
OF_PLAIN = [item for item in MISTAKES if item[1] == PLAIN or "no boost" in item[0]]


def guarded(verifier):
    """The specification, which takes its laws as valid, behind a check that they are."""

    def checked(tokens, draft, target, accept, recover):
        if not all(np.isfinite(row).all() for row in target):
            raise ValueError("target is not finite")
        return verifier(tokens, draft, target, accept, recover)

    return checked
