"""The kernels interpreted on a CPU: test_kernels.py runs this file in a process of its own.

Triton decides on import whether it interprets, and torch imports it with the other tests.
"""

import doctest
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from cactus_runtime.streams import draw_tokens
from cactus_runtime.verification import device_functions, kernels
from cactus_runtime.verification import verify as verification
from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    Clamp,
    SpeculativeSampling,
    output_distribution,
)
from cactus_theory.rules import CandidateRule
from cactus_theory.testing import check_by_enumeration
from tests.runtime.kit_adapters import in_torch as in_torch_by

CHUNK = kernels._CHUNK
LAST_UNIFORM = 1 - 2.0**-53


class HalfWay(CandidateRule):
    """A rule of the user's, with a rational law."""

    def boost(self, target_prob, *, xp=np):
        return (1 + target_prob) / 2

    def shrink(self, target_prob, *, xp=np):
        return 0.5 * xp.ones_like(target_prob)


def random_block(
    seed,
    *,
    batch=3,
    drafts=2,
    vocabulary=9,
    draft="law",
    dtype=torch.float32,
    temperature=1.0,
    kept=None,
):
    """Keyword arguments of `verify`; `kept` is the number of finite logits of a row."""
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch, drafts + 1, vocabulary, generator=rng)
    if kept is not None:
        lowest = logits.topk(min(kept, vocabulary)).values[..., -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    logits = logits.to(dtype)
    noise = 2 * torch.randn(batch, drafts, vocabulary, generator=rng)
    if draft == "target":
        noise = 0.0
    probs = (logits[:, :-1].double() / temperature + noise).softmax(-1).float()
    tokens = torch.empty(batch, drafts, dtype=torch.int64)
    if drafts:
        tokens = probs.flatten(0, 1).multinomial(1, generator=rng).view(batch, drafts)
    return {
        "tokens": tokens,
        "draft_probs": None if draft == "one-hot" else probs,
        "target_logits": logits,
        "accept_uniforms": torch.rand(batch, drafts, generator=rng, dtype=torch.float64),
        "recover_uniforms": torch.rand(batch, generator=rng, dtype=torch.float64),
        "temperature": temperature,
    }


def in_torch(rule, *, target_logits, temperature, **block):
    logits = target_logits.double() / temperature
    return verification.verify(rule, block.pop("tokens"), target_logits=logits, **block)


def assert_agrees_with_torch(rule, block):
    tokens = block["tokens"]
    got = kernels.verify(rule, tokens, **{k: v for k, v in block.items() if k != "tokens"})
    want = in_torch(rule, **block)
    assert torch.equal(got.accepted, want.accepted)
    assert torch.equal(got.last_token, want.last_token)
    for name in ("draft_prob", "target_prob", "boosted"):
        torch.testing.assert_close(
            getattr(got, name), getattr(want, name), rtol=2e-6, atol=0
        )  # float32 in either, of exponents up to 20
    return got


rules = st.one_of(
    st.builds(kind, st.sampled_from([0.0, 0.1, 1.0])) for kind in (Cactus, CactusSafe, CactusExact)
)
blocks = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "batch": st.integers(1, 5),
        "drafts": st.integers(0, 4),
        "vocabulary": st.sampled_from([1, 2, 7, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 5000]),
        "draft": st.sampled_from(["law", "target", "one-hot"]),
        "dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
        "temperature": st.sampled_from([1.0, 0.6, 1.7]),
        "kept": st.sampled_from([None, 1, 20]),
    }
)


# The uniforms are random: within 1e-7 (the rounding of a probability) of one of the thresholds
# of a block comes one block in a million.
@settings(max_examples=40, phases=[Phase.explicit, Phase.generate])  # a seed does not shrink
@given(rules, blocks)
@example(Cactus(1.0), {"seed": 0, "batch": 2, "drafts": 4, "vocabulary": CHUNK - 1})
@example(CactusExact(0.1), {"seed": 1, "batch": 2, "drafts": 4, "vocabulary": CHUNK})
@example(CactusSafe(0.1), {"seed": 2, "batch": 2, "drafts": 4, "vocabulary": CHUNK + 1})
def test_the_kernels_agree_with_torch_token_for_token(rule, block):
    assert_agrees_with_torch(rule, random_block(**block))


@pytest.mark.parametrize("draft", ["law", "one-hot"])
def test_they_agree_on_rows_of_fewer_drafts(draft):
    block = random_block(7, batch=15, drafts=2, draft=draft)
    block["num_drafts"] = torch.arange(15) % 3
    got = assert_agrees_with_torch(Cactus(0.1), block)
    assert (got.accepted == block["num_drafts"]).any()
    assert (got.accepted < block["num_drafts"]).any()


@pytest.mark.parametrize("draft", ["law", "one-hot"])
def test_they_agree_at_every_count_of_accepted_tokens_and_where_the_rule_is_switched_off(draft):
    block = random_block(0, batch=20, drafts=2, draft=draft)
    block["lossy"] = torch.arange(40).view(20, 2) % 3 > 0
    got = assert_agrees_with_torch(Cactus(0.3), block)
    assert got.accepted.bincount(minlength=3).min() > 0
    block["lossy"] = ~block["lossy"]
    assert not torch.equal(got.accepted, assert_agrees_with_torch(Cactus(0.3), block).accepted)


