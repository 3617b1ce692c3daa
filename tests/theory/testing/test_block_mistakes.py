"""Each usual mistake with a whole block is rejected and named."""

from __future__ import annotations

import numpy as np
import pytest

from cactus_theory import (
    Cactus,
    Mixture,
)
from cactus_theory.specification import verify
from cactus_theory.testing import (
    CATALOGUE,
    ConformanceError,
    as_sampler,
    check_by_enumeration,
    check_by_sampling,
)
from cactus_theory.testing._block import Block
from cactus_theory.testing._block_mistakes import replayed
from tests.theory.testing.block_samplers import (
    COUNTS,
    LOSSY,
    MISTAKES,
    NAMES,
    OF_PLAIN,
    PLAIN,
    RULES,
    argmax,
    batched,
)


def test_every_mistake_of_the_catalogue_is_made_here():
    of_blocks = {mistake.name for mistake in CATALOGUE if mistake.scope == "block"}
    assert of_blocks < {name for name, _, _ in MISTAKES}


@pytest.mark.parametrize(("name", "rule", "row"), MISTAKES, ids=NAMES)
def test_each_mistake_is_rejected_by_enumeration_and_named(name, rule, row):
    with pytest.raises(ConformanceError, match="it matches") as caught:
        check_by_enumeration(batched(row), rule)
    assert name in str(caught.value).split("it matches ")[1]


@pytest.mark.parametrize(("name", "rule", "row"), OF_PLAIN)
def test_each_mistake_is_rejected_by_counts_and_named(name, rule, row):
    with pytest.raises(ConformanceError, match="it matches") as caught:
        check_by_sampling(as_sampler(batched(row)), rule, samples=2500, smallest=0.1)
    assert name in str(caught.value).split("it matches ")[1]
    assert "false-alarm level 1e-06" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "rule", "row"), [item for item in OF_PLAIN if item[0] not in COUNTS]
)
def test_each_mistake_of_the_tokens_is_named_though_no_count_is_told(name, rule, row):
    with pytest.raises(ConformanceError, match="it matches") as caught:
        check_by_enumeration(batched(row, told=False), rule)
    assert name in str(caught.value).split("it matches ")[1]


@pytest.mark.parametrize(
    ("rule", "expected", "words"),
    [
        (Mixture(0.5), PLAIN, r": it matches mixture w = 0\.[45]"),
        (Cactus(0.3), LOSSY, r": it matches Cactus, delta = 0\.[23]"),
        (
            (Mixture(0.5), PLAIN),
            PLAIN,
            "the first token of row 0 is wrong by itself: it matches mix",
        ),
    ],
)
def test_a_mistake_at_one_position_is_named_with_its_parameter(rule, expected, words):
    def verifier(tokens, *rest):
        rows = zip(tokens, *rest, strict=True)
        return zip(*(block(*row) for row in rows), strict=True)

    def block(x, p, q, u, v):
        rules = rule[: len(x)] if isinstance(rule, tuple) else [rule] * len(x)
        return verify(rules, x, draft=p, target=q, accept_uniforms=u, recover_uniform=v)

    with pytest.raises(ConformanceError, match=words):
        check_by_enumeration(verifier, expected)
    with pytest.raises(ConformanceError, match=words):
        check_by_sampling(as_sampler(verifier), expected, samples=5000, smallest=0.1)


def test_a_law_that_nothing_explains_is_not_given_a_name():
    def odd(tokens, draft, target, accept, recover):
        return [[2] if len(row) else [argmax(q[0])] for row, q in zip(tokens, target)], None  # noqa: B905

    with pytest.raises(ConformanceError, match=r"nothing|wrong by itself"):
        check_by_enumeration(odd, PLAIN)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_product_over_positions_is_the_replay_of_all_drafts_and_decisions(rule):
    laws = np.array([[0.5, 0.25, 0.25], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
    block = Block.of(rule, draft=laws[[0, 2]], target=laws[[1, 0, 2]])
    product, replay = block.distribution(), replayed(block)
    assert set(product) == set(replay)
    assert product == pytest.approx(replay, abs=1e-15)  # sums of a few products
