"""The conformance kit at one position: right samplers pass, each usual mistake is named.

Samplers here are built from parts (who drafts, when a token is kept, what is recovered), so that a
mistake is one replaced part, and the very checks the honest one passes must reject it.
"""

from __future__ import annotations

import doctest
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.stats import chi2, ncx2

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
    acceptance_rate,
)
from cactus_theory.specification import inverse_cdf, verify
from cactus_theory.testing import (
    ConformanceError,
    OnePosition,
    all_rules,
    check_by_enumeration,
    check_counts,
    check_edges,
    diagnose,
    pairs,
    samples_needed,
    specification_verifier,
    wrong_distributions,
)
from cactus_theory.testing._gtest import merged, power, statistic

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


@pytest.mark.parametrize("rule", [*CANDIDATES, *SHARED], ids=repr)
@pytest.mark.parametrize("adapted", [True, False], ids=["one token", "blocks"])
def test_the_specification_passes_by_enumeration(rule, adapted):
    for cells in (8, 13):
        found = check_by_enumeration(
            OnePosition(specified(rule)) if adapted else specification_verifier(rule),
            rule,
            draft=np.array([0.7, 0.2, 0.1]),
            target=np.array([0.1, 0.3, 0.6]),
            cells=cells,
        )
        rate = acceptance_rate(
            rule, draft=np.array([0.7, 0.2, 0.1]), target=np.array([0.1, 0.3, 0.6])
        )
        assert found.accepted_mass().sum() == pytest.approx(float(rate), abs=0.5 / cells)


@settings(max_examples=30, deadline=None)
@given(rule=all_rules(), pair=pairs(max_size=4))
def test_the_specification_stays_within_the_proved_tolerance_everywhere(rule, pair):
    verifier = as_verifier(lambda p, q: specification_parts(rule, p, q))
    check_by_enumeration(verifier, rule, draft=pair.draft, target=pair.target, cells=9)


def specification_parts(rule, p, q):
    chance = np.array([_chance(rule, n, p, q) for n in range(p.size)])
    weights = [rule.recovery_weights(n, p, q) for n in range(p.size)]
    return p, chance, np.array([w if w.sum() > 0 else q for w in weights])


def _chance(rule, token, p, q):
    return 0.0 if p[token] == 0 else min(rule.threshold(token, p, q) / p[token], 1.0)


@pytest.mark.parametrize("rule", [*CANDIDATES, *SHARED], ids=repr)
def test_the_specification_passes_the_edge_battery(rule):
    check_edges(guarded(rule), rule)


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


@pytest.mark.parametrize("rule", [*CANDIDATES, *SHARED], ids=repr)
def test_an_honest_sampler_passes_and_the_power_is_told(rule):
    samples = max(samples_needed(rule, draft=P, target=Q), 20_000)
    counts = counting(parts(rule))(P, Q, samples, 0)
    report = check_counts(counts, rule, draft=P, target=Q)
    assert report.statistic < report.threshold
    assert report.threshold == pytest.approx(chi2.isf(1e-6, report.degrees))
    assert min(report.power.values()) >= 0.999
    assert len(report.power) > 10


def test_plain_speculative_sampling_on_fractions_is_compared_exactly():
    p = np.array([Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)])
    q = np.array([Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)])
    found = check_by_enumeration(specification_verifier(PLAIN), PLAIN, draft=p, target=q, cells=12)
    assert list(found.first_token()) == list(q)
    assert list(found.accepted_mass()) == list(np.minimum(p, q))
    assert not any(found.tolerances[0].values())
    coarse = check_by_enumeration(specification_verifier(PLAIN), PLAIN, draft=p, target=q, cells=3)
    assert any(coarse.tolerances[0].values())  # the thresholds do not lie on thirds

    def a_little_off(token, draft, target, accept, recover):
        if accept * draft[token] < target[token] + Fraction(1, 24):
            return token, True
        return inverse_cdf(np.maximum(target - draft, 0), recover), False

    with pytest.raises(ConformanceError, match=r"with probability 0\.\d+ instead of"):
        check_by_enumeration(OnePosition(a_little_off), PLAIN, draft=p, target=q, cells=12)


