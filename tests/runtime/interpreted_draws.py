"""What the interpreted kernels draw, by enumeration and at the edges of their arithmetic.

See `interpreted_kernels.py`.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch

from cactus_runtime.streams import draw_tokens
from cactus_runtime.verification import kernels, passes
from cactus_theory import (
    Cactus,
    SpeculativeSampling,
    output_distribution,
)
from cactus_theory.testing import check_by_enumeration
from tests.runtime.kernel_blocks import (
    BARE,
    CHUNK,
    LAST_UNIFORM,
    HalfWay,
    assert_agrees_with_torch,
    random_block,
)
from tests.runtime.kit_adapters import in_torch

# Distributions whose only thresholds are 1/2 (plain) or 3/4 to accept the last token, and 3/4 to
# recover the first: midpoints of four cells see them exactly.
PLAIN = SpeculativeSampling(), [[4, 4, 8], [7, 5, 4]], 16
HALF_WAY = HalfWay(), [[8, 8, 80], [46, 26, 24]], 96


def by_kernels(rule, tokens, **block):
    return kernels.judge_candidates(rule, tokens, **{**BARE, **block})


@pytest.mark.parametrize(("rule", "laws", "total"), [PLAIN, HALF_WAY], ids=["plain", "own"])
def test_they_emit_exactly_the_output_distribution(rule, laws, total):
    draft, target = ([Fraction(n, total) for n in law] for law in laws)
    verifier = in_torch(by_kernels, rule, dtype=torch.float32)
    found = check_by_enumeration(verifier, rule, draft=draft, target=target, cells=4)
    if rule == SpeculativeSampling():
        assert list(found.first_token()) == target
    else:
        expected = output_distribution(
            rule, draft=np.array(draft, dtype=float), target=np.array(target, dtype=float)
        )
        # counts are exact: a sum of 48 terms
        np.testing.assert_allclose(found.first_token(), expected, rtol=0, atol=1e-14)
    assert abs(np.array(draft, dtype=float) - found.first_token().astype(float)).max() > 0.05


def test_ragged_blocks_follow_their_joint_distribution():
    rule = SpeculativeSampling()
    check_by_enumeration(
        in_torch(by_kernels, rule, dtype=torch.float32),
        rule,
        draft=[[[0.5, 0.5], [0.75, 0.25]], []],
        target=[[[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]], [[0.25, 0.75]]],
        cells=2,
        rows=40,
    )


@pytest.mark.parametrize("u", [0.0, 0.2, 0.5, 0.7, LAST_UNIFORM])
@pytest.mark.parametrize("rejected", [-1, 0, CHUNK, 2 * CHUNK + 2])
def test_a_draw_is_the_inverse_distribution_function_across_chunks(u, rejected):
    vocabulary = 2 * CHUNK + 3
    support = [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 2]
    weights = torch.zeros(vocabulary, dtype=torch.float64)
    weights[support] = torch.tensor([3.0, 1, 4, 1, 5, 9, 2]).double()
    logits = weights.log().expand(1, 2, vocabulary)
    draft = torch.zeros(1, 1, vocabulary)
    draft[..., support] = torch.tensor([0.25, 0, 0, 0, 0.125, 0, 0])
    tokens, shrink = torch.tensor([[rejected]]), torch.tensor([0.75], dtype=torch.float64)
    normalised = passes.normalise(logits, tokens.clamp(min=0))
    row = torch.tensor([int(rejected < 0)])
    residuals = passes.weigh(logits, normalised, tokens, draft, shrink=shrink.unsqueeze(1), row=row)
    uniform = torch.tensor([u], dtype=torch.float64)
    token = passes.draw(
        logits,
        normalised,
        row,
        residuals=residuals,
        shrink=shrink,
        draft_probs=draft,
        rejected_token=torch.tensor([rejected]),
        uniforms=uniform,
    )
    expected = weights
    if rejected >= 0:
        expected = (0.75 * weights / weights.sum() - draft[0, 0]).clamp(min=0)
        expected[rejected] = 0
    assert token.tolist() == draw_tokens(expected[None], uniform).tolist()
    assert expected[token] > 0


def test_a_uniform_on_a_threshold_draws_the_next_token():
    logits = torch.tensor([-torch.inf, 0, 0, -torch.inf, 0, 0]).expand(4, 1, 6)
    uniforms = torch.arange(4, dtype=torch.float64) / 4
    token = passes.draw(
        logits,
        passes.normalise(logits, torch.zeros(4, 0, dtype=torch.int64)),
        torch.zeros(4, dtype=torch.int64),
        residuals=None,
        shrink=uniforms,
        draft_probs=None,
        rejected_token=torch.full((4,), -1),
        uniforms=uniforms,
    )
    assert token.tolist() == [1, 2, 4, 5]


def test_where_sums_round_beyond_all_tokens_the_last_of_positive_weight_is_drawn():
    weight = torch.tensor([0.0, 0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    logits = weight.log().expand(1, 1, 5)
    normalised = passes.normalise(logits, torch.zeros(1, 0, dtype=torch.int64))
    for claimed, u in ((1.01, 0.999), (0.5, 0.999), (1e-300, 1.0)):
        token = passes.draw(
            logits,
            normalised._replace(chunk_sums=torch.full((1, 1, 1), claimed, dtype=torch.float64)),
            torch.zeros(1, dtype=torch.int64),
            residuals=None,
            shrink=torch.ones(1),
            draft_probs=None,
            rejected_token=torch.full((1,), -1),
            uniforms=torch.tensor([u], dtype=torch.float64),
        )
        assert token.item() == 2


@pytest.mark.parametrize("first", [True, False])
def test_a_chunk_may_be_excluded_as_a_whole(first):
    logits = torch.randn(1, 2, 150, generator=torch.Generator().manual_seed(0))
    logits[..., slice(0, CHUNK) if first else slice(CHUNK, 150)] = -torch.inf
    tokens = torch.tensor([[149 if first else 0]])
    normalised = passes.normalise(logits, tokens)
    want = logits.double().softmax(-1)[0, 0, tokens.item()].item()
    # exponentials in float32
    assert normalised.target_prob.item() == pytest.approx(want, rel=1e-6, abs=0)
    assert torch.equal(normalised.peak, logits.amax(-1).double())


@pytest.mark.parametrize("temperature", [1e-30, 1e-12, 1.0, 1e30])
@pytest.mark.parametrize("offset", [0.0, 1e6, -1e8])
def test_a_large_offset_and_a_tiny_temperature_leave_the_digits_of_log_v(offset, temperature):
    logits = torch.full((1, 2, 500), offset)
    logits[0, 1, 7] -= 64  # at the offset 1e8, float32 logits are 8 apart
    normalised = passes.normalise(logits, torch.tensor([[7]]), temperature=temperature)
    # a sum of ones
    assert normalised.target_prob.item() == pytest.approx(1 / 500, rel=1e-14, abs=0)
    kept = 499 + np.exp(-64 / temperature)
    assert normalised.log_sum[0, 1].exp().item() == pytest.approx(kept, rel=1e-14, abs=0)
    raw = logits.double().logsumexp(-1)
    torch.testing.assert_close(normalised.log_normaliser, raw, rtol=1e-15, atol=1e-7)
    token = passes.draw(
        logits,
        normalised,
        torch.tensor([1]),
        residuals=None,
        shrink=torch.ones(1).double(),
        draft_probs=None,
        rejected_token=torch.tensor([-1]),
        uniforms=torch.tensor([(7 + 0.5) / kept], dtype=torch.float64),
    )
    assert token.item() == (8 if temperature <= 1 else 7)


def test_sums_are_in_float64():
    logits = torch.full((1, 1, CHUNK), -20.0)
    logits[..., 5] = 0
    normalised = passes.normalise(logits, torch.zeros(1, 0, dtype=torch.int64))
    # Beside the peak's 1 the others have 1e-7, known to seven digits; a float32 sum loses 1e-8.
    want = 1 + (CHUNK - 1) * np.exp(-20)
    assert normalised.log_sum.exp().item() == pytest.approx(want, rel=2e-12, abs=0)


def test_float64_logits_have_probabilities_in_float64():
    logits = 5 * torch.randn(1, 2, 500, dtype=torch.float64)
    found = passes.normalise(logits, torch.tensor([[9]]), temperature=0.7)
    want = (logits / 0.7).softmax(-1)[0, 0, 9].item()
    assert found.target_prob.item() == pytest.approx(want, rel=1e-13, abs=0)  # exponents up to 60


def test_a_uniform_of_zero_never_accepts_an_excluded_token():
    block = kernels.judge_candidates(
        Cactus(5.0),
        torch.tensor([[0]]),
        **BARE,
        draft_probs=torch.tensor([[[0.5, 0.5]]]),
        target_logits=torch.tensor([[[-torch.inf, 0.0]] * 2]),
        accept_uniforms=torch.zeros(1, 1, dtype=torch.float64),
        recover_uniforms=torch.zeros(1, dtype=torch.float64),
    )
    assert (block.accepted.item(), block.last_token.item()) == (0, 1)


def test_where_a_residual_is_empty_by_rounding_the_target_is_drawn_from():
    logits = torch.tensor([0.3, -0.2, 1.0])
    block = kernels.judge_candidates(
        SpeculativeSampling(),
        torch.tensor([[1]]),
        **BARE,
        draft_probs=(logits.double().softmax(-1) * (1 + 1e-5)).expand(1, 1, 3),  # above q
        target_logits=logits.expand(1, 2, 3),
        accept_uniforms=torch.tensor([[LAST_UNIFORM]], dtype=torch.float64),
        recover_uniforms=torch.tensor([0.9], dtype=torch.float64),
    )
    assert (block.accepted.item(), block.last_token.item()) == (0, 2)


def test_strides_change_nothing():
    block = random_block(3, batch=4, drafts=3, vocabulary=50)
    plain = assert_agrees_with_torch(Cactus(0.1), block)
    for name in ("draft_probs", "target_logits"):
        block[name] = block[name].permute(2, 0, 1).contiguous().permute(1, 2, 0)
    for name in ("tokens", "accept_uniforms"):
        block[name] = block[name].t().contiguous().t()
    block["recover_uniforms"] = block["recover_uniforms"].repeat_interleave(2)[::2]
    turned = assert_agrees_with_torch(Cactus(0.1), block)
    assert torch.equal(plain.last_token, turned.last_token)
