"""Recorded laws: what merging costs stays within its stated bounds, and files come back whole."""

from __future__ import annotations

import io
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    Clamp,
    ThresholdAcceptance,
    emission,
    kl,
    output_distribution,
)
from cactus_theory.recording import compress_distributions, load_recording
from cactus_theory.testing import pairs

RULES = [Cactus(0.0), Cactus(0.1), Cactus(3.0), CactusExact(0.5), CactusSafe(0.3)]
ROUNDING = 1e-12  # of sums of fewer than a hundred terms of order 1
FLAT = (np.full(64, 1 / 64), np.linspace(1, 2, 64) / np.linspace(1, 2, 64).sum())


def figures(rule, draft, target):
    """The figures of an emission, and KL(out||q), by position."""
    cost = emission(rule, draft=draft, target=target)
    law = output_distribution(rule, draft=draft, target=target)
    law = law / law.sum(axis=-1, keepdims=True)
    return cost.acceptance_rate, cost.total_variation, cost.kl_bound, kl(law, target)


def assert_within_bounds(rule, laws, draft, target, *, slack, errors=None):
    true = figures(rule, draft, target)
    told = figures(rule, laws.draft, laws.target)
    errors = errors or laws.errors
    for name, a, b in zip([f.name for f in fields(errors)], true, told, strict=True):
        bound = getattr(errors, name)
        assert (np.abs(a - b) <= bound + slack).all(), (name, a, b, bound)


def random_laws(size, *, spread, seed=3, positions=5):
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((positions, size))
    other = logits + rng.standard_normal((positions, size))
    return tuple(np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (other, logits))


@settings(deadline=None)
@given(pairs(), st.sampled_from(RULES), st.floats(0, 0.9))
@example(FLAT, Cactus(0.1), 0.5)
@example((np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.0, 0.5])), Cactus(0.1), 0.6)
def test_no_figure_errs_by_more_than_its_bound(pair, rule, tolerance):
    draft, target = pair
    laws = compress_distributions(draft=draft, target=target, tolerance=tolerance)
    assert_within_bounds(rule, laws, draft, target, slack=ROUNDING)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-4])
def test_the_bounds_hold_for_laws_like_those_of_models(rule, tolerance):
    draft, target = random_laws(400, spread=2.0)
    laws = compress_distributions(draft=draft, target=target, tolerance=tolerance)
    assert 0 < laws.tokens.shape[1] < 400
    assert_within_bounds(rule, laws, draft, target, slack=ROUNDING)


def test_the_bounds_but_that_of_the_exact_kl_are_nearly_reached():
    many, p, q = 100_000, 0.1, 1e-5  # each of the many is sure to pass; merged, they hardly do
    draft = np.append(1 - p, np.full(many, p / many))
    target = np.append(1 - q, np.full(many, q / many))
    laws = compress_distributions(draft=draft, target=target, tolerance=0.95)
    assert laws.tokens.tolist() == [[0]]
    assert_within_bounds(Cactus(0.1), laws, draft, target, slack=ROUNDING)
    true = emission(Cactus(0.1), draft=draft, target=target)
    told = emission(Cactus(0.1), draft=laws.draft, target=laws.target)
    for name in ("acceptance_rate", "total_variation", "kl_bound"):
        missing = getattr(true, name) - getattr(told, name)
        assert missing > 0.98 * getattr(laws.errors, name), name


@given(pairs(), st.floats(0, 0.9))
def test_what_is_left_out_keeps_the_tolerance_and_no_mass_is_lost(pair, tolerance):
    draft, target = pair
    laws = compress_distributions(draft=draft, target=target, tolerance=tolerance)
    assert (laws.left_out <= tolerance).all()
    for recorded, law in ((laws.draft, draft), (laws.target, target)):
        assert recorded.sum() == pytest.approx(np.sum(law), abs=1e-12)  # the same terms, regrouped
        kept = laws.tokens[0]
        assert (recorded[0, : kept.size] == np.asarray(law)[kept]).all()
    assert (np.diff(np.maximum(draft, target)[laws.tokens[0]]) <= 0).all()


def test_a_smaller_tolerance_keeps_more_tokens_and_zero_keeps_all_that_have_mass():
    draft, target = random_laws(300, spread=2.0)
    widths = [
        compress_distributions(draft=draft, target=target, tolerance=t).tokens.shape[1]
        for t in (0.1, 1e-3, 0.0)
    ]
    assert widths[0] < widths[1] < widths[2] == 300


def test_a_file_gives_back_tokens_and_origin_and_its_laws_to_float32(tmp_path):
    draft, target = random_laws(200, spread=2.5)
    laws = compress_distributions(draft=draft, target=target, tolerance=1e-3, about={"pair": "ä"})
    laws.save(tmp_path / "laws")
    back = load_recording(tmp_path / "laws")
    assert dict(back.about) == {"pair": "ä"}
    assert (back.tokens == laws.tokens).all()
    assert (back.left_out == laws.left_out).all()
    # A rounding to 24 bits, and that of the sum by which the law is divided: twice 2^-24 at most.
    np.testing.assert_allclose(back.draft, laws.draft, rtol=2**-23)
    np.testing.assert_allclose(back.target, laws.target, rtol=2**-23)
    sums = [law.sum(axis=1) for law in (back.draft, back.target)]
    np.testing.assert_allclose(sums, 1.0, rtol=0, atol=1e-14)  # of the roundings of a float64 sum


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_bounds_hold_after_a_file_but_for_its_rounding(rule, tmp_path):
    draft, target = random_laws(400, spread=2.0)
    laws = compress_distributions(draft=draft, target=target, tolerance=1e-5)
    laws.save(tmp_path / "laws.npz")
    # float32 moves probabilities by 2^-23 of themselves: seen to move no figure by 1e-6.
    assert_within_bounds(rule, load_recording(tmp_path / "laws.npz"), draft, target, slack=1e-6)


