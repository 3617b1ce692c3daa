"""Block verification of ordered rules: its specification, its distribution, and what it gains."""

from __future__ import annotations

from itertools import product
from math import log, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    Rule,
    SpeculativeSampling,
    TopKAcceptance,
    TypicalAcceptance,
    block_distribution,
    block_efficiency,
    expected_tokens,
    kl,
    prefix_survival,
    verify_block,
)
from cactus_theory.ledger import Ledger, budget_stop
from cactus_theory.testing import ragged_batches
from tests.theory.small_trees import (
    ORDERED,
    OUTCOMES,
    Bent,
    block_outcomes,
    by_definition,
    by_text,
    decode,
    node,
    prefixes,
    rational_tree,
    target_probability,
    tree,
)

ROUNDING = 1e-12  # sums of at most a few hundred products of probabilities
RATIONAL: list[Rule] = [SpeculativeSampling(), Bent()]


def rows_of(nodes):
    return {"draft": lambda block: nodes[block].draft, "target": lambda block: nodes[block].target}


def continued(outcomes, nodes, k):
    """Distribution of k + 1 tokens, what the block did not emit drawn from out, and q after k."""
    found: dict = {}
    for (emitted, _), chance in outcomes.items():
        for rest in product(range(len(nodes[()].draft)), repeat=k + 1 - len(emitted)):
            text, after = (*emitted, *rest), 1
            for i in range(len(emitted), k + 1):
                row = nodes[text[:i]]
                after = after * (row.target if i == k else row.emitted)[text[i]]
            if after > 0:
                found[text] = found.get(text, 0) + chance * after
    return found


def survival(outcomes, k):
    """P(at least i drafts are kept), i = 1..k."""
    return [sum(p for (_, kept), p in outcomes.items() if kept >= i) for i in range(1, k + 1)]


@pytest.mark.parametrize("rule", RATIONAL, ids=repr)
@pytest.mark.parametrize(("size", "k"), [(2, 1), (2, 3), (2, 4), (3, 2)])
def test_the_block_distribution_is_the_definition_s_exactly(rule, size, k):
    rng = np.random.default_rng(size + 10 * k)
    for _ in range(2):
        nodes = rational_tree(rng, rule, size, k + 1)
        for name, outcomes in OUTCOMES.items():
            found = block_distribution(
                rule, **rows_of(nodes), num_draft_tokens=k, verification=name
            )
            assert found == by_definition(nodes, k, outcomes)
            assert sum(found.values()) == 1


@pytest.mark.parametrize("rule", RATIONAL, ids=repr)
@pytest.mark.parametrize(("size", "k"), [(3, 2), (2, 4), (2, 5), (3, 3)])
def test_block_verification_keeps_the_joint_distribution_and_no_fewer_tokens_exactly(rule, size, k):
    rng = np.random.default_rng(100 + size + 10 * k)
    gained = 0
    for _ in range(5):
        nodes = rational_tree(rng, rule, size, k + 1)
        token, block = (
            block_distribution(rule, **rows_of(nodes), num_draft_tokens=k, verification=name)
            for name in OUTCOMES
        )
        joint = continued(block, nodes, k)
        for text, chance in joint.items():
            last = nodes[text[:k]].target[text[k]]
            assert chance == last * prod(nodes[text[:i]].emitted[text[i]] for i in range(k))
        assert sum(joint.values()) == 1
        assert joint == continued(token, nodes, k)
        pairs = list(zip(survival(block, k), survival(token, k), strict=True))
        assert all(more >= fewer for more, fewer in pairs)
        gained += sum(more - fewer for more, fewer in pairs)
    assert gained > 0


