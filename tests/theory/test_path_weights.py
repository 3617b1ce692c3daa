"""Weights of paths against decoders whose every draft is followed."""

from __future__ import annotations

from math import log, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    Clamp,
    effective_sample_size,
    emitted_log_probability,
    output_distribution,
    path_log_weight,
    text_log_likelihood,
    token_probabilities,
)
from cactus_theory.testing import pairs
from tests.theory.small_trees import (
    OUTCOMES,
    RULES,
    Bent,
    along,
    by_text,
    decode,
    node,
    of_tokens,
    prefixes,
    rational_tree,
    target_probability,
    tree,
)

# Texts of at most 5 tokens are sums of some hundred products of a dozen roundings each, of numbers
# known to an ulp of 1; the logarithms of the smallest of them, about 1e-6, multiply that by 1e6.
ROUNDING = 1e-9


def test_weights_of_paths_are_unbiased_exactly():
    rng = np.random.default_rng(9)
    for size, length, k in ((2, 4, 2), (3, 3, 2), (2, 4, 3)):
        nodes = rational_tree(rng, Bent(), size, length, least=1)  # so that all is emitted
        for outcomes in OUTCOMES.values():
            paths = decode(nodes, length, num_drafts=lambda text, k=k: k, outcomes=outcomes)
            weights = {path: weight(nodes, path) for path in paths}
            texts, mean = by_text(paths), {}
            for path, chance in paths.items():
                mean[path.text] = mean.get(path.text, 0) + chance * weights[path]
            # E[w 1{text}] = Q(text) for every text: so E[w f] = E_Q[f] for every f, E[w] = 1, and
            # E[w | text] = Q(text) / P(text).
            assert mean == {text: target_probability(nodes, text) for text in texts}
            assert sum(mean.values()) == 1
            assert len(texts) == size**length


def weight(nodes, path):
    out, q = (of_tokens(nodes, path.text, name) for name in ("emitted", "target"))
    return prod(b / a for a, b, known in zip(out, q, path.verified, strict=True) if known)


@given(pair=pairs(max_size=6), index=st.integers(0, len(RULES) - 1))
def test_the_expected_weight_of_a_position_is_the_target_s_mass_that_it_covers(pair, index):
    p, q = pair
    out = output_distribution(RULES[index], draft=p, target=q)
    possible = np.flatnonzero(out > 0)
    found = token_probabilities(
        possible[:, None], draft=p[None, None], target=q[None, None], rule=RULES[index]
    )
    weights = np.exp(path_log_weight(found, verified=True))
    # a weight q / out of a subnormal out is as uncertain as that is
    assert (out[possible] * weights).sum() == pytest.approx(found.coverage[0, 0], abs=1e-9)
    assert found.coverage[:, 0] == pytest.approx(q[possible].sum(), abs=1e-12)


def test_weights_miss_what_the_decoder_cannot_emit_and_coverage_says_how_much():
    draft, target = [[0.6, 0.4, 0.0]], [[0.5, 0.4, 0.1]]
    rule = Cactus(1.0)  # keeps all that is drafted, and never emits the third token
    assert output_distribution(rule, draft=draft, target=target)[0, 2] == 0
    found = token_probabilities([0], draft=draft, target=target, rule=rule)
    assert found.coverage == pytest.approx(0.9)
    lost = text_log_likelihood(
        [2, 2],
        draft=draft * 2,
        target=target * 2,
        rule=rule,
        num_draft_tokens=1,
        max_new_tokens=None,
    )
    assert lost == -np.inf


def test_the_log_weight_of_a_path_is_that_of_its_definition():
    rng = np.random.default_rng(10)
    rule, length, k = Cactus(0.3), 4, 2
    nodes = tree(rng, rule, 3, length)
    paths = decode(nodes, length, num_drafts=lambda text: k)
    for path in list(paths)[::17]:
        found = token_probabilities(
            path.text,
            draft=along(nodes, path.text, "draft"),
            target=along(nodes, path.text, "target"),
            rule=rule,
        )
        out, q = (of_tokens(nodes, path.text, name) for name in ("emitted", "target"))
        drawn = emitted_log_probability(found, verified=path.verified)
        np.testing.assert_allclose(np.exp(drawn), np.where(path.verified, out, q), rtol=ROUNDING)
        assert path_log_weight(found, verified=path.verified) == pytest.approx(
            log(weight(nodes, path)), abs=ROUNDING
        )


@given(pair=pairs(min_size=2), epsilon=st.floats(1e-3, 1.0))
def test_weights_are_bounded_under_the_clamp_where_its_budget_is_spent(pair, epsilon):
    p, q = pair
    rule = Clamp(epsilon)
    out = output_distribution(rule, draft=p, target=q)
    if np.abs(out - p).max() < 1e-9 or (q == 0).any():
        return  # the draft itself is within the budget, or the target one-hot
    raised, lowered = (out < p - 1e-12), (out > p + 1e-12)
    a = (out[raised] / q[raised]).max()  # levels, from tokens that are clipped
    b = (out[lowered] / q[lowered]).min()
    weights = q / out
    assert weights.max() <= (1 + 1e-9) / b
    assert weights.min() >= (1 - 1e-9) / a


def test_the_spread_of_weights_grows_with_the_chi_square_of_each_verified_position():
    rule, length = Cactus(0.1), 5
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.4, 0.3])
    one = node(rule, p, q)
    nodes = dict.fromkeys(prefixes(3, length), one)
    paths = decode(nodes, length, num_drafts=lambda text: length)
    second = sum(chance * weight(nodes, path) ** 2 for path, chance in paths.items())
    chi_square = (q**2 / one.emitted).sum() - 1
    assert second == pytest.approx((1 + chi_square) ** (length - 1), rel=ROUNDING)  # the last is q


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.0], 1),
        ([0.0, 0.0, 0.0], 3),
        ([800.0, 800.0], 2),
        ([0.0, -np.inf], 1),
        ([0, log(3)], 1.6),
    ],
)
def test_effective_sample_size(weights, expected):
    assert effective_sample_size(weights) == pytest.approx(expected)
    assert effective_sample_size([weights, weights]) == pytest.approx([expected] * 2)


def test_a_path_that_cannot_be_is_refused():
    found = token_probabilities([0], draft=[[1.0, 0.0]], target=[[0.0, 1.0]], rule=Cactus(0.1))
    with pytest.raises(ValueError, match=r"index \(0,\) has probability 0"):
        path_log_weight(found, verified=True)
    with pytest.raises(TypeError, match="verified must be boolean"):
        path_log_weight(found, verified=[1])
    with pytest.raises(ValueError, match="verified must broadcast"):
        path_log_weight(found, verified=[True, False])


@pytest.mark.parametrize("weights", [[], [np.nan], [np.inf], [-np.inf, -np.inf], 1.0])
def test_weights_without_an_effective_sample_size_are_refused(weights):
    with pytest.raises(ValueError, match="log_weights must"):
        effective_sample_size(weights)
