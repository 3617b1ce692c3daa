"""Samplers of one token built from parts: who drafts, when a token is kept, what is recovered.

Any part can be replaced by a wrong one.
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
from cactus_theory.specification import inverse_cdf, verify
from cactus_theory.testing import (
    OnePosition,
)

CANDIDATES = [
    SpeculativeSampling(),
    Cactus(0.0),
    Cactus(0.1),
    Cactus(1.0),
    CactusExact(0.1),
    CactusSafe(0.2),
]
SHARED = [
    Clamp(0.05),
    OneLevelRecovery(Cactus(0.1)),
    Lenience(0.5),
    Mixture(0.7),
    TypicalAcceptance(),
    TopKAcceptance(2),
]
# Rejections of two tokens, recovery of three with different ratios: every mistake shows.
P = np.array([0.50, 0.26, 0.15, 0.06, 0.03])
Q = np.array([0.05, 0.03, 0.35, 0.28, 0.29])


def parts(rule, *, accept=None, recovery=None, proposal=None):
    """(proposal, chance of acceptance, recovery laws) of a rule, with parts replaced."""

    def usual_recovery(token, p, q):
        weights = rule.recovery_weights(token, p, q)
        return weights if weights.sum() > 0 else q

    def solve(p, q):
        drawn = p if proposal is None else proposal(p)
        if accept is None:
            chance = np.array([rule.threshold(n, p, q) for n in range(p.size)])
            chance = np.minimum(chance / np.where(p > 0, p, 1.0), 1.0)
        else:
            chance = accept(p, q)
        weights = np.array([(recovery or usual_recovery)(n, p, q) for n in range(p.size)])
        return drawn, chance, weights

    return solve


def as_verifier(solve):
    """A verifier of one token, as check_by_enumeration takes it."""
    known = {}

    def verifier(token, p, q, accept, recover):
        key = p.tobytes() + q.tobytes()
        if key not in known:
            known[key] = solve(p, q)
        _, chance, weights = known[key]
        if accept < chance[token]:
            return token, True
        return inverse_cdf(weights[token], recover), False

    return OnePosition(verifier)


def counting(solve):
    """Counts of emitted tokens, drawing what it would draw one by one."""

    def sampler(p, q, count, seed):
        rng = np.random.default_rng(seed)
        drawn, chance, weights = solve(p, q)
        drafted = rng.multinomial(count, drawn)
        kept = rng.binomial(drafted, chance)
        counts = kept.copy()
        for token, lost in enumerate(drafted - kept):
            counts += rng.multinomial(lost, weights[token] / weights[token].sum())
        return counts

    return sampler


def shared(law):
    return lambda token, p, q: law(p, q)


def powered(law, exponent):
    return law**exponent / (law**exponent).sum()


def one_hot(weights):
    return np.eye(len(weights))[int(np.argmax(weights))]


def kept_by(rule):
    return lambda p, q: np.minimum(rule.accepted_mass(p, q) / p, 1.0)


def variant(rule):
    """A whole other rule in place of the one expected."""
    return parts(rule)


LOSSY = Cactus(0.1)
PLAIN = SpeculativeSampling()

# what the message must say, the rule expected, the sampler made
MISTAKES = [
    ("plain speculative sampling (no boost)", LOSSY, variant(PLAIN)),
    (
        "everything accepted (the draft itself)",
        LOSSY,
        parts(LOSSY, accept=lambda p, q: np.ones(p.size)),
    ),
    (
        "everything accepted (the draft itself)",
        PLAIN,
        parts(PLAIN, accept=lambda p, q: np.ones(p.size)),
    ),
    (
        "residual not rescaled",
        LOSSY,
        parts(LOSSY, recovery=shared(lambda p, q: np.maximum(q - p, 0))),
    ),
    ("recovery from the target", PLAIN, parts(PLAIN, recovery=shared(lambda p, q: q))),
    ("recovery from the target", LOSSY, parts(LOSSY, recovery=shared(lambda p, q: q))),
    (
        "recovery of the residual's argmax",
        PLAIN,
        parts(PLAIN, recovery=lambda n, p, q: one_hot(PLAIN.recovery_weights(n, p, q))),
    ),
    ("acceptance without the draft's", PLAIN, parts(PLAIN, accept=lambda p, q: q)),
    ("acceptance without the draft's", LOSSY, parts(LOSSY, accept=lambda p, q: LOSSY.boost(q))),
    ("mixture w = ", PLAIN, variant(Mixture(0.5))),
    ("lenience l = ", PLAIN, variant(Lenience(0.6))),
    ("lenience l = ", LOSSY, variant(Lenience(0.6))),
    ("Cactus, delta = 0.", PLAIN, variant(Cactus(0.1))),
    ("Cactus, delta = 0.", LOSSY, variant(Cactus(0.4))),
    ("top-k acceptance, k = 2", PLAIN, variant(TopKAcceptance(2))),
    ("the target's top 3", PLAIN, None),
    ("typical acceptance", LOSSY, variant(TypicalAcceptance())),
]
DRAFTED_WRONGLY = [  # the enumeration drafts by itself, so only counts can show these
    ("draft and target exchanged", LOSSY, None),
    ("draft temperature 0.49", PLAIN, parts(PLAIN, proposal=lambda p: powered(p, 1 / 0.49))),
    ("draft temperature 2.2", LOSSY, parts(LOSSY, proposal=lambda p: powered(p, 1 / 2.25))),
    ("greedy draft", PLAIN, parts(PLAIN, proposal=lambda p: one_hot(p))),
]


def exchanged(p, q):
    drawn, chance, weights = parts(LOSSY)(q, p)
    return drawn, chance, weights


def cut_to_three(p, q):
    cut = np.where(q >= np.sort(q)[-3], q, 0.0)
    return parts(PLAIN)(p, cut / cut.sum())


WHOLE = {"draft and target exchanged": exchanged, "the target's top 3": cut_to_three}


def specified(rule):
    """The specification asked for one token."""

    def verifier(token, draft, target, accept, recover):
        emitted, accepted = verify(
            rule,
            [token],
            draft=[draft],
            target=[target, target],
            accept_uniforms=[accept],
            recover_uniform=recover,
        )
        return emitted[0], accepted == 1

    return verifier


def guarded(rule):
    """The specification, which takes its laws as valid, behind a check that they are."""

    def verifier(token, draft, target, accept, recover):
        if not np.isfinite(target).all():
            raise ValueError("target is not finite")
        return specified(rule)(token, draft, target, accept, recover)

    return OnePosition(verifier)


def made(name, solve):
    return WHOLE[name] if solve is None else solve