# Laws whose only thresholds are 1/2 (plain) or 3/4 to accept the last token, and 3/4 to recover
# the first: midpoints of four cells see them exactly.
PLAIN = SpeculativeSampling(), [[4, 4, 8], [7, 5, 4]], 16
HALF_WAY = HalfWay(), [[8, 8, 80], [46, 26, 24]], 96


@pytest.mark.parametrize(("rule", "laws", "total"), [PLAIN, HALF_WAY], ids=["plain", "own"])
def test_they_emit_exactly_the_output_law(rule, laws, total):
    draft, target = ([Fraction(n, total) for n in law] for law in laws)
    verifier = in_torch_by(kernels.verify, rule, dtype=torch.float32)
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


def test_ragged_blocks_follow_their_joint_law():
    rule = SpeculativeSampling()
    check_by_enumeration(
        in_torch_by(kernels.verify, rule, dtype=torch.float32),
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
    _, normaliser = kernels.token_probs(logits, torch.zeros(1, 1, dtype=torch.int64))
    uniform = torch.tensor([u], dtype=torch.float64)
    token = kernels.draw(
        logits,
        normaliser,
        torch.tensor([int(rejected < 0)]),
        shrink=torch.tensor([0.75], dtype=torch.float64),
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
    _, normaliser = kernels.token_probs(logits, torch.zeros(4, 0, dtype=torch.int64))
    uniforms = torch.arange(4, dtype=torch.float64) / 4
    token = kernels.draw(
        logits,
        normaliser,
        torch.zeros(4, dtype=torch.int64),
        shrink=uniforms,
        draft_probs=None,
        rejected_token=torch.full((4,), -1),
        uniforms=uniforms,
    )
    assert token.tolist() == [1, 2, 4, 5]


def test_where_sums_round_beyond_all_tokens_the_last_of_positive_weight_is_drawn():
    double, token = torch.float64, torch.full((1,), -1)
    logits = torch.tensor([[[-torch.inf, 0.0, 0.0, -torch.inf, -torch.inf]]])
    none = (torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=double), token)
    device_functions.search[(1,)](
        (logits, *logits.stride()),
        5,
        1.0,
        (torch.zeros(1, 1, dtype=double), torch.full((1, 1), 2.0, dtype=double).log(), 1),
        None,
        none,
        torch.full((1, 1), 1.01, dtype=double),  # of weights that sum to 1
        torch.zeros(1, 1, dtype=double),
        1,
        torch.full((1,), 0.999, dtype=double),
        drawn := torch.empty(1, dtype=torch.int64),
        8,
        1,
    )
    assert drawn.item() == 2


@pytest.mark.parametrize("first", [True, False])
def test_a_chunk_may_be_excluded_as_a_whole(first):
    logits = torch.randn(1, 2, 5000, generator=torch.Generator().manual_seed(0))
    logits[..., slice(0, CHUNK) if first else slice(CHUNK, 5000)] = -torch.inf
    tokens = torch.tensor([[4999 if first else 0]])
    target_prob, normaliser = kernels.token_probs(logits, tokens)
    want = logits.double().softmax(-1)[0, 0, tokens.item()].item()
    assert target_prob.item() == pytest.approx(want, rel=1e-6, abs=0)  # exponentials in float32
    assert torch.equal(normaliser.peak, logits.amax(-1).double())


@pytest.mark.parametrize("temperature", [1e-30, 1e-12, 1.0, 1e30])
@pytest.mark.parametrize("offset", [0.0, 1e6, -1e8])
def test_a_large_offset_and_a_tiny_temperature_leave_the_digits_of_log_v(offset, temperature):
    logits = torch.full((1, 2, 5000), offset)
    logits[0, 1, 7] -= 64  # at the offset 1e8, float32 logits are 8 apart
    target_prob, normaliser = kernels.token_probs(
        logits, torch.tensor([[7]]), temperature=temperature
    )
    assert target_prob.item() == pytest.approx(1 / 5000, rel=1e-14, abs=0)  # a sum of ones
    kept = 4999 + np.exp(-64 / temperature)
    assert normaliser.log_sum[0, 1].exp().item() == pytest.approx(kept, rel=1e-14, abs=0)
    token = kernels.draw(
        logits,
        normaliser,
        torch.tensor([1]),
        shrink=torch.ones(1).double(),
        draft_probs=None,
        rejected_token=torch.tensor([-1]),
        uniforms=torch.tensor([(7 + 0.5) / kept], dtype=torch.float64),
        temperature=temperature,
    )
    assert token.item() == (8 if temperature <= 1 else 7)


def test_sums_are_in_float64():
    logits = torch.full((1, 1, CHUNK), -20.0)
    logits[..., 5] = 0
    _, normaliser = kernels.token_probs(logits, torch.zeros(1, 0, dtype=torch.int64))
    # Beside the peak's 1 the others have 1e-5, known to seven digits; a float32 sum loses 1e-8.
    want = 1 + (CHUNK - 1) * np.exp(-20)
    assert normaliser.log_sum.exp().item() == pytest.approx(want, rel=2e-12, abs=0)


def test_float64_logits_have_probabilities_in_float64():
    logits = 5 * torch.randn(1, 2, 5000, dtype=torch.float64)
    target_prob, _ = kernels.token_probs(logits, torch.tensor([[9]]), temperature=0.7)
    want = (logits / 0.7).softmax(-1)[0, 0, 9].item()
    assert target_prob.item() == pytest.approx(want, rel=1e-13, abs=0)  # exponents up to 60


def test_a_uniform_of_zero_never_accepts_an_excluded_token():
    block = kernels.verify(
        Cactus(5.0),
        torch.tensor([[0]]),
        draft_probs=torch.tensor([[[0.5, 0.5]]]),
        target_logits=torch.tensor([[[-torch.inf, 0.0]] * 2]),
        accept_uniforms=torch.zeros(1, 1, dtype=torch.float64),
        recover_uniforms=torch.zeros(1, dtype=torch.float64),
    )
    assert (block.accepted.item(), block.last_token.item()) == (0, 1)


def test_where_a_residual_is_empty_by_rounding_the_target_speaks():
    logits = torch.tensor([0.3, -0.2, 1.0])
    block = kernels.verify(
        SpeculativeSampling(),
        torch.tensor([[1]]),
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


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("tokens", (3,)),
        ("target_logits", (3, 2, 9)),
        ("draft_probs", (3, 2, 8)),
        ("accept_uniforms", (3, 3)),
        ("recover_uniforms", (2,)),
        ("lossy", (3, 1)),
    ],
)
def test_a_wrong_shape_is_named(name, shape):
    block = random_block(4) | {name: torch.zeros(shape, dtype=torch.float64)}
    with pytest.raises(ValueError, match=name):
        kernels.verify(Cactus(0.1), block.pop("tokens"), **block)


