"""The executable specification of block verification: enumerated, and mutants rejected."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import lcm, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    SpeculativeSampling,
    block_verification,
    verify_block,
)
from cactus_theory.specification import verify
from cactus_theory.testing import ragged_batches
from tests.theory.small_trees import (
    ORDERED,
    Bent,
    block_outcomes,
    by_definition,
    node,
    prefixes,
)

# The checks, for any verifier, so that a mutant meets the same assertion.


def grid(cells):
    """Left ends of the cells of [0, 1): a threshold on their borders is resolved exactly."""
    return [Fraction(i, cells) for i in range(cells)]


def denominators(values):
    return lcm(*(Fraction(value).denominator for value in values), 1)


def check_exactly(verifier, rule, nodes, k, *, finer=1):
    """Every draft, weighted, with uniforms on a grid that resolves all of its comparisons.

    A wrong border is seen where the grid is fine enough to tell it from the right one.
    """
    expected = by_definition(nodes, k, block_outcomes)
    found: dict = {}
    for drafts in product(range(len(nodes[()].draft)), repeat=k):
        block = [nodes[drafts[:i]] for i in range(k + 1)]
        drawn = prod(b.draft[x] for b, x in zip(block, drafts, strict=False))
        if not drawn > 0:
            continue
        accepts, recover = cells_of(block, drafts)
        accepts, recover = [finer * cells for cells in accepts], finer * recover
        for uniforms in product(*map(grid, accepts)):
            for u in grid(recover):
                emitted, kept = verifier(
                    rule,
                    drafts,
                    draft=np.array([b.draft for b in block[:k]]),
                    target=np.array([b.target for b in block]),
                    accept_uniforms=uniforms,
                    recover_uniform=u,
                )
                outcome = tuple(emitted), kept
                cell = drawn / (prod(accepts) * recover)
                found[outcome] = found.get(outcome, 0) + cell
    assert found == expected


def cells_of(block, drafts):
    """Grids of the uniforms: borders at h_1 ... h_k, and at the cumulated residuals."""
    k, s, accepts, cumulated = len(drafts), Fraction(1), [], []
    for i, b in enumerate(block):
        weights = b.target if i == k else np.maximum(s * b.emitted - b.draft, 0)
        total = sum(weights)
        if i:
            room = total + 1 - s
            accepts.append(denominators([s if i == k else total / room if room else 1]))
        if total:
            cumulated += [sum(weights[: x + 1]) / total for x in range(len(weights))]
        if i < k:
            s = min(s * b.emitted[drafts[i]] / b.draft[drafts[i]], 1)
    return accepts, denominators(cumulated)


def halves(rng, rule, size, length):
    """A tree of coarse rows, whose grids are small."""

    def row():
        weights = rng.permutation([1, 1, 2] if size == 3 else [1, 3])
        return np.array([Fraction(int(w), int(weights.sum())) for w in weights], dtype=object)

    return {prefix: node(rule, row(), row()) for prefix in prefixes(size, length)}


@pytest.mark.parametrize(
    ("rule", "size", "k"),
    [
        (SpeculativeSampling(), 2, 2),
        (SpeculativeSampling(), 3, 2),
        (SpeculativeSampling(), 2, 1),
        (Bent(), 2, 2),
    ],
)
def test_the_specification_has_the_block_distribution_exactly(rule, size, k):
    rng = np.random.default_rng(6)
    for _ in range(2):
        check_exactly(verify_block, rule, halves(rng, rule, size, k + 1), k)


def test_the_specification_has_the_block_distribution_where_its_tests_are_not_those_of_tokens():
    # After a first draft that survives by half: h = 7/15 where S = 7/16, and a residual of two
    # tokens in the ratio 6 : 1, which is 4 : 1 if the survival is forgotten.
    sure = [Fraction(1), Fraction(0), Fraction(0)]
    counts = {(): ((2, 1, 1), (1, 1, 2)), (0,): ((0, 1, 15), (12, 4, 0))}
    nodes = {
        prefix: node(SpeculativeSampling(), *(np.array(sure, dtype=object) for _ in range(2)))
        for prefix in prefixes(3, 3)
    }
    for prefix, pair in counts.items():
        rows = [np.array([Fraction(x, sum(row)) for x in row], dtype=object) for row in pair]
        nodes[prefix] = node(SpeculativeSampling(), *rows)
    check_exactly(verify_block, SpeculativeSampling(), nodes, 2, finer=4)


def from_target(rule, tokens, **rest):
    """Block verification against the target itself."""
    return verify_block(SpeculativeSampling(), tokens, **rest)


@pytest.mark.parametrize("wrong", [verify, from_target])
def test_the_exact_check_rejects_another_verifier(wrong):
    rng = np.random.default_rng(6)
    with pytest.raises(AssertionError):
        check_exactly(wrong, Bent(), halves(rng, Bent(), 2, 3), 2)


def test_the_exact_check_rejects_a_residual_that_forgets_the_survival(monkeypatch):
    rng = np.random.default_rng(6)
    nodes = halves(rng, SpeculativeSampling(), 3, 3)
    forgetful = lambda survival, emitted, draft: np.maximum(emitted - draft, 0)  # noqa: E731
    monkeypatch.setattr(block_verification, "_residual", forgetful)
    with pytest.raises(AssertionError):
        check_exactly(verify_block, SpeculativeSampling(), nodes, 2)


def test_a_uniform_of_zero_keeps_nothing_of_probability_zero():
    emitted, kept = verify_block(
        Cactus(1.0),
        [0],
        draft=np.array([[0.5, 0.5]]),
        target=np.array([[0.0, 1.0], [0.5, 0.5]]),
        accept_uniforms=[0.0],
        recover_uniform=0.0,
    )
    assert (emitted, kept) == ([1], 0)


@given(batch=ragged_batches(max_rows=1), seed=st.integers(0, 99), index=st.integers(0, 6))
def test_the_specification_emits_only_what_the_rows_allow(batch, seed, index):
    rng, rule = np.random.default_rng(seed), ORDERED[index]
    tokens, draft, target = batch.tokens[0].tolist(), batch.draft[0], batch.target[0]
    emitted, kept = verify_block(
        rule,
        tokens,
        draft=draft,
        target=target,
        accept_uniforms=rng.random(len(tokens)),
        recover_uniform=rng.random(),
    )
    assert emitted[:kept] == tokens[:kept]
    assert len(emitted) == kept + 1
    assert kept < len(tokens) or target[kept, emitted[kept]] > 0


def test_equal_rows_keep_everything():
    rows = np.random.default_rng(8).dirichlet(np.ones(5), size=4)
    for rule in ORDERED:
        emitted, kept = verify_block(
            rule,
            [0, 3, 1],
            draft=rows[:3],
            target=rows,
            accept_uniforms=[1 - 2.0**-53] * 3,
            recover_uniform=0.5,
        )
        assert (emitted[:3], kept) == ([0, 3, 1], 3)