def made(name, solve):
    return WHOLE[name] if solve is None else solve


@pytest.mark.parametrize(("name", "rule", "solve"), MISTAKES)
def test_each_mistake_is_rejected_by_enumeration_and_named(name, rule, solve):
    with pytest.raises(ConformanceError) as caught:
        check_by_enumeration(as_verifier(made(name, solve)), rule, draft=P, target=Q, cells=120)
    assert f"it matches {name}" in str(caught.value)


@pytest.mark.parametrize(("name", "rule", "solve"), [*MISTAKES, *DRAFTED_WRONGLY])
def test_each_mistake_is_rejected_by_counts_and_named(name, rule, solve):
    counts = counting(made(name, solve))(P, Q, 1_000_000, 0)
    with pytest.raises(ConformanceError) as caught:
        check_counts(counts, rule, draft=P, target=Q)
    assert f"it matches {name}" in str(caught.value)
    assert "false-alarm level 1e-06" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "value", "solve"),
    [
        ("draft temperature", 0.49, parts(PLAIN, proposal=lambda p: powered(p, 1 / 0.49))),
        ("mixture w =", 0.3, variant(Mixture(0.3))),
        ("lenience l =", 0.4, variant(Lenience(0.4))),
        ("Cactus, delta =", 0.25, variant(Cactus(0.25))),
    ],
)
def test_a_parameter_is_fitted_to_a_few_percent(pattern, value, solve):
    counts = counting(solve)(P, Q, 4_000_000, 3)
    name, distance = diagnose(counts, PLAIN, draft=P, target=Q)[0]
    assert name.startswith(pattern)
    assert float(name.split()[-1]) == pytest.approx(value, rel=0.03)
    assert distance < 1e-5  # G / 2n, with G about its 4 degrees of freedom


def test_the_exact_laws_of_the_catalogue_are_named_without_noise():
    family = lambda name: name.split(",")[0].split(" = ")[0].rstrip("0123456789.")  # noqa: E731
    for rule in (PLAIN, LOSSY):
        wrong = wrong_distributions(rule, draft=P, target=Q)
        for law in wrong.values():
            found = diagnose(law, rule, draft=P, target=Q)
            same = {family(name) for name, other in wrong.items() if abs(other - law).max() < 1e-12}
            # A fitted family may meet another's law by chance; the right one is among the first.
            assert found[0][1] < 1e-7
            assert same & {family(name) for name, distance in found if distance < 1e-7}


def test_a_law_found_right_is_said_to_be_right():
    counts = counting(parts(LOSSY))(P, Q, 100_000, 0)
    assert (
        diagnose(counts, LOSSY, draft=P, target=Q)[0][0] == "the distribution of Cactus(delta=0.1)"
    )


def test_a_law_that_nothing_explains_is_not_given_a_name():
    with pytest.raises(ConformanceError, match="nothing in the catalogue fits"):
        check_counts([20_000] * 5, PLAIN, draft=P, target=Q)


def test_the_right_law_with_the_wrong_acceptance_is_told_apart():
    def never(token, p, q, accept, recover):
        return inverse_cdf(q, recover), False

    with pytest.raises(ConformanceError, match=r"drafted token \d is accepted with mass 0 instead"):
        check_by_enumeration(OnePosition(never), PLAIN, draft=P, target=Q, cells=100)


def test_two_hundred_honest_runs_raise_no_alarm():
    sampler = counting(parts(LOSSY))
    for seed in range(200):
        check_counts(sampler(P, Q, 60_000, seed), LOSSY, draft=P, target=Q)


