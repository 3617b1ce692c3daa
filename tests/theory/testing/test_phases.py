"""The next token's distribution given the text, against every path and the other recursion."""

from __future__ import annotations

import numpy as np
import pytest

from cactus_theory import Cactus, Clamp, SpeculativeSampling, prefix_log_likelihood
from cactus_theory.testing import BlockPhases
from cactus_theory.texts import token_probabilities
from tests.theory.small_trees import along, by_text, decode, tree


@pytest.mark.parametrize("rule", [Cactus(0.2), Clamp(0.1), SpeculativeSampling()], ids=repr)
@pytest.mark.parametrize("k", [0, 1, 2])
def test_the_product_of_next_tokens_is_the_chance_of_the_text_over_all_paths(rule, k):
    nodes = tree(np.random.default_rng(k), rule, 3, 4)
    texts = by_text(decode(nodes, 4, num_drafts=lambda _: k))
    for text, chance in texts.items():
        phases, product = BlockPhases(rule, k, max_new_tokens=4), 1.0
        for i, x in enumerate(text):
            at = nodes[text[:i]]
            law = phases.next_distribution(draft=at.draft, target=at.target)
            assert law.sum() == pytest.approx(1, abs=1e-12)  # a dozen roundings
            product *= law[x]
            phases.emit(x)
        assert product == pytest.approx(chance, rel=1e-11)  # sums of some hundred products


def test_it_agrees_with_the_likelihood_of_texts_without_a_limit():
    rng, rule = np.random.default_rng(5), Cactus(0.1)
    p, q = rng.dirichlet(np.ones(4), size=(2, 30))
    tokens = [int(rng.choice(4, p=row)) for row in q]
    found = token_probabilities(tokens, draft=p, target=q, rule=rule)
    logs = prefix_log_likelihood(found, num_draft_tokens=3, max_new_tokens=None)
    phases, own = BlockPhases(rule, 3), []
    for i, x in enumerate(tokens):
        own.append(np.log(phases.next_distribution(draft=p[i], target=q[i])[x]))
        phases.emit(x)
    np.testing.assert_allclose(np.cumsum(own), logs, rtol=1e-10)


def test_a_new_text_begins_a_block():
    phases, rows = BlockPhases(Cactus(0.02), 1), ([0.75, 0.25], [0.5, 0.5])
    p, q = map(np.array, rows)
    phases.next_distribution(draft=p, target=q)
    phases.emit(0)
    assert phases.bonus == 1
    phases.new_text()
    assert phases.bonus == 0


def test_a_token_that_cannot_follow_is_refused_and_so_is_one_without_rows():
    phases = BlockPhases(Cactus(0.02), 1)
    with pytest.raises(ValueError, match="next_distribution must be called"):
        phases.emit(0)
    phases.next_distribution(draft=np.array([1.0, 0.0]), target=np.array([1.0, 0.0]))
    assert not phases.allows(1)
    with pytest.raises(ValueError, match="token must be one that can follow, got 1"):
        phases.emit(1)


def test_a_position_of_an_exhausted_limit_follows_the_target():
    rule = Cactus(0.2)
    nodes = tree(np.random.default_rng(1), rule, 3, 1)
    phases = BlockPhases(rule, 2, max_new_tokens=1)
    law = phases.next_distribution(draft=along(nodes, (0,), "draft")[0], target=nodes[()].target)
    np.testing.assert_array_equal(law, nodes[()].target)