def test_a_token_that_a_file_moves_over_a_jump_is_within_the_bounds(tmp_path):
    draft, target = np.array([0.9, 0.1]), np.array([0.7, 0.3])
    rule = ThresholdAcceptance(0.7, 0.9)  # g(0.7) = 1; float32 rounds 0.7 down, and g is then 7/9
    laws = compress_distributions(draft=draft, target=target, tolerance=0.0)
    laws.save(tmp_path / "laws.npz")
    laws = load_recording(tmp_path / "laws.npz")
    missing = figures(rule, draft, target)[0] - figures(rule, laws.draft, laws.target)[0]
    assert missing == pytest.approx(0.9 - 7 / 9, abs=1e-6)
    assert laws.errors.acceptance_rate == 0
    errors = laws.errors_for(rule)
    assert_within_bounds(rule, laws, draft, target, slack=ROUNDING, errors=errors)
    assert errors.acceptance_rate == pytest.approx(missing, abs=1e-6)  # and no more than needed
    assert errors.total_variation == pytest.approx(missing, abs=1e-6)


@settings(deadline=None)
@given(
    pairs(min_size=2),
    st.floats(0, 0.5),
    st.integers(0, 10**6),
    st.floats(0.3, 1.0),
    st.randoms(use_true_random=False),
)
def test_bounds_with_rounding_hold_on_every_side_of_a_jump(pair, tolerance, place, share, random):
    """The threshold is the very probability of a token, and every probability is then rounded."""
    draft, target = map(np.asarray, pair)
    single = target[place % target.size]
    if not 1e-300 < single <= 1:
        return
    rounding = 1e-6
    laws = compress_distributions(draft=draft, target=target, tolerance=tolerance)
    rounded = [
        law * [1 + random.choice([-1, 0, 1]) * 0.49 * rounding for _ in law]
        for law in (draft, target)
    ]
    near = [law / law.sum() for law in rounded]
    for rule in (ThresholdAcceptance(single, min(single / share, 1.0)), Cactus(0.1)):
        errors = laws.errors_for(rule, rounding=rounding)
        # The KL of what is recovered without a jump: entropies of changes of 1e-6.
        assert_within_bounds(rule, laws, *near, slack=1e-4, errors=errors)


def test_what_a_jump_recovers_counts_in_the_kl():
    """From 1/1000 to 1/20 of mass at a token of q = 1/2: its KL term moves as its neighbour's."""
    draft, target = np.array([0.999, 0.001]), np.array([0.5, 0.5])
    rule = ThresholdAcceptance(0.5, 0.5 / 0.95)
    laws = compress_distributions(draft=draft, target=target, tolerance=0.0)
    errors = laws.errors_for(rule)
    below = [0.5 - 5e-8, 0.5 + 5e-8]
    moved = figures(rule, draft, target)[3] - figures(rule, draft, below)[3]
    assert errors.kl_bound + 0.1 < moved <= errors.kl
    assert errors.kl < 0.5


def test_without_rounding_they_are_the_bounds_of_merging():
    laws = load_recording()
    for rule in (Cactus(0.1), ThresholdAcceptance(0.2, 0.8)):
        found = laws.errors_for(rule, rounding=0.0)
        for field in fields(found):
            wanted = getattr(laws.errors, field.name)
            np.testing.assert_array_equal(getattr(found, field.name), wanted)


def test_a_boost_without_jumps_moves_by_its_rounding_alone():
    laws = load_recording()
    for rule in RULES:
        found = laws.errors_for(rule)
        for field in fields(found):
            more = getattr(found, field.name) - getattr(laws.errors, field.name)
            assert more.max() < (1e-4 if "kl" in field.name else 1e-6), (rule, field.name)


def test_rules_without_candidates_have_no_bounds():
    laws = load_recording()
    with pytest.raises(TypeError, match=r"^rule must have candidates .*, got Clamp\(epsilon=0\.1"):
        laws.errors_for(Clamp(0.1))
    with pytest.raises(ValueError, match=r"^rounding must lie in \[0, 1\)"):
        laws.errors_for(Cactus(0.1), rounding=1.0)


def test_the_bundled_laws_say_where_they_are_from_and_are_exact_enough_to_draw():
    laws = load_recording()
    assert laws.draft.shape == laws.target.shape
    assert len(laws) == 96 == 12 * len(laws.about["prompts"].split("\n"))
    assert laws.left_out.max() <= float(laws.about["tolerance"])
    assert laws.errors.kl.max() < 1e-3  # nats; less than a line is wide


def _npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"not a file of numpy", _npz(a=np.zeros(2)), _npz(header=np.array("{}")), b"PK\x03\x04"],
    ids=["empty", "text", "another", "no format", "cut off"],
)
def test_a_file_of_something_else_is_refused_by_name(content, tmp_path):
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.npz holds no recorded distributions"):
        load_recording(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tolerance": 1.0}, "tolerance must lie in"),
        ({"tolerance": -1e-3}, "tolerance must lie in"),
        ({"draft": [0.5, 0.6]}, "draft must sum to 1"),
        ({"draft": [[0.5, 0.5]] * 2}, "both have shape"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        compress_distributions(**({"draft": [0.5, 0.5], "target": [0.5, 0.5]} | change))
