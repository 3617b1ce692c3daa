"""The kernels interpreted on a CPU: test_kernels.py runs the files interpreted_*.py in a process.

Triton decides on import whether it interprets, and torch imports it with the other tests.
"""

import doctest

import numpy as np
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpreterBuilder

from cactus_runtime import SamplingParams
from cactus_runtime.verification import kernels, passes
from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    SpeculativeSampling,
    SquaredHellinger,
    TotalVariation,
    emission,
)
from tests.runtime.kernel_blocks import CHUNK, HalfWay, assert_agrees_with_torch, random_block
from tests.tiny_models import tiny_llama

rules = st.one_of(
    [
        st.builds(kind, st.sampled_from([0.0, 1e-6, 0.1, 1.0]))
        for kind in (Cactus, CactusSafe, CactusExact)
    ]
    + [st.sampled_from([SpeculativeSampling(), HalfWay(), CactusExact(0.1, SquaredHellinger())])]
)
blocks = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "batch": st.integers(1, 5),
        "drafts": st.integers(0, 4),
        "vocabulary": st.sampled_from([1, 2, 7, CHUNK - 1, CHUNK, CHUNK + 1, 500]),
        "draft": st.sampled_from(["noisy", "target", "one-hot"]),
        "dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
        "temperature": st.sampled_from([1.0, 0.6, 1.7]),
        "kept": st.sampled_from([None, 1, 20]),
    }
)


# The uniforms are random: within 1e-7 (the rounding of a probability) of one of the thresholds
# of a block comes one block in a million.
@settings(max_examples=25, phases=[Phase.explicit, Phase.generate])  # a seed does not shrink
@given(rules, blocks)
@example(Cactus(1.0), {"seed": 0, "batch": 2, "drafts": 4, "vocabulary": CHUNK - 1})
@example(CactusExact(0.1), {"seed": 1, "batch": 2, "drafts": 4, "vocabulary": CHUNK})
@example(CactusSafe(0.1), {"seed": 2, "batch": 2, "drafts": 4, "vocabulary": CHUNK + 1})
def test_the_kernels_agree_with_torch_token_for_token(rule, block):
    assert_agrees_with_torch(rule, random_block(**block))


@pytest.mark.parametrize("draft", ["noisy", "one-hot"])
def test_they_agree_on_rows_of_fewer_drafts(draft):
    block = random_block(7, batch=15, drafts=2, draft=draft)
    block["num_drafts"] = torch.arange(15) % 3
    got = assert_agrees_with_torch(Cactus(0.1), block)
    assert (got.accepted == block["num_drafts"]).any()
    assert (got.accepted < block["num_drafts"]).any()


@pytest.mark.parametrize("rule", [Cactus(0.3), CactusExact(0.3), HalfWay()], ids=str)
@pytest.mark.parametrize("draft", ["noisy", "one-hot"])
def test_they_agree_where_only_so_many_positions_may_be_lossy(rule, draft):
    block = random_block(0, batch=20, drafts=2, draft=draft, dtype=torch.float64)
    seen = []

    def limits(charges):
        seen.append(charges)
        return torch.arange(20) % 3

    plain = assert_agrees_with_torch(rule, block)
    limited = assert_agrees_with_torch(rule, block | {"limits": limits})
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-14)
    assert limited.accepted.bincount(minlength=3).min() > 0
    assert not torch.equal(limited.accepted, plain.accepted)
    assert not limited.kl_bound[::3].any()
    assert (limited.total_variation[2::3] == plain.total_variation[2::3]).all()
    num_drafts = torch.arange(20) // 2 % 3
    assert_agrees_with_torch(rule, block | {"limits": limits, "num_drafts": num_drafts})


class Granted(Cactus):
    """Not what the kernels know by the name of its parent."""

    def boost(self, target_prob, *, xp=np):
        return target_prob


@pytest.mark.parametrize(
    "rule", [HalfWay(), Granted(0.3), CactusExact(0.3, TotalVariation())], ids=str
)
def test_a_rule_that_the_kernels_do_not_know_is_charged_what_torch_finds(rule):
    assert kernels.gain_of(rule) is None
    assert_agrees_with_torch(rule, random_block(3, batch=9, dtype=torch.float64))


