"""Audits: exact expectations by enumeration, level by simulation, and what they find."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from cactus_theory import Cactus, Lenience, output_distribution
from cactus_theory.recording import load_recording
from cactus_theory.testing import (
    ALTERNATIVES,
    Alternative,
    Auditor,
    Situation,
    audit,
    measured_tolerance,
    of_rule,
    tempered,
)
from cactus_theory.testing._auditor import family_weights
from tests.theory.small_trees import by_text, decode, tree

# Some dozen products of probabilities, summed over at most 81 texts.
ROUNDING = 1e-11
FEW = tuple(
    a
    for a in ALTERNATIVES
    if a.rule is None or (isinstance(a.rule, Cactus) and a.value in (0.1, 1.0))
)  # without the slower rules
CLAIM = Cactus(0.2)


def evidence(nodes, text, **settings):
    """E after the text."""
    auditor = Auditor(**settings)
    for i, x in enumerate(text):
        at = nodes[text[:i]]
        auditor.add(x, target=at.target, draft=at.draft)
    return math.exp(auditor.log_evidence)


@pytest.fixture(scope="module")
def nodes():
    return tree(np.random.default_rng(3), CLAIM, 3, 3)


def target_texts(nodes, rows=lambda node: node.target):
    texts = {}
    for text in product(range(3), repeat=3):
        texts[text] = math.prod(rows(nodes[text[:i]])[x] for i, x in enumerate(text))
    return texts


def expectation(nodes, texts, **settings):
    return sum(chance * evidence(nodes, text, **settings) for text, chance in texts.items())


# Under the null ---------------------------------------------------------------------------------


def test_the_evidence_has_mean_1_under_the_target(nodes):
    assert expectation(nodes, target_texts(nodes)) == pytest.approx(1, abs=ROUNDING)
    known = expectation(nodes, target_texts(nodes), num_draft_tokens=2)
    assert known == pytest.approx(1, abs=ROUNDING)


@pytest.mark.parametrize("k", [1, 2])
def test_the_evidence_has_mean_1_under_a_lossy_rule_with_a_known_number_of_drafts(nodes, k):
    texts = by_text(decode(nodes, 3, num_drafts=lambda _: k))
    settings = {"rule": CLAIM, "num_draft_tokens": k, "max_new_tokens": 3, "alternatives": FEW}
    assert expectation(nodes, texts, **settings) == pytest.approx(1, abs=ROUNDING)


@pytest.mark.parametrize("drafts", [lambda _: 1, lambda _: 2, lambda text: len(text) % 2])
def test_without_it_the_mean_is_at_most_1_whatever_the_number_of_drafts(nodes, drafts):
    texts = by_text(decode(nodes, 3, num_drafts=drafts))
    assert expectation(nodes, texts, rule=CLAIM, alternatives=FEW) <= 1 + ROUNDING
    assert expectation(nodes, target_texts(nodes), rule=CLAIM, alternatives=FEW) <= 1 + ROUNDING


def test_the_target_in_place_of_the_claimed_rule_has_a_mean_above_1(nodes):
    settings = {"rule": CLAIM, "num_draft_tokens": 2, "max_new_tokens": 3}
    assert expectation(nodes, target_texts(nodes), **settings) > 1.001


@pytest.mark.parametrize("seed", range(5))
def test_with_a_tolerance_the_mean_is_at_most_1_for_every_sampler_within_it(nodes, seed):
    rng = np.random.default_rng(seed)
    noise = {prefix: rng.normal(size=3) * 0.3 for prefix in nodes}
    bent = {}
    for prefix, node in nodes.items():
        weights = node.target * np.exp(noise[prefix])
        bent[prefix] = node._replace(target=weights / weights.sum())
    tolerance = max(
        math.log((bent[prefix].target ** 2 / node.target).sum()) for prefix, node in nodes.items()
    )
    texts = target_texts(bent)
    assert expectation(nodes, texts, tolerance=tolerance, alternatives=FEW) <= 1 + ROUNDING
    weightless = expectation(nodes, texts, alternatives=FEW)
    assert weightless != pytest.approx(1, abs=1e-4)  # the noise is not negligible


def test_the_tolerance_is_the_least_that_holds_against_the_worst_alternative():
    """E[sqrt(b) exp(-eps/2)] <= 1 for every alternative, and not so without root or tolerance."""
    q, s = np.array([0.5, 0.3, 0.2]), np.array([0.35, 0.25, 0.4])
    eps = math.log((s**2 / q).sum())
    worst = Alternative("token 2", lambda situation: np.eye(3)[2])

    def mean(tolerance):
        total = 0.0
        for x, chance in enumerate(s):
            auditor = Auditor(alternatives=[worst], tolerance=tolerance)
            auditor.add(x, target=q)
            total += chance * math.exp(auditor.log_evidence)
        return total

    factors = 0.5 + np.eye(3)[2] / (2 * q)
    assert mean(eps) == pytest.approx((s * np.sqrt(factors)).sum() * math.exp(-eps / 2), rel=1e-14)
    assert mean(eps) <= 1
    assert (s * factors).sum() * math.exp(-eps) > 1
    assert (s * np.sqrt(factors)).sum() > 1


def sup_of_runs(runs, length, **settings):
    """The largest evidence of fair runs over the bundled recording."""
    laws, rng = load_recording(), np.random.default_rng(11)
    tops = []
    for _ in range(runs):
        auditor = Auditor(**settings)
        best = 0.0
        for i in rng.integers(len(laws), size=length):
            q = laws.target[i, :40] / laws.target[i, :40].sum()
            p = laws.draft[i, :40] / laws.draft[i, :40].sum()
            x = int(rng.choice(40, p=q))
            auditor.add(x, target=q, draft=p)
            best = max(best, auditor.log_evidence)
        tops.append(best)
    return np.array(tops)


def test_a_fair_sampler_is_accused_no_more_often_than_alpha_wherever_one_stops():
    alternatives = [
        a for a in ALTERNATIVES if a.name in ("temperature, times 0.8", "temperature, times 1.2")
    ]
    alternatives.append(of_rule(Lenience(0.5), "lenience"))
    tops = sup_of_runs(200, 60, alternatives=alternatives)
    for alpha in (0.3, 0.1, 0.02):
        accused = int((tops >= -math.log(alpha)).sum())
        # More would happen once in a thousand times if the level were exactly alpha.
        assert accused <= binom.isf(1e-3, 200, alpha)
    assert (tops >= -math.log(0.3)).sum() > 5  # the simulation can see accusations


def test_an_optional_stop_at_the_worst_moment_is_still_within_the_level():
    alternatives = [a for a in ALTERNATIVES if a.name == "temperature, times 1.43"]
    tops = sup_of_runs(200, 40, alternatives=alternatives)
    accused = int((tops >= math.log(5)).sum())
    assert 0 < accused <= binom.isf(1e-3, 200, 0.2)


# What is found ----------------------------------------------------------------------------------


def drawn(law, count=700, seed=0):
    """Tokens that a sampler with a law of (draft, target) emits along the bundled recording."""
    laws, rng = load_recording(), np.random.default_rng(seed)
    at = rng.integers(len(laws), size=count)
    p, q = (np.stack([x[i, :40] / x[i, :40].sum() for i in at]) for x in (laws.draft, laws.target))
    tokens = np.array([rng.choice(40, p=law(a, b)) for a, b in zip(p, q, strict=True)])
    return {"tokens": tokens, "draft": p, "target": q}


@pytest.mark.parametrize(
    ("law", "family", "value"),
    [
        (lambda p, q: tempered(q, 0.7), "temperature, times {:.3g}", 0.7),
        (lambda p, q: tempered(q, 1.43), "temperature, times {:.3g}", 1.43),
        (lambda p, q: p, "the draft in place of the target", None),
        (lambda p, q: 0.9 * q + 0.1 / 40, "mixed with uniform, weight {:.2g}", 0.1),
    ],
    ids=["colder", "hotter", "draft", "uniform"],
)
def test_a_mistake_is_found_and_named_with_its_parameter(law, family, value):
    found = audit(**drawn(law), alternatives=FEW)
    assert not found.consistent
    assert found.likely.family == family
    assert found.likely.value == value


def test_alternatives_that_the_tokens_do_not_tell_apart_are_named():
    colder = [Alternative(name, lambda s: tempered(s.target, 0.7)) for name in ("a", "b")]
    others = [Alternative(str(t), lambda s, t=t: tempered(s.target, t)) for t in (0.95, 1.43)]
    data = drawn(lambda p, q: tempered(q, 0.7))
    alone = audit(**data, alternatives=others[:1])
    assert alone.likely.name == "0.95"  # more likely than the target itself, but far behind 0.7
    found = audit(**data, alternatives=[*colder, *others])
    assert (found.likely.name, found.alike) == ("a", ("b",))
    assert "not told apart from b" in str(found)
    assert audit(**data, alternatives=[colder[0], *others]).alike == ()


def test_the_rate_is_near_the_divergence_of_what_is_emitted():
    rule = Cactus(0.3)
    law = lambda p, q: output_distribution(rule, draft=p, target=q)  # noqa: E731
    data = drawn(law, 2500)
    found = audit(**data, alternatives=[of_rule(rule, "Cactus(0.3)")])
    exact = np.mean(
        [
            float((o * np.log(o / q, where=o > 0, out=0 * o)).sum())
            for p, q in zip(data["draft"], data["target"], strict=True)
            for o in [law(p, q)]
        ]
    )
    spread = (found.likely.high - found.likely.low) / 2
    assert found.likely.low - spread < exact < found.likely.high + spread  # 4 standard errors
    assert found.decided_after is not None


def test_a_lossy_sampler_as_claimed_is_consistent_and_another_is_not():
    right = drawn(lambda p, q: output_distribution(CLAIM, draft=p, target=q), 400)
    assert audit(**right, rule=CLAIM, alternatives=FEW).consistent
    wrong = drawn(lambda p, q: p, 1200)
    assert not audit(**wrong, rule=CLAIM, alternatives=FEW).consistent


def test_a_fair_sampler_passes_all_three_tests():
    found = audit(**drawn(lambda p, q: q, 300))
    assert found.consistent
    assert abs(found.surprise) < 4
    assert found.uniformity_p > 1e-4


def test_without_a_draft_surprise_and_uniformity_still_see_a_temperature():
    found = audit(**drawn(lambda p, q: tempered(q, 0.7)), alternatives=FEW[:1])
    assert found.surprise > 6
    assert found.uniformity_p < 1e-6


def test_noise_within_the_tolerance_is_not_accused_where_it_would_be_without():
    noisy = lambda p, q: (w := q * np.exp(0.2 * np.sign(q - np.median(q)))) / w.sum()  # noqa: E731
    data = drawn(noisy, 2000)
    own = np.stack([noisy(None, q) for q in data["target"]])
    tolerance = measured_tolerance(own, data["target"])
    alternatives = [a for a in ALTERNATIVES if a.family.startswith("temperature")]
    exact = audit(**data, alternatives=alternatives, level=1e-3)
    loose = audit(**data, alternatives=alternatives, level=1e-3, tolerance=tolerance)
    assert loose.consistent
    assert exact.log_evidence.max() > loose.log_evidence.max()


def test_a_token_of_probability_0_decides_at_once():
    found = audit([0, 1, 0], target=[[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]])
    assert (found.decided_after, found.impossible, found.p_value) == (2, 1, 0)


def test_a_recording_is_read_with_its_left_out_tokens_merged():
    laws, rng = load_recording(), np.random.default_rng(4)
    tokens = []
    for i in range(len(laws)):
        column = rng.choice(laws.target.shape[1], p=laws.target[i])
        known = column < laws.tokens.shape[1]
        tokens.append(int(laws.tokens[i, column]) if known else 10**6)
    found = audit(tokens, target=laws, alternatives=FEW)
    assert found.consistent
    assert found.tokens == 96


def test_iterators_arrays_and_tokens_added_one_by_one_give_the_same():
    data = drawn(lambda p, q: q, 30)
    whole = audit(**data, alternatives=FEW, lengths=[10, 20])
    lazy = audit(
        data["tokens"], target=iter(data["target"]), draft=iter(data["draft"]), alternatives=FEW
    )
    auditor = Auditor(alternatives=FEW)
    for x, p, q in zip(*(data[name] for name in ("tokens", "draft", "target")), strict=True):
        auditor.add(int(x), draft=p, target=q)
    for other in (lazy, auditor.result()):
        np.testing.assert_array_equal(other.log_evidence, whole.log_evidence)
    assert auditor.tokens == 30


def test_other_distributions_become_alternatives_of_their_name():
    rng = np.random.default_rng(2)
    wide = rng.dirichlet(np.ones(20), size=400)
    narrow = np.where(wide >= np.sort(wide, axis=1)[:, 5:6], wide, 0)
    narrow /= narrow.sum(axis=1, keepdims=True)
    tokens = [rng.choice(20, p=row) for row in wide]
    target = 0.99 * narrow + 0.01 / 20  # so that no token decides at once
    found = audit(tokens, target=target, others={"filters not applied": wide})
    assert found.likely.name == "filters not applied"


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": []}, r"tokens must be integers of shape \(T,\) with T >= 1"),
        ({"tokens": [0.5]}, "tokens must be integers"),
        ({"tokens": [2]}, r"tokens must lie in \[0, 2\), got 2"),
        ({"target": [[0.5, 0.5]] * 2}, r"target must have shape \(1, V\)"),
        ({"target": iter([])}, "target must have 1 rows, one a token, got 0"),
        ({"target": [[0.5, 0.6]]}, "target must sum to 1"),
        ({"lengths": [2]}, "lengths must sum to the 1 tokens, got 2"),
        ({"level": 1.0}, r"level must lie in \(0, 1\), got 1.0"),
        ({"tolerance": -1.0}, "tolerance must be a number of nats"),
        ({"rule": Cactus(0.1)}, "draft must be given where the null is rule=Cactus"),
        ({"alternatives": []}, "alternatives must hold at least one"),
    ],
)
def test_what_is_wrong_is_said(settings, message):
    arguments = {"tokens": [0], "target": [[0.5, 0.5]]} | settings
    with pytest.raises((ValueError, TypeError), match=message):
        audit(arguments.pop("tokens"), **arguments)


def test_a_verdict_on_nothing_and_positions_unlike_the_first_are_refused():
    auditor = Auditor()
    with pytest.raises(ValueError, match="tokens must hold at least one"):
        auditor.result()
    auditor.add(0, target=[0.5, 0.5], draft=[0.5, 0.5])
    with pytest.raises(ValueError, match="every position must have draft"):
        auditor.add(0, target=[0.5, 0.5])


def test_families_share_the_weight_equally_and_every_alternative_is_a_distribution():
    weights = family_weights(ALTERNATIVES)
    of = {}
    for a, w in zip(ALTERNATIVES, weights, strict=True):
        of[a.family] = of.get(a.family, 0) + w
    assert np.ptp(list(of.values())) < 1e-12
    q, p = np.random.default_rng(0).dirichlet(np.ones(70), size=2)
    for a in ALTERNATIVES:
        law = a.distribution(Situation(q, p))
        assert (law >= 0).all()
        assert law.sum() == pytest.approx(1, abs=1e-9), a.name