def test_the_false_alarm_level_holds_where_it_can_be_measured():
    # Cells at the smallest expectation allowed, the hardest case for the approximation.
    law = np.array([0.01, 0.01, 0.02, 0.06, 0.1, 0.8])
    samples, runs, level = 1000, 20_000, 1e-3
    assert min(samples * law[cell].sum() for cell in merged(law, samples)) >= 10
    draws = np.random.default_rng(5).multinomial(samples, law, size=runs)
    alarms = sum(
        found > threshold
        for found, threshold, _ in (statistic([row], [law], level) for row in draws)
    )
    assert alarms <= 20 + 5 * np.sqrt(20)  # Poisson of mean 20, five standard deviations


def test_the_power_told_is_the_power_had():
    wrong = 0.97 * Q + 0.03 * P
    samples, runs, level = 4_000, 4_000, 1e-3
    told = power([Q], [wrong], samples, level)
    assert 0.05 < told < 0.95
    draws = np.random.default_rng(6).multinomial(samples, wrong, size=runs)
    had = np.mean([s > t for s, t, _ in (statistic([row], [Q], level) for row in draws)])
    assert had == pytest.approx(told, abs=0.05)  # .02 of it is the noise of 4,000 runs


def test_strata_add_their_statistics_their_degrees_and_their_noncentralities():
    wrong, samples, level = 0.97 * Q + 0.03 * P, 4_000, 1e-3
    rng = np.random.default_rng(7)
    counts, laws = [rng.multinomial(samples, law) for law in (Q, P)], [Q, P]
    alone = [statistic([row], [law], level) for row, law in zip(counts, laws, strict=True)]
    value, threshold, degrees = statistic(counts, laws, level)
    assert value == pytest.approx(sum(found for found, _, _ in alone))
    assert degrees == sum(each for _, _, each in alone) == 8
    assert threshold == pytest.approx(chi2.isf(level, degrees))
    far = 2 * samples * float((wrong * np.log(wrong / Q)).sum())
    assert power([Q, P], [wrong, P], samples, level) == pytest.approx(ncx2.sf(threshold, 8, far))
    assert power([Q, Q], [wrong] * 2, samples, level) == pytest.approx(
        ncx2.sf(threshold, 8, 2 * far)
    )