PROBS = [1e-300, 1e-100, 1e-30, 1e-16, 1e-9, 1e-5, 1e-3, 0.02, 0.1, 0.3, 0.49, 0.5, 0.51, 0.7]
PROBS += [0.9, 0.99, 1 - 1e-4, 1 - 1e-6, 1 - 1e-9, 1 - 1e-12]


@pytest.mark.parametrize("kind", [Cactus, CactusSafe, CactusExact])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3, 0.03, 0.3, 0.7, 1.3, 3.0, 10.0, 50.0])
def test_the_gain_in_a_kernel_is_that_of_the_rule(kind, delta, monkeypatch):
    """A draft that is one-hot is charged TV g - q and KL g log(g / q)."""
    monkeypatch.setattr(passes, "_CHUNK", 2)
    rule = kind(delta)
    q = torch.tensor(PROBS, dtype=torch.float64)
    logits = torch.stack([q.log(), torch.log1p(-q)], dim=-1).unsqueeze(1).expand(-1, 2, 2)
    tokens = torch.zeros(len(q), 1, dtype=torch.int64)
    normalised = passes.normalise(logits, tokens)
    charges = passes.charge(logits, normalised, tokens, None, gain=kernels.gain_of(rule))
    q = normalised.target_prob[:, 0].numpy()
    g = rule.boost(q)
    # exponents up to 690; g - q near 1 has the digits of 1 - q
    close = {"rtol": 1e-11, "atol": 4e-16}
    np.testing.assert_allclose(charges.total_variation[:, 0], g - q, **close)
    np.testing.assert_allclose(charges.acceptance_rate[:, 0], g, rtol=1e-11)
    np.testing.assert_allclose(charges.kl_bound[:, 0], g * np.log1p((g - q) / q), **close)


@pytest.mark.parametrize(
    ("dtype", "temperature"),
    [(torch.float64, 1.0), (torch.float64, 0.6), (torch.float32, 0.6), (torch.bfloat16, 1.0)],
)
@pytest.mark.parametrize(
    "rule",
    [
        SpeculativeSampling(),
        *(Cactus(0.2), Cactus(1e-9), CactusSafe(50.0)),
        *(CactusExact(1e-9), CactusExact(0.2), CactusExact(3.0)),
    ],
    ids=str,
)
def test_what_is_charged_is_the_theory_s(rule, temperature, dtype):
    block = random_block(
        5, batch=2, vocabulary=3 * CHUNK + 7, dtype=dtype, temperature=temperature, kept=100
    )
    draft = block["draft_probs"].double()
    draft /= draft.sum(-1, keepdim=True)
    got = kernels.judge_candidates(rule, **block | {"draft_probs": draft})
    target = (block["target_logits"][:, :-1].double() / temperature).softmax(-1)
    want = emission(rule, draft=draft.numpy(), target=target.numpy())
    # in float32 only the normaliser, which moves all q alike
    rtol, atol = (1e-9, 1e-15) if dtype == torch.float64 else (1e-6, 1e-7)
    for name in ("acceptance_rate", "total_variation", "kl_bound"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=rtol, atol=atol)


@pytest.mark.parametrize("rule", [SpeculativeSampling(), Cactus(0.2), CactusExact(0.2)], ids=str)
def test_equal_distributions_are_accepted_and_charged_nothing(rule):
    block = random_block(6, vocabulary=CHUNK + 5, dtype=torch.float64)
    block["draft_probs"] = block["target_logits"][:, :-1].softmax(-1)
    block["accept_uniforms"] = torch.full((3, 2), 1 - 2.0**-40, dtype=torch.float64)
    got = kernels.judge_candidates(rule, **block)
    assert got.accepted.tolist() == [2, 2, 2]
    # sums of 69 roundings
    torch.testing.assert_close(got.acceptance_rate, torch.ones(3, 2).double(), rtol=1e-13, atol=0)
    assert got.total_variation.max() < 1e-13
    assert got.kl_bound.max() < 1e-13