@pytest.mark.parametrize("rule", ORDERED, ids=repr)
@pytest.mark.parametrize(("size", "k"), [(4, 2), (3, 3), (2, 5)])
def test_every_ordered_rule_keeps_its_joint_distribution_and_no_fewer_tokens(rule, size, k):
    rng = np.random.default_rng(200 + size + 10 * k)
    gained = 0.0
    for _ in range(3):
        nodes = tree(rng, rule, size, k + 1)
        token, block = (
            block_distribution(rule, **rows_of(nodes), num_draft_tokens=k, verification=name)
            for name in OUTCOMES
        )
        definition = by_definition(nodes, k, block_outcomes)
        for outcome in set(block) | set(definition):
            assert block.get(outcome, 0) == pytest.approx(definition.get(outcome, 0), abs=ROUNDING)
        joints = continued(block, nodes, k), continued(token, nodes, k)
        assert joints[0] == pytest.approx(joints[1], abs=ROUNDING)
        more, fewer = survival(block, k), survival(token, k)
        assert (np.array(more) >= np.array(fewer) - ROUNDING).all()
        gained += sum(more) - sum(fewer)
        expected = expected_tokens(rule, **rows_of(nodes), num_draft_tokens=k)
        assert expected == pytest.approx(1 + sum(more), abs=ROUNDING)
    assert gained > 1e-4


@given(batch=ragged_batches(max_rows=1, max_drafts=4), index=st.integers(0, len(ORDERED) - 1))
def test_a_draft_survives_block_verification_at_least_as_often_as_token_by_token(batch, index):
    rule, tokens = ORDERED[index], batch.tokens[0].tolist()
    draft, target = batch.draft[0], batch.target[0]
    found = prefix_survival(rule, tokens, draft=draft, target=target)
    one_by_one = np.cumprod(
        [rule.accepted_mass(draft[i], target[i])[x] / draft[i, x] for i, x in enumerate(tokens)]
    )
    assert found.shape == (len(tokens),)
    assert (found >= one_by_one - ROUNDING).all()
    assert (found <= 1).all()


@pytest.mark.parametrize("rule", ORDERED, ids=repr)
def test_block_verification_of_one_draft_is_token_verification(rule):
    rng = np.random.default_rng(3)
    nodes = tree(rng, rule, 4, 2)
    token, block = (
        block_distribution(rule, **rows_of(nodes), num_draft_tokens=1, verification=name)
        for name in OUTCOMES
    )
    assert block == token


@pytest.mark.parametrize("rule", ORDERED, ids=repr)
def test_block_verification_of_drafts_that_are_sure_gains_nothing(rule):
    rng = np.random.default_rng(4)
    hot = {prefix: np.eye(3)[rng.integers(3)] for prefix in prefixes(3, 4)}
    nodes = {prefix: node(rule, p, rng.dirichlet(np.ones(3))) for prefix, p in hot.items()}
    token, block = (
        expected_tokens(rule, **rows_of(nodes), num_draft_tokens=3, verification=name)
        for name in OUTCOMES
    )
    assert block == pytest.approx(token, abs=ROUNDING)
    assert 1.1 < block < 3.9


def test_expected_tokens_of_token_verification_are_the_block_efficiency_of_its_rates():
    rows = {"draft": lambda block: [0.7, 0.2, 0.1], "target": lambda block: [0.3, 0.4, 0.3]}
    rates = [0.6] * 3
    assert expected_tokens(
        SpeculativeSampling(), **rows, num_draft_tokens=3, verification="token"
    ) == pytest.approx(float(block_efficiency(rates)))


# A budget: the rule of a position is known from the tokens before it, so all of the above holds.


def within_budget(nodes, plain, *, length, k, budget):
    """Chances of (text, ledger) of a decoder that stops boosting before its ledger passes."""
    done: dict = {}
    under_way: dict = {((), Ledger(max_kl=budget)): 1.0}
    while under_way:
        (text, ledger), chance = under_way.popitem()
        limit = min(k, length - len(text) - 1)
        for drafts in product(range(2), repeat=limit):
            texts = [text + drafts[:i] for i in range(limit + 1)]
            costs = [max(float(kl(nodes[t].emitted, nodes[t].target)), 0.0) for t in texts[:limit]]
            allowed = budget_stop(ledger, total_variations=[0.0] * limit, kls=costs)
            block = [nodes[t] if i < allowed else plain[t] for i, t in enumerate(texts)]
            drawn = chance * prod(b.draft[x] for b, x in zip(block, drafts, strict=False))
            for kept, after in block_outcomes(block, drafts):
                charged = costs[: min(kept + 1, allowed)]
                spent = ledger.spend(total_variations=[0.0] * len(charged), kls=charged)
                for last in range(2):
                    state = (*texts[kept], last), spent
                    place = done if len(state[0]) == length else under_way
                    place[state] = place.get(state, 0.0) + drawn * after[last]
    return done