def test_too_few_samples_are_refused_and_the_number_needed_is_said_and_enough():
    needed = samples_needed(LOSSY, draft=P, target=Q)
    sampler = counting(parts(LOSSY))
    with pytest.raises(ValueError, match=f"it takes {needed} for 0.999"):
        check_counts(sampler(P, Q, needed // 2, 0), LOSSY, draft=P, target=Q)
    report = check_counts(sampler(P, Q, needed, 0), LOSSY, draft=P, target=Q)
    assert 0.999 <= min(report.power.values()) < 0.9999


def test_what_is_too_near_to_be_told_is_named_and_not_promised():
    counts = counting(parts(LOSSY))(P, Q, 10_000, 0)
    report = check_counts(counts, LOSSY, draft=P, target=Q, smallest=0.2)
    assert "residual not rescaled" in report.indistinguishable
    assert "residual not rescaled" not in report.power


def test_a_token_of_no_probability_is_one_too_many():
    q = np.array([0.5, 0.5, 0.0])
    p = np.array([0.4, 0.2, 0.4])

    counts = np.random.default_rng(0).multinomial(99_999, q) + np.array([0, 0, 1])
    with pytest.raises(ConformanceError, match="token 2 is emitted, whose probability is 0"):
        check_counts(counts, PLAIN, draft=p, target=q)


@pytest.mark.parametrize(
    "counts", [[10, 10], [0, 0, 0, 0, 0], [100_001, -1, 0, 0, 0], [1.5, 99_998.5, 0, 0, 0]]
)
def test_what_is_no_count_is_said_so(counts):
    with pytest.raises(ConformanceError, match="counts of"):
        check_counts(counts, PLAIN, draft=P, target=Q)


def sps(*, passes=lambda u, p, q: u * p < q, residual=None, invert=inverse_cdf):
    def verifier(token, p, q, accept, recover):
        if passes(accept, p[token], q[token]):
            return token, True
        weights = np.maximum(q - p, 0) if residual is None else residual(p, q)
        return invert(weights if weights.sum() > 0 else q, recover), False

    return verifier


def careless_inverse(weights, uniform):
    cumulative = np.cumsum(weights)
    return int(np.nonzero(cumulative >= uniform * cumulative[-1])[0][0])


def crashing(token, p, q, accept, recover):
    if accept * p[token] < q[token]:
        return token, True
    weights = np.maximum(q - p, 0)
    if not weights.sum() > 0:
        raise RuntimeError("invalid multinomial distribution")
    return inverse_cdf(weights, recover), False


@pytest.mark.parametrize(
    ("words", "verifier"),
    [
        ("target 0 where the draft is not, u = 0, ", sps(passes=lambda u, p, q: u * p <= q)),
        ("draft = target, u = 0.99", sps(passes=lambda u, p, q: u * p < 0.99 * q)),
        ("leading and trailing zeros in the residual", sps(invert=careless_inverse)),
        (
            "padded vocabulary, u = .*recovered token 4",
            sps(invert=lambda w, u: inverse_cdf(w, u) if u < 0.9 else len(w) - 1),
        ),
        (
            "outside a vocabulary of 1",
            lambda n, p, q, u, v: (n + 1, False) if p.size == 1 else sps()(n, p, q, u, v),
        ),
        ("empty residual: RuntimeError", crashing),
        ("recovered token", sps(residual=lambda p, q: q)),
        (
            "accepted drafted token 0 but emitted 1",
            lambda n, p, q, u, v: (1, True) if n == 0 and p.size > 1 else sps()(n, p, q, u, v),
        ),
        ("NaN row", sps(passes=lambda u, p, q: not u * p >= q)),
    ],
)
def test_the_edge_battery_finds(words, verifier):
    check_edges(OnePosition(sps()))
    with pytest.raises(ConformanceError, match=words):
        check_edges(OnePosition(verifier))


def test_a_rule_with_shared_recovery_is_meant_as_it_is_defined_at_the_edges():
    with pytest.raises(ConformanceError):
        check_edges(guarded(PLAIN), Lenience(0.5))


def test_bad_arguments_are_refused():
    verifier = specification_verifier(PLAIN)
    with pytest.raises(ValueError, match="cells"):
        check_by_enumeration(verifier, PLAIN, draft=P, target=Q, cells=1)
    with pytest.raises(ValueError, match="vocabulary"):
        check_by_enumeration(verifier, PLAIN, draft=P, target=Q[1:] / Q[1:].sum())
    with pytest.raises(ValueError, match="false_alarm"):
        check_counts([1] * 5, PLAIN, draft=P, target=Q, false_alarm=0.0)
    with pytest.raises(ValueError, match=r"shape \(V,\)"):
        check_counts([1] * 5, PLAIN, draft=[P], target=[Q, Q])
    with pytest.raises(ValueError, match="observed"):
        diagnose([1, 2], PLAIN, draft=P, target=Q)


def test_the_checks_need_no_hypothesis():
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from cactus_theory.testing import check_edges, specification_verifier, diagnose\n"
        "from cactus_theory import SpeculativeSampling\n"
        "diagnose([1, 2], SpeculativeSampling(), draft=[0.5, 0.5], target=[0.5, 0.5])\n"
        "from cactus_theory.testing._hypothesis_plugin import register; register()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_samples_needed_grow_as_the_false_alarm_level_falls():
    needed = [
        samples_needed(PLAIN, draft=P, target=Q, false_alarm=level) for level in (1e-2, 1e-6, 1e-12)
    ]
    assert all(a < b for a, b in pairwise(needed))


def test_the_examples_of_the_page_on_samplers_run():
    page = Path(__file__).parents[3] / "docs" / "samplers.md"
    result = doctest.testfile(
        str(page), module_relative=False, optionflags=doctest.ELLIPSIS, encoding="utf-8"
    )
    assert result.attempted == 16
    assert result.failed == 0
