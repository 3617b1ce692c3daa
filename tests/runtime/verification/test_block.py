"""Block verification in torch: against the specification, uniform for uniform, and enumerated."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_runtime import judge
from cactus_theory import (
    Cactus,
    CactusSafe,
    Clamp,
    Lenience,
    Mixture,
    SpeculativeSampling,
    TypicalAcceptance,
    block_distribution,
    output_distribution,
    prefix_survival,
    verify_block,
)

RULES = [SpeculativeSampling(), Cactus(0.1), CactusSafe(0.5), Clamp(0.05), Lenience(0.5)]
RULES += [Mixture(0.5)]


def block_of(rng, k, vocabulary):
    """Drafts and both models' rows, as a decoder would have them."""
    p = rng.dirichlet(np.full(vocabulary, 0.7), size=k)
    q = rng.dirichlet(np.full(vocabulary, 0.7), size=k + 1)
    q[:k] = (q[:k] + p) / 2
    return [int(rng.choice(vocabulary, p=row)) for row in p], p, q


def judged(rule, tokens, p, q, accept, recover, **options):
    return judge(
        rule,
        torch.tensor(tokens),
        draft_probs=None if p is None else torch.tensor(p),
        target_logits=torch.tensor(q).log(),
        accept_uniforms=torch.tensor(accept),
        recover_uniforms=torch.tensor(recover),
        verification="block",
        **options,
    )


@given(
    seed=st.integers(0, 2**32),
    k=st.integers(0, 4),
    rule=st.sampled_from(RULES),
    vocabulary=st.integers(2, 6),
)
def test_it_keeps_and_draws_what_the_specification_does(seed, k, rule, vocabulary):
    rng = np.random.default_rng(seed)
    batch = 15
    rows = [block_of(rng, k, vocabulary) for _ in range(batch)]
    accept, recover = rng.random((batch, k)), rng.random(batch)
    counts = rng.integers(0, k + 1, size=batch)
    tokens, p, q = (np.array([row[i] for row in rows]) for i in range(3))
    tokens = tokens.reshape(batch, k).astype(np.int64)
    found = judged(rule, tokens, p, q, accept, recover, num_drafts=torch.tensor(counts))
    for i, m in enumerate(counts):
        emitted, kept = verify_block(
            rule,
            tokens[i, :m].tolist(),
            draft=p[i, :m],
            target=q[i, : m + 1],
            accept_uniforms=accept[i, :m],
            recover_uniform=recover[i],
        )
        assert int(found.accepted[i]) == kept
        assert found.emitted[i, : kept + 1].tolist() == emitted


def test_what_a_prefix_lost_is_missing_from_what_recovers_the_next_token():
    """The first draft survives with .625 of its probability, and so does what may follow it."""
    p = np.array([[0.8, 0.1, 0.05, 0.05], [0.7, 0.1, 0.1, 0.1]])
    q = np.array([[0.5, 0.3, 0.1, 0.1], [0.1, 0.25, 0.25, 0.4], [0.25] * 4])
    tokens, accept, recover = [0, 0], [0.1, 0.99], (np.arange(101) + 0.5) / 101
    n = len(recover)
    rule = SpeculativeSampling()
    found = judged(rule, [tokens] * n, np.stack([p] * n), np.stack([q] * n), [accept] * n, recover)
    assert found.accepted.tolist() == [1] * n
    for drawn, uniform in zip(found.last_token.tolist(), recover, strict=True):
        emitted, _ = verify_block(
            rule, tokens, draft=p, target=q, accept_uniforms=accept, recover_uniform=uniform
        )
        assert emitted == [0, drawn]
    assert np.bincount(found.last_token, minlength=4).tolist() == [0, 22, 21, 58]  # 3 : 3 : 8