@pytest.mark.parametrize("budget", [0.01, 0.03])
def test_a_budget_holds_under_block_verification(budget):
    rng, stopped, boosted = np.random.default_rng(9), False, False
    for _ in range(5):
        nodes = tree(rng, Cactus(0.02), 2, 4)
        plain = {text: node(SpeculativeSampling(), n.draft, n.target) for text, n in nodes.items()}
        found = within_budget(nodes, plain, length=4, k=2, budget=budget)
        texts: dict = {}
        for (text, _), chance in found.items():
            texts[text] = texts.get(text, 0.0) + chance
        true = sum(p * log(p / target_probability(nodes, text)) for text, p in texts.items())
        charged = sum(chance * ledger.kl for (_, ledger), chance in found.items())
        assert sum(texts.values()) == pytest.approx(1, abs=ROUNDING)
        assert true <= charged + ROUNDING
        assert max(ledger.kl for _, ledger in found) <= budget
        free = decode(nodes, 4, num_drafts=lambda text: 2, outcomes=block_outcomes)
        stopped |= by_text(free) != pytest.approx(texts, abs=1e-3)
        boosted |= true > budget / 20
    assert stopped
    assert boosted


SPECIFIED = {"accept_uniforms": [0.5], "recover_uniform": 0.5}
BLOCK = {"draft": np.array([[0.5, 0.5]]), "target": np.array([[0.5, 0.5]] * 2)}


@pytest.mark.parametrize("rule", [TopKAcceptance(1), TypicalAcceptance()], ids=repr)
def test_a_rule_that_is_not_ordered_is_refused(rule):
    rows = {"draft": lambda block: [0.5, 0.5], "target": lambda block: [0.5, 0.5]}
    for call in (
        lambda: verify_block(rule, [0], **BLOCK, **SPECIFIED),
        lambda: verify_block([rule], [0], **BLOCK, **SPECIFIED),
        lambda: prefix_survival(rule, [0], **BLOCK),
        lambda: block_distribution(rule, **rows, num_draft_tokens=1),
        lambda: expected_tokens(rule, **rows, num_draft_tokens=1),
    ):
        with pytest.raises(ValueError, match="block verification needs an ordered rule, got T"):
            call()


def test_what_else_is_refused_is_said():
    rule = SpeculativeSampling()
    rows = {"draft": lambda block: [0.5, 0.5], "target": lambda block: [0.5, 0.5]}
    with pytest.raises(TypeError, match="rule must be a Rule, got 'sps'"):
        block_distribution("sps", **rows, num_draft_tokens=1)
    with pytest.raises(ValueError, match="num_draft_tokens must be >= 0, got -1"):
        block_distribution(rule, **rows, num_draft_tokens=-1)
    with pytest.raises(ValueError, match="verification must be 'token' or 'block', got 'tree'"):
        block_distribution(rule, **rows, num_draft_tokens=1, verification="tree")
    with pytest.raises(ValueError, match=r"tokens must lie in \[0, 2\), got 2"):
        verify_block(rule, [2], **BLOCK, **SPECIFIED)
    with pytest.raises(ValueError, match="one for each of 1 tokens"):
        verify_block([rule, rule], [0], **BLOCK, **SPECIFIED)
    with pytest.raises(ValueError, match="shorter"):
        verify_block(rule, [0], **BLOCK, accept_uniforms=[], recover_uniform=0.5)