@pytest.mark.parametrize("name", ["row", "shrink", "rejected_token", "uniforms", "draft_probs"])
def test_a_wrong_shape_to_draw_from_is_named(name):
    logits = torch.zeros(2, 2, 5)
    _, normaliser = kernels.token_probs(logits, torch.zeros(2, 1, dtype=torch.int64))
    law = {"row": torch.zeros(2).long(), "shrink": torch.ones(2).double(), "draft_probs": None}
    law |= {"rejected_token": torch.zeros(2).long(), "uniforms": torch.zeros(2).double()}
    law[name] = torch.zeros(1)
    with pytest.raises(ValueError, match=name):
        kernels.draw(logits, normaliser, law.pop("row"), **law)


@pytest.mark.parametrize(
    ("logits", "tokens", "named"),
    [((2, 5), (2, 0), "logits"), ((2, 2, 0), (2, 1), "logits"), ((2, 2, 5), (2, 2), "tokens")],
)
def test_wrong_shapes_of_logits_and_tokens_are_named(logits, tokens, named):
    with pytest.raises(ValueError, match=named):
        kernels.token_probs(torch.zeros(logits), torch.zeros(tokens, dtype=torch.int64))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_that_is_not_positive_is_named(temperature):
    with pytest.raises(ValueError, match=f"temperature must lie in .*, got {temperature}"):
        kernels.token_probs(torch.zeros(1, 1, 3), torch.zeros(1, 0).long(), temperature=temperature)


def test_a_rule_that_is_not_a_candidate_rule_is_named():
    block = random_block(5)
    with pytest.raises(TypeError, match=r"CandidateRule, got Clamp\("):
        kernels.verify(Clamp(1.5), block.pop("tokens"), **block)


@pytest.mark.parametrize("name", ["Normaliser", "token_probs", "draw", "verify"])
def test_the_examples_run(name):
    (test,) = doctest.DocTestFinder(recurse=False).find(
        getattr(kernels, name), name, globs=vars(kernels)
    )
    assert test.examples
    for line in test.examples:
        line.options.pop(doctest.SKIP, None)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_a_decoder_judges_by_the_kernels_where_they_apply(monkeypatch):
    from transformers import LlamaConfig, LlamaForCausalLM

    from cactus_runtime import Decoder, Request, SamplingParams, judging

    def model(seed):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=7,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            initializer_range=0.5,
            bos_token_id=None,
            eos_token_id=None,
        )
        return LlamaForCausalLM(config).eval()

    decoder, fused = Decoder(model(0), draft=model(1)), []
    requests = [
        Request([1, 2], rule=Cactus(0.2), max_new_tokens=9 + i, seed=i, sampling=sampling)
        for i, sampling in enumerate([SamplingParams(temperature=0.7)] * 3 + [SamplingParams(0)])
    ]
    wanted = [decoder.stream(request).finish().tokens for request in requests]
    monkeypatch.setattr(judging.kernels, "applies", lambda logits: not fused.append(1))
    found = [result.tokens for result in decoder.batch(requests[:3]).finish()]
    assert found == wanted[:3]
    assert decoder.stream(requests[3]).finish().tokens == wanted[3]  # greedy: not by kernels
    assert fused