@pytest.mark.parametrize("rule", RULES)
def test_what_is_granted_multiplies_to_the_survival_of_the_prefix(rule):
    rng = np.random.default_rng(7)
    for _ in range(20):
        tokens, p, q = block_of(rng, 4, 5)
        found = judged(rule, [tokens], p[None], q[None], rng.random((1, 4)), rng.random(1))
        chances = (found.boosted / found.draft_prob)[0].numpy()
        survival = prefix_survival(rule, tokens, draft=p, target=q)
        # The same product in another order
        np.testing.assert_allclose(np.cumprod(chances), survival, rtol=1e-12)
        before = np.append(1.0, survival[:-1])[:, None]
        out = output_distribution(rule, draft=p, target=q[:4])
        kept = np.minimum(before * out, p).sum(axis=-1) / before[:, 0]
        np.testing.assert_allclose(found.acceptance_rate[0], kept, rtol=1e-12)


@pytest.mark.parametrize("rule", [SpeculativeSampling(), Cactus(0.1), Lenience(0.5)])
def test_a_grid_of_uniforms_gives_the_exact_distribution_of_a_block(rule):
    """Drafts by their probabilities, acceptance by a grid: an error of one cell for each bound."""
    rng = np.random.default_rng(3)
    _, p, q = block_of(rng, 2, 3)
    wanted = block_distribution(
        rule, draft=lambda block: p[len(block)], target=lambda block: q[len(block)],
        num_draft_tokens=2,
    )  # fmt: skip
    cells = 12
    grid = (np.arange(cells) + 0.5) / cells
    points = np.array(np.meshgrid(grid, grid, grid, indexing="ij")).reshape(3, -1).T
    found: dict = {}
    for x in range(3):
        for y in range(3):
            n = len(points)
            block = judged(
                rule, [[x, y]] * n, np.stack([p] * n), np.stack([q] * n), points[:, :2],
                points[:, 2],
            )  # fmt: skip
            for row, kept in zip(block.emitted.tolist(), block.accepted.tolist(), strict=True):
                key = tuple(row[: kept + 1]), kept
                found[key] = found.get(key, 0.0) + p[0, x] * p[1, y] / n
    assert set(found) <= set(wanted)
    # Each of three uniforms moves at most one cell of mass at each of its few thresholds.
    assert sum(abs(found.get(key, 0.0) - chance) for key, chance in wanted.items()) < 3 / cells


def test_certain_drafts_are_kept_with_the_chances_of_token_by_token():
    rng = np.random.default_rng(5)
    tokens, _, q = block_of(rng, 3, 4)
    accept, recover = rng.random((50, 3)), rng.random(50)
    block = judged(Cactus(0.2), [tokens] * 50, None, np.stack([q] * 50), accept, recover)
    token = judge(
        Cactus(0.2), torch.tensor([tokens] * 50), draft_probs=None,
        target_logits=torch.tensor(np.stack([q] * 50)).log(),
        accept_uniforms=torch.tensor(accept), recover_uniforms=torch.tensor(recover),
    )  # fmt: skip
    # Which uniforms keep them differs; out at a certain token is g, up to its rounding.
    np.testing.assert_allclose(block.boosted.numpy(), token.boosted.numpy(), rtol=1e-12)


def test_positions_beyond_a_budget_are_verified_as_the_targets_own():
    rng = np.random.default_rng(9)
    tokens, p, q = block_of(rng, 3, 4)
    accept, recover = rng.random((1, 3)), rng.random(1)
    found = judged(
        Cactus(0.5), [tokens], p[None], q[None], accept, recover,
        limits=lambda charges: torch.tensor([1]), emitted_logprobs=True,
    )  # fmt: skip
    emitted, kept = verify_block(
        [Cactus(0.5), SpeculativeSampling(), SpeculativeSampling()], tokens,
        draft=p, target=q, accept_uniforms=accept[0], recover_uniform=recover[0],
    )  # fmt: skip
    assert (found.emitted[0, : kept + 1].tolist(), int(found.accepted[0])) == (emitted, kept)
    assert found.kl_bound[0, 1:].tolist() == [0.0, 0.0]
    assert found.emitted_logprobs[0, 1:].tolist() == found.warped_logprobs[0, 1:].tolist()


def test_a_rule_that_is_not_ordered_is_refused():
    with pytest.raises(ValueError, match=r"ordered rule.*TypicalAcceptance"):
        judged(TypicalAcceptance(0.1, 0.3), [[0]], [[[0.5, 0.5]]], [[[0.5, 0.5]] * 2], [[0.5]],
               [0.5])  # fmt: skip
