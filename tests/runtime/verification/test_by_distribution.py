"""The torch verifier: its law enumerated, and its tokens against the numpy specification's."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_runtime import SamplingParams, judge
from cactus_runtime.loop.warp import SamplingWarp
from cactus_runtime.verification import by_distribution as module
from cactus_runtime.verification.by_distribution import judge_by_distribution
from cactus_runtime.verification.warp import IdentityWarp
from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    Lenience,
    Mixture,
    SharedRecoveryRule,
    SpeculativeSampling,
    emission,
    specification,
)
from cactus_theory.rules.registry import RULES
from cactus_theory.testing import (
    ConformanceError,
    as_sampler,
    check_by_enumeration,
    check_by_sampling,
    check_edges,
)
from cactus_theory.testing.strategies import budgets, pairs
from tests.runtime.kit_adapters import in_torch

ON_DEVICE = [
    rule
    for rule in (entry.example() for entry in RULES.values())
    if isinstance(rule, SharedRecoveryRule) and rule.torch_ready
]
DRAFT = [Fraction(n, 16) for n in (1, 3, 4, 8)]
TARGET = [Fraction(n, 16) for n in (6, 4, 4, 2)]


def log(law):
    return torch.tensor(np.asarray(law)).log()


def test_plain_speculative_sampling_emits_exactly_the_target():
    rule = SpeculativeSampling()
    found = check_by_enumeration(
        in_torch(judge, rule), rule, draft=DRAFT, target=TARGET, cells=48, rows=512
    )
    assert list(found.first_token()) == TARGET  # Fractions: every threshold is a multiple of 1/24


@pytest.mark.parametrize("rule", [Cactus(0.05), Cactus(0.5), CactusExact(0.05), CactusExact(0.5)])
def test_a_lossy_rule_emits_its_output_law_to_the_grid_and_is_told_from_all_others(rule):
    draft, target = np.array(DRAFT, dtype=float), np.array(TARGET, dtype=float)
    found = check_by_enumeration(
        in_torch(judge, rule), rule, draft=draft, target=target, cells=64, rows=512
    )
    assert "plain speculative sampling (no boost)" not in found.unresolved


class MissingBoost(Cactus):
    def boost(self, target_prob, *, xp=np):
        return target_prob


class UnscaledResidual(Cactus):
    def shrink(self, target_prob, *, xp=np):
        return xp.ones_like(target_prob)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (MissingBoost(0.5), "the nearest is"),
        (UnscaledResidual(0.2), "it matches residual not resc"),
    ],
)
def test_the_enumeration_rejects_a_mutant(mutant, name):
    draft, target = np.array(DRAFT, dtype=float), np.array(TARGET, dtype=float)
    with pytest.raises(ConformanceError, match=name):
        check_by_enumeration(
            in_torch(judge, mutant),
            Cactus(mutant.delta),
            draft=draft,
            target=target,
            cells=64,
            rows=512,
        )


def by_distribution(rule, tokens, **block):
    return judge_by_distribution(rule, tokens, limits=None, warp=IdentityWarp(), **block)


LOSSY = [SpeculativeSampling(), Cactus(0.05), CactusExact(0.1), CactusSafe(0.2)]
SHARED = [Lenience(0.5), Mixture(0.7)]


@pytest.mark.parametrize(
    ("function", "rule"),
    [(judge, rule) for rule in LOSSY] + [(by_distribution, rule) for rule in LOSSY[:2] + SHARED],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_ragged_blocks_follow_their_joint_law_and_the_edges_hold(function, rule):
    verifier = in_torch(function, rule)
    check_by_enumeration(verifier, rule, cells=4, rows=512)
    # probabilities come from logits, right to a few roundings of 2^-53
    check_edges(verifier, rule, largest_uniform=1 - 2.0**-48)


def test_blocks_with_uniforms_of_their_own_follow_their_joint_law():
    rule = Cactus(0.1)
    sampler = as_sampler(in_torch(judge, rule, dtype=torch.float32))
    report = check_by_sampling(sampler, rule, rows=512)
    assert min(report.power.values()) >= 0.999


def test_a_uniform_of_zero_never_accepts_an_excluded_token():
    block = judge(
        Cactus(5.0),
        torch.tensor([[0]]),
        draft_probs=torch.tensor([[[0.5, 0.5]]]),
        target_logits=torch.tensor([[[-torch.inf, 0.0]] * 2]),
        accept_uniforms=torch.zeros(1, 1, dtype=torch.float64),
        recover_uniforms=torch.zeros(1, dtype=torch.float64),
    )
    assert block.accepted.item() == 0
    assert block.last_token.item() == 1


# Both sides compute a probability by their own softmax, so they may differ in the last bit. These
# uniforms stay away from the thresholds of laws with few digits; ties are the enumerations' matter.
uniform = st.integers(0, 60).map(lambda i: i / 61 + 1 / 1370)


@given(pairs(max_size=6), st.data())
def test_it_agrees_with_the_specification_token_for_token(pair, data):
    draft, target = pair
    size = len(draft)
    support = [x for x in range(size) if draft[x] > 0]
    tokens = data.draw(st.lists(st.sampled_from(support), min_size=1, max_size=3))
    accept = data.draw(st.lists(uniform, min_size=len(tokens), max_size=len(tokens)))
    recover = data.draw(uniform)
    rule = data.draw(
        st.one_of(st.just(SpeculativeSampling()), st.builds(Cactus, budgets()))
        if size > 1
        else st.builds(CactusExact, budgets())
    )
    logits = log(target).expand(len(tokens) + 1, size)
    # The specification gets the law that these logits say, so both read the same numbers.
    target = logits.softmax(-1).numpy()
    emitted, accepted = specification.verify(
        rule,
        tokens,
        draft=np.tile(draft, (len(tokens), 1)),
        target=target,
        accept_uniforms=accept,
        recover_uniform=recover,
    )
    block = judge(
        rule,
        torch.tensor([tokens]),
        draft_probs=torch.tensor(np.tile(draft, (1, len(tokens), 1))),
        target_logits=logits[None],
        accept_uniforms=torch.tensor([accept], dtype=torch.float64),
        recover_uniforms=torch.tensor([recover], dtype=torch.float64),
    )
    assert [*tokens[: block.accepted.item()], block.last_token.item()] == emitted
    assert block.accepted.item() == accepted


def random_block(seed, batch=500, drafts=4, size=9):
    rng = torch.Generator().manual_seed(seed)
    draft = torch.rand(batch, drafts, size, generator=rng, dtype=torch.float64).pow(3)
    draft = draft / draft.sum(-1, keepdim=True)
    return {
        "tokens": draft.flatten(0, 1).multinomial(1, generator=rng).view(batch, drafts),
        "draft_probs": draft,
        "target_logits": 2 * torch.randn(batch, drafts + 1, size, generator=rng).double(),
        "accept_uniforms": torch.rand(batch, drafts, generator=rng, dtype=torch.float64),
        "recover_uniforms": torch.rand(batch, generator=rng, dtype=torch.float64),
    }


@pytest.mark.parametrize("rule", [Cactus(0.0), CactusExact(0.0)])
def test_a_budget_of_zero_is_plain_speculative_sampling_token_for_token(rule):
    block = random_block(0)
    tokens = block.pop("tokens")
    plain = judge(SpeculativeSampling(), tokens, **block)
    zero = judge(rule, tokens, **block)
    assert torch.equal(plain.accepted, zero.accepted)
    assert torch.equal(plain.last_token, zero.last_token)


def test_a_lossless_position_is_plain_speculative_sampling_and_a_lossy_one_is_not():
    block = random_block(5)
    tokens = block.pop("tokens")
    rule, batch = Cactus(0.5), len(tokens)

    def upto(count):
        return judge(rule, tokens, limits=lambda _: torch.full((batch,), count), **block)

    plain, boosted = judge(SpeculativeSampling(), tokens, **block), judge(rule, tokens, **block)
    lossless, lossy = upto(0), upto(tokens.shape[1])
    for field in ("accepted", "last_token"):
        assert torch.equal(getattr(lossless, field), getattr(plain, field))
        assert torch.equal(getattr(lossy, field), getattr(boosted, field))
    # the one sums min(p, q), the other takes what it loses from the sum of p
    torch.testing.assert_close(
        lossless.acceptance_rate, plain.acceptance_rate, rtol=1e-14, atol=1e-15
    )
    assert not lossless.total_variation.any()
    assert not lossless.kl_bound.any()
    mixed = upto(1)
    first_rejected = boosted.accepted == 0
    assert torch.equal(mixed.last_token[first_rejected], boosted.last_token[first_rejected])
    assert torch.equal(mixed.accepted > 0, boosted.accepted > 0)


@pytest.mark.parametrize("rule", ON_DEVICE, ids=str)
def test_a_device_judges_as_the_host_does(rule, monkeypatch):
    block = random_block(2, batch=60)
    host = judge(rule, **block)
    monkeypatch.setattr(module, "_on_device", lambda rule, tensor: True)
    device = judge(rule, **block)
    for field in ("accepted", "last_token"):
        assert torch.equal(getattr(host, field), getattr(device, field))
    for field in ("boosted", "acceptance_rate", "total_variation", "kl_bound"):
        # sums of 9 terms in another order, and levels of a clamp solved in another way
        torch.testing.assert_close(
            getattr(host, field), getattr(device, field), rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize("rule", [Cactus(0.3), CactusExact(0.3)])
def test_a_batch_is_its_rows_one_by_one(rule):
    block = random_block(1, batch=20)
    together = judge(rule, block["tokens"], **{k: v for k, v in block.items() if k != "tokens"})
    for i in range(20):
        row = {name: tensor[i : i + 1] for name, tensor in block.items()}
        alone = judge(rule, row.pop("tokens"), **row)
        assert alone.accepted.item() == together.accepted[i].item()
        assert alone.last_token.item() == together.last_token[i].item()


def test_every_count_of_accepted_tokens_occurs_in_the_random_blocks():
    block = random_block(0)
    tokens = block.pop("tokens")
    assert sorted(Counter(judge(Cactus(0.1), tokens, **block).accepted.tolist())) == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_a_certain_draft_is_a_one_hot_law():
    block = random_block(2)
    tokens = block.pop("tokens")
    one_hot = torch.nn.functional.one_hot(tokens, 9).double()
    explicit = judge(Cactus(0.3), tokens, **{**block, "draft_probs": one_hot})
    implied = judge(Cactus(0.3), tokens, **{**block, "draft_probs": None})
    assert torch.equal(explicit.accepted, implied.accepted)
    assert torch.equal(explicit.last_token, implied.last_token)


def test_without_drafts_the_bonus_token_follows_the_target():
    u = torch.tensor([0.1, 0.3, 0.9], dtype=torch.float64)
    block = judge(
        Cactus(1.0),
        torch.zeros(3, 0, dtype=torch.int64),
        draft_probs=None,
        target_logits=log([0.2, 0.3, 0.5]).expand(3, 1, 3),
        accept_uniforms=torch.zeros(3, 0, dtype=torch.float64),
        recover_uniforms=u,
    )
    assert block.accepted.tolist() == [0, 0, 0]
    assert block.last_token.tolist() == [0, 1, 2]


def test_equal_laws_are_always_accepted():
    law = torch.rand(50, 1, 30, dtype=torch.float64).softmax(-1)
    tokens = torch.randint(30, (50, 1))
    block = judge(
        SpeculativeSampling(),
        tokens,
        draft_probs=law,
        target_logits=law.log().expand(50, 2, 30),
        accept_uniforms=torch.full((50, 1), 1 - 2.0**-40, dtype=torch.float64),
        recover_uniforms=torch.rand(50, dtype=torch.float64),
    )
    assert block.accepted.tolist() == [1] * 50


def test_where_a_residual_is_empty_by_rounding_the_target_speaks():
    logits = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64)
    block = judge(
        SpeculativeSampling(),
        torch.tensor([[1]]),
        draft_probs=(logits.softmax(-1) * (1 + 1e-9)).expand(1, 1, 3),  # above q everywhere
        target_logits=logits.expand(1, 2, 3),
        accept_uniforms=torch.tensor([[1 - 2**-53]], dtype=torch.float64),
        recover_uniforms=torch.tensor([0.9], dtype=torch.float64),
    )
    assert (block.accepted.item(), block.last_token.item()) == (0, 2)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_logits_before_the_warp(temperature):
    block = random_block(6, batch=5)
    warp = SamplingWarp(SamplingParams(temperature))  # which takes the peak from all logits
    got = judge(Cactus(0.1), block.pop("tokens"), warp=warp, **block)
    raw = block["target_logits"].logsumexp(-1)
    torch.testing.assert_close(got.log_normaliser, raw, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", [SpeculativeSampling(), Cactus(0.4), CactusExact(0.4)])
def test_the_account_is_the_theory_s(rule, dtype):
    block = random_block(3, batch=5)
    logits = block["target_logits"].to(dtype)
    got = judge(rule, block.pop("tokens"), **{**block, "target_logits": logits})
    target = logits[:, :-1].double().softmax(-1).numpy()
    want = emission(rule, draft=block["draft_probs"].numpy(), target=target)
    for name in ("acceptance_rate", "total_variation", "kl_bound"):
        # sums over tokens that are kept for certain are in the precision of the logits
        rtol, atol = (1e-12, 1e-14) if dtype == torch.float64 else (1e-6, 1e-7)
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("draft_probs", (2, 3, 9)),
        ("target_logits", (2, 4, 9)),
        ("accept_uniforms", (2, 3)),
        ("recover_uniforms", (3,)),
    ],
)
def test_a_wrong_shape_is_named(name, shape):
    block = random_block(4, batch=2)
    block[name] = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(ValueError, match=name):
        judge(Cactus(0.1), block.pop("tokens"), **block)


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e8])
def test_a_large_common_offset_of_float32_logits_changes_nothing(offset):
    count = 20_000
    draft = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.05, 0.05, 0.0, 0.0], dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    tokens = draft.multinomial(count, replacement=True, generator=rng)[:, None]
    block = judge(
        SpeculativeSampling(),
        tokens,
        draft_probs=draft.expand(count, 1, 8),
        target_logits=torch.full((count, 2, 8), offset),
        accept_uniforms=torch.rand(count, 1, generator=rng, dtype=torch.float64),
        recover_uniforms=torch.rand(count, generator=rng, dtype=torch.float64),
    )
    emitted = torch.where(block.accepted > 0, tokens[:, 0], block.last_token)
    counts = emitted.bincount(minlength=8).double()
    # the target is uniform: chi-square on 7 degrees of freedom, false alarm 1e-6 at 40.5
    assert ((counts - count / 8) ** 2 / (count / 8)).sum() < 40.5