@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, -torch.inf])
def test_a_row_without_a_distribution_has_no_finite_normaliser_and_harms_no_other(spoilt):
    block = random_block(8, vocabulary=CHUNK + 5)
    sound = kernels.judge_candidates(Cactus(0.2), **block)
    at = slice(None) if spoilt < 0 else CHUNK + 2
    block["target_logits"][1, 1, at] = spoilt
    with np.errstate(invalid="ignore"):  # of the interpreter's numpy
        got = kernels.judge_candidates(Cactus(0.2), **block)
    assert got.log_normaliser.isfinite().tolist() == [[True] * 3, [True, False, True], [True] * 3]
    assert torch.equal(got.packed()[::2], sound.packed()[::2])
    assert ((got.last_token >= 0) & (got.last_token < CHUNK + 5)).all()


def test_the_same_block_has_the_same_judgement_bit_for_bit():
    block = random_block(9, vocabulary=CHUNK + 5)
    packed = [kernels.judge_candidates(CactusExact(0.2), **block).packed() for _ in range(2)]
    assert torch.equal(*packed)


class Reads(TorchDispatchMode):
    """How often kernels load each element of some tensors, and what torch does with them."""

    def __init__(self, monkeypatch, *watched):
        super().__init__()
        self.watched = [tensor.data_ptr() for tensor in watched]
        self.sizes = [tensor.element_size() for tensor in watched]
        self.counts = [np.zeros(tensor.shape, dtype=int) for tensor in watched]
        self.in_torch = set()
        load = InterpreterBuilder.create_masked_load

        def counted(builder, pointers, mask, *others):
            address = pointers.data[mask.data.astype(bool)].astype(np.int64)
            for start, size, count in zip(self.watched, self.sizes, self.counts, strict=True):
                index = (address - start) // size
                inside = (index >= 0) & (index < count.size)
                np.add.at(count.reshape(-1), index[inside], 1)
            return load(builder, pointers, mask, *others)

        monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if any(x.untyped_storage().data_ptr() in self.watched for x in given):
            self.in_torch.add(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rule", [Cactus(0.1), CactusExact(0.1, SquaredHellinger())], ids=str)
def test_without_a_ledger_each_row_of_logits_is_read_once_and_one_row_again(rule, monkeypatch):
    batch, k = 6, 2
    block = random_block(2, batch=batch, drafts=k, vocabulary=2 * CHUNK + 9)
    wanted = kernels.judge_candidates(rule, **block)
    with Reads(monkeypatch, block["target_logits"], block["draft_probs"]) as reads:
        got = kernels.judge_candidates(rule, **block, ledger=False)
    torch.testing.assert_close(got.tokens, wanted.tokens)
    torch.testing.assert_close(got.last_token, wanted.last_token)
    assert got.acceptance_rate is got.total_variation is got.kl_bound is None
    whole = reads.counts[0].min(axis=-1)  # the rows' fewest reads of an element
    rejected = np.arange(k + 1) == got.accepted[:, None].numpy()
    rejected[:, k] = False
    np.testing.assert_array_equal(whole, 1 + rejected)
    np.testing.assert_array_equal(reads.counts[1].min(axis=-1), rejected[:, :k])


@pytest.mark.parametrize("rule", [SpeculativeSampling(), Cactus(0.1), CactusExact(0.1)], ids=str)
@pytest.mark.parametrize("budget", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logits_are_read_twice_and_draft_probabilities_once(rule, budget, temperature, monkeypatch):
    """But for the chunk of the last token, and single elements; a budget reads one row more."""
    batch, k, vocabulary = 6, 2, 2 * CHUNK + 9
    block = random_block(2, batch=batch, drafts=k, vocabulary=vocabulary, temperature=temperature)
    if budget:
        block["limits"] = lambda charges: torch.full((batch,), k)
    logits, draft = block["target_logits"], block["draft_probs"]
    with Reads(monkeypatch, logits, draft) as reads:
        got = kernels.judge_candidates(rule, **block)
    aten = torch.ops.aten  # of which the interpreter uses two to hand over a tensor
    assert reads.in_torch - {aten.new_empty.default, aten.copy_.default} == {aten.gather.default}
    assert {0, k} <= set(got.accepted.tolist())
    of_logits, of_draft = np.ones(logits.shape, int), np.ones(draft.shape, int)
    of_logits[:, :k] += 1
    for i, (row, token) in enumerate(
        zip(got.accepted.tolist(), got.last_token.tolist(), strict=True)
    ):
        chunk = slice(token // CHUNK * CHUNK, (token // CHUNK + 1) * CHUNK)
        of_logits[i, row, chunk] += 1
        if row < k:
            of_draft[i, row, chunk] += 1
            of_logits[i, row] += budget
            of_draft[i, row] += budget
        for position in range(k):
            of_logits[i, position, block["tokens"][i, position]] += 1
    np.testing.assert_array_equal(reads.counts[0], of_logits)
    np.testing.assert_array_equal(reads.counts[1], of_draft)


@pytest.mark.parametrize("name", ["row", "shrink", "rejected_token", "uniforms", "residuals"])
def test_a_wrong_shape_to_draw_from_is_named(name):
    logits = torch.zeros(2, 2, 5)
    given = {"row": torch.zeros(2).long(), "shrink": torch.ones(2).double(), "draft_probs": None}
    given |= {"rejected_token": torch.zeros(2).long(), "uniforms": torch.zeros(2).double()}
    given |= {"residuals": torch.zeros(2, 1, 1).double(), name: torch.zeros(1)}
    normalised = passes.normalise(logits, torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=name):
        passes.draw(logits, normalised, given.pop("row"), **given)


def test_draft_probabilities_of_a_wrong_shape_are_named():
    block = random_block(4) | {"draft_probs": torch.zeros(3, 2, 8)}
    logits, tokens = block["target_logits"], block["tokens"]
    normalised = passes.normalise(logits, tokens)
    with pytest.raises(ValueError, match="draft_probs"):
        passes.charge(logits, normalised, tokens, block["draft_probs"], gain=passes.NOTHING)


@pytest.mark.parametrize(
    ("logits", "tokens", "named"),
    [((2, 5), (2, 0), "logits"), ((2, 2, 0), (2, 1), "logits"), ((2, 2, 5), (2, 2), "tokens")],
)
def test_wrong_shapes_of_logits_and_tokens_are_named(logits, tokens, named):
    with pytest.raises(ValueError, match=named):
        passes.normalise(torch.zeros(logits), torch.zeros(tokens, dtype=torch.int64))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_that_is_not_positive_is_named(temperature):
    with pytest.raises(ValueError, match=f"temperature must lie in .*, got {temperature}"):
        passes.normalise(torch.zeros(1, 1, 3), torch.zeros(1, 0).long(), temperature=temperature)


@pytest.mark.parametrize("name", ["normalise", "draw"])
def test_the_examples_run(name):
    (test,) = doctest.DocTestFinder(recurse=False).find(
        getattr(passes, name), name, globs=vars(passes)
    )
    assert test.examples
    for line in test.examples:
        line.options.pop(doctest.SKIP, None)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_a_decoder_judges_by_the_kernels_where_they_apply(monkeypatch):
    from cactus_runtime import Decoder, Request

    decoder, fused = Decoder(tiny_llama(0), draft=tiny_llama(1)), []
    requests = [
        Request([1, 2], rule=Cactus(0.2), max_new_tokens=9 + i, seed=i, sampling=sampling)
        for i, sampling in enumerate([SamplingParams(temperature=0.7)] * 3 + [SamplingParams(0)])
    ]
    wanted = [decoder.stream(request).finish().tokens for request in requests]
    monkeypatch.setattr(kernels, "applies", lambda logits: not fused.append(1))
    found = [result.tokens for result in decoder.batch(requests[:3]).finish()]
    assert found == wanted[:3]
    assert decoder.stream(requests[3]).finish().tokens == wanted[3]  # greedy: not by kernels
    assert fused
