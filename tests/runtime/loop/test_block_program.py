"""Whole blocks in one launch: on the CPU, as a function, or replayed from a tape as a graph is."""

import contextlib
from dataclasses import astuple

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor

from cactus_runtime import (
    AdaptiveDraft,
    Decoder,
    NonFiniteLogitsError,
    PromptLookup,
    Request,
    SamplingParams,
)
from cactus_runtime.loop import block_program
from cactus_runtime.loop.block_program import BlockProgram
from cactus_runtime.loop.drafting import ModelDrafts, NoDrafts
from cactus_runtime.loop.row import Row
from cactus_runtime.models.cuda_graphs import HostReads
from cactus_runtime.models.static_kv_cache import StaticContext
from cactus_runtime.verification import device_functions, kernels, passes
from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    Clamp,
    JensenShannon,
    Lenience,
    SpeculativeSampling,
)
from tests.runtime.prefix_model import PrefixModel, alike
from tests.runtime.tape import Tape, programs, taped, tensors

RULES = [SpeculativeSampling(), Cactus(0.0), Cactus(0.3), CactusExact(0.1), CactusSafe(0.2)]
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.5, top_k=3),
    SamplingParams(top_p=0.8),
    SamplingParams(temperature=0.9, top_k=5, top_p=0.9, min_p=0.05),
]


def told(result):
    """All that a decode says but its seconds."""
    return (
        result.tokens,
        result.origins,
        result.finish_reason,
        result.blocks,
        [token.logprob for token in result.trace],
        [astuple(verdict) for verdict in result.verdicts],
    )


def decoded(pair, requests, batch_size):
    results = Decoder(pair[0], draft=pair[1]).batch(requests, batch_size=batch_size).finish()
    return [told(result) for result in results], sum(r.seconds.fused > 0 for r in results)


def requests_of(data, *, vocabulary=7, most=5):
    """Requests that mostly share a rule, a sampling and a draft length."""
    often = data.draw(st.sampled_from(RULES)), data.draw(st.sampled_from(SAMPLINGS))
    drafts = data.draw(st.integers(0, 4))
    ids = st.integers(0, vocabulary - 1)
    found = []
    for _ in range(data.draw(st.integers(1, most))):
        other = data.draw(st.integers(0, 9))
        found.append(
            Request(
                data.draw(st.lists(ids, min_size=1, max_size=12)),
                rule=data.draw(st.sampled_from(RULES)) if other == 0 else often[0],
                sampling=data.draw(st.sampled_from(SAMPLINGS)) if other == 1 else often[1],
                num_draft_tokens=data.draw(st.integers(0, 5)) if other < 4 else drafts,
                max_new_tokens=data.draw(st.integers(1, 20)),
                eos_token_id=data.draw(st.lists(ids, max_size=2)),
                seed=data.draw(st.integers(0, 2**32)),
            )
        )
    return found


@pytest.mark.parametrize("run", [contextlib.nullcontext, taped])
@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_a_program_gives_what_host_and_models_by_turns_give(run, data):
    """Exactly: these models answer in integers, whatever the shapes of their passes."""
    pair = alike(seed=data.draw(st.integers(0, 3)))
    requests, batch_size = requests_of(data), data.draw(st.integers(1, 3))
    wanted, none = decoded(pair, requests, batch_size)
    with programs(), run():
        found, used = decoded(pair, requests, batch_size)
    event(f"programs used: {used > 0}")
    assert none == 0
    for one, other in zip(found, wanted, strict=True):
        assert one[:4] == other[:4]
        # The same float64 formulas on both sides: differences are the order of summation.
        assert one[4] == pytest.approx(other[4], abs=1e-12)
        assert torch.tensor(one[5]) == pytest.approx(torch.tensor(other[5]), abs=1e-12)


def llama(seed, vocabulary=7, *, layers=1):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).double().eval().requires_grad_(False)


@pytest.mark.parametrize("width", [5, 7, 9])
@settings(max_examples=settings.default.max_examples // 5)
@given(data=st.data())
def test_programs_of_llamas_agree_with_their_passes(width, data):
    """The draft's vocabulary is narrower, equal or wider."""
    pair = llama(0, layers=2), llama(1 + data.draw(st.integers(0, 1)), width)
    requests, batch_size = requests_of(data, most=3), data.draw(st.integers(1, 3))
    assert_at_once_as_by_turns(pair, requests, batch_size, contextlib.nullcontext)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS[::2])
def test_graphs_of_llamas_agree_with_their_passes(rule, sampling):
    requests = requests_alike(4, rule=rule, sampling=sampling, max_new_tokens=12)
    assert_at_once_as_by_turns((llama(0, layers=2), llama(1)), requests, 2, taped)


def assert_at_once_as_by_turns(pair, requests, batch_size, run):
    wanted, _ = decoded(pair, requests, batch_size)
    with programs(), run():
        found, _ = decoded(pair, requests, batch_size)
    for one, other in zip(found, wanted, strict=True):
        assert one[:4] == other[:4]
        assert one[4] == pytest.approx(other[4], abs=1e-9)  # float64 sums in another order
        # draft laws are float32, and may be rounded to either side
        assert torch.tensor(one[5]) == pytest.approx(torch.tensor(other[5]), abs=1e-6)


def batch_of(requests, *, pair=None, batch_size=2):
    target, draft = pair or alike()
    return Decoder(target, draft=draft).batch(requests, batch_size=batch_size)


def requests_alike(count=3, **options):
    options = {"rule": Cactus(0.2), "num_draft_tokens": 3, "max_new_tokens": 25} | options
    return [Request([1, 2 + i], seed=i, **options) for i in range(count)]


def test_a_block_is_one_launch_and_one_wait_of_the_host(monkeypatch):
    """Requests that join bring a few more: their prompts are read by passes of their own."""
    with programs(), taped():
        batch = batch_of(requests_alike(2))
        for _ in range(2):  # the prompts, and the capture
            batch._block()
        waits = []
        for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__"):
            whole = getattr(torch.Tensor, name)

            def noted(tensor, *arguments, name=name, whole=whole):
                waits.append(name)
                return whole(tensor, *arguments)

            monkeypatch.setattr(torch.Tensor, name, noted)
        for _ in range(3):
            launched = Tape.launches
            waits.clear()
            with HostReads() as reads:
                batch._block()
            assert Tape.launches == launched + 1
            assert waits == ["tolist"]
            assert reads.found == []


def test_buffers_stay_where_they_are():
    with programs(), taped():
        batch = batch_of(requests_alike(5))
        batch._block()
        held = None
        while batch._active:
            batch._block()
            (_, program), *others = batch._programs._programs
            layers = [
                layer
                for context in (batch._target, batch._drafter._context)
                for layer in context._cache.layers
            ]
            now = [program._given, *tensors(program._launch.__closure__[0].cell_contents)]
            now += [part for layer in layers for part in (layer.keys, layer.values)]
            now = [tensor.data_ptr() for tensor in now]
            assert held in (None, now)
            assert not others
            held = now


@pytest.mark.parametrize(
    "other",
    [
        {"rule": Clamp(0.3)},
        {"rule": CactusExact(0.1, divergence=JensenShannon())},
        {"rule": Lenience(0.5)},
        {"max_kl": 1.0},
        {"max_total_variation": 1.0},
        {"num_draft_tokens": AdaptiveDraft(draft_cost=0.1, max_draft_tokens=3)},
        {"sampling": SamplingParams(repetition_penalty=1.2)},
        {"sampling": SamplingParams(logit_bias={1: 1.0})},
        {"sampling": SamplingParams(min_new_tokens=2), "eos_token_id": 3},
        {"sampling": SamplingParams(processors=[LogitsProcessor()])},
    ],
    ids=lambda other: ",".join(other),
)
def test_what_asks_the_host_is_decoded_by_turns(other, monkeypatch):
    monkeypatch.setattr(LogitsProcessor, "__call__", lambda self, ids, scores: scores)
    with programs():
        decoding = batch_of(requests_alike(2, **other))
        results = decoding.finish()
    assert all(len(result.tokens) == 25 or result.finish_reason == "eos" for result in results)
    assert all(result.seconds.fused == 0 for result in results)


@pytest.mark.parametrize("options", [{"rule": Cactus(0.4)}, {"sampling": SamplingParams(top_k=2)}])
def test_rows_that_differ_are_decoded_by_turns_and_alone_at_once_again(options):
    first, second = requests_alike(2, max_new_tokens=30)
    (other,) = requests_alike(1, max_new_tokens=10, **options)
    with programs():
        batch = batch_of([first, other, second])
        whole = []
        while batch._active or batch._waiting:
            before = [row.seconds.fused for row in batch._rows]
            rows = [batch._rows[i] for i in batch._active]
            batch._block()
            after = [row.seconds.fused for row in batch._rows]
            same = len({str(row.request.rule) + str(row.request.sampling) for row in rows}) == 1
            whole.append((same, before != after))
    assert {at_once for same, at_once in whole[1:] if not same} == {False}
    assert (True, True) in whole


def test_every_rule_sampling_and_draft_length_has_its_own_program():
    options = [{}, {"rule": Cactus(0.9)}, {"sampling": SamplingParams(top_k=2)}]
    options += [{"num_draft_tokens": 1}, {}]
    requests = [one for some in options for one in requests_alike(1, **some)]
    wanted, _ = decoded(alike(), requests, 1)
    with programs():
        batch = batch_of(requests, batch_size=1)
        found = [told(result) for result in batch.finish()]
    assert [one[:4] for one in found] == [other[:4] for other in wanted]
    assert len(batch._programs._programs) == 4


def test_programs_not_asked_for_any_more_are_let_go(monkeypatch):
    monkeypatch.setattr(block_program, "_KEPT", 2)
    options = [{}, {"rule": Cactus(0.9)}, {"sampling": SamplingParams(top_k=2)}, {}]
    requests = [one for some in options for one in requests_alike(1, **some)]
    wanted, _ = decoded(alike(), requests, 1)
    with programs():
        batch = batch_of(requests, batch_size=1)
        found = [told(result) for result in batch.finish()]
    assert [one[:4] for one in found] == [other[:4] for other in wanted]
    assert len(batch._programs._programs) == 2


def test_a_program_drafts_no_more_than_its_rows_may():
    with programs():
        batch = batch_of(requests_alike(2, num_draft_tokens=40, max_new_tokens=6, rule=Cactus(0)))
        batch.finish()
    (((_, _, k), _),) = batch._programs._programs
    assert k == 5


def test_a_draft_is_ready_if_it_lacks_two_tokens_at_most():
    row = Row(Request([1, 2, 3, 4], seed=0), [1, 2, 3, 4], None, ())
    options = {"rows": 1, "slots": 30, "vocabulary": 7}
    with programs():
        drafter = ModelDrafts(llama(1), **options)
    ready = []
    for drafter._context.lengths[0] in range(4):
        ready.append((drafter.ready([row], 2), drafter.ready([row], 0)))
    assert ready == [(False, True), (False, True), (True, True), (True, True)]
    drafter.drafted([row], 0)
    assert drafter._context.lengths == [3]
    drafter.drafted([row], 2)
    assert drafter._context.lengths == [5]
    assert not ModelDrafts(llama(1), **options).ready([row], 2)  # reads by shapes of its own


def test_drafters_that_are_no_models_take_turns():
    with programs():
        decoder = Decoder(alike()[0], draft=PromptLookup())
        assert decoder.batch(requests_alike(2))._programs is None


def test_on_the_cpu_host_and_models_take_turns():
    assert batch_of(requests_alike(2))._programs is None


def test_seconds_of_blocks_at_once_are_not_divided():
    with programs():
        (result,) = batch_of(requests_alike(1), batch_size=1).finish()
    seconds = result.seconds
    assert seconds.fused > 0 < seconds.verification  # the prompt was read by turns
    assert seconds.overhead == pytest.approx(
        seconds.total - (seconds.draft + seconds.target + seconds.verification + seconds.fused)
    )
    assert 0 <= seconds.overhead < seconds.total


class Failing(PrefixModel):
    """Gives no law after `last` tokens."""

    last = 9

    def forward(self, input_ids, *, position_ids=None, cache=None, **options):
        start = 0 if cache is None else cache.get_seq_length()
        found = super().forward(input_ids, position_ids=position_ids, cache=cache, **options)
        positions = torch.arange(start, start + input_ids.shape[1]).expand(input_ids.shape)
        positions = positions if position_ids is None else position_ids
        positions = positions[:, -found.logits.shape[1] :]
        found.logits = found.logits.masked_fill((positions == self.last)[..., None], torch.nan)
        return found


@pytest.mark.parametrize("run", [contextlib.nullcontext, taped])
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("width", [1, 2])
def test_logits_that_are_not_finite_are_reported_by_model_row_and_position(role, width, run):
    sound, failing = PrefixModel(7, seed=0), Failing(7, seed=0)
    pair = (failing, sound) if role == "target" else (sound, failing)
    short = Request([1, 2], seed=0, num_draft_tokens=3, max_new_tokens=4, rule=Cactus(0.1))
    requests = [short, *requests_alike(1, rule=Cactus(0.1))]  # two models alike accept all
    told = f"the {role} model gave non-finite logits after token 9 of request {width > 1:d} "
    with programs(), run():
        batch = batch_of(requests[-width:], pair=pair)
        with pytest.raises(NonFiniteLogitsError, match=told):
            batch.finish()
        row = batch._rows[-1]
        assert row.seconds.fused > 0  # a block at once had gone well before
    assert 2 < len(row.ids) <= 10


def on_meta(model):
    return None if model is None else model.to("meta")


def program_of(draft, rule, sampling, k, *, rows=2):
    """Programs of models without numbers: shapes only, and an error where one would be read."""
    target = on_meta(llama(0))
    contexts = {"rows": rows, "slots": 30}
    drafter = NoDrafts(target.device)
    if draft is not None:
        with programs():
            drafter = ModelDrafts(on_meta(draft), **contexts, vocabulary=7)
    return BlockProgram(StaticContext(target, **contexts), drafter, rule, sampling, k)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("draft", "k"), [(None, 0), (5, 1), (7, 3), (9, 3)])
def test_nothing_in_a_program_is_decided_on_the_host(rule, sampling, draft, k):
    program = program_of(draft and llama(1, draft), rule, sampling, k)
    with HostReads() as reads:
        packed, drafts, normaliser = program._compute()
    assert reads.found == []
    assert packed.shape == (2, 3 + 8 * k)  # accepted, last, k tokens, k + 1 logprobs, 6 k figures
    assert drafts.tokens.shape == (2, k)
    assert normaliser.shape == (2, k + 1)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.7)])
def test_nor_in_one_with_the_kernels(sampling, rule, monkeypatch):
    launches = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments, **options: launches.append(grid)

    monkeypatch.setattr(kernels, "applies", lambda logits: True)
    monkeypatch.setattr(passes, "_check", lambda logits, temperature: None)
    for name in ("sum_chunk", "combine_chunks", "weigh_chunk", "search"):
        monkeypatch.setattr(device_functions, name, Kernel())
    program = program_of(llama(1), rule, sampling, 3)
    with HostReads() as reads:
        program._compute()
    assert reads.found == []
    assert launches == [(1, 4, 2), (4, 2), (1, 3, 2), (2,)]


def judge_after(monkeypatch, step):
    """Programs do something with the logits before they judge a block."""
    sound = block_program.judge

    def judge(*arguments, target_logits, **options):
        step(target_logits)
        return sound(*arguments, target_logits=target_logits, **options)

    monkeypatch.setattr(block_program, "judge", judge)


@pytest.mark.parametrize(
    ("spoil", "unreadable"),
    [
        (lambda logits: logits[0, 0, 0].item(), True),
        (lambda logits: bool(logits[0, 0, 0] > 0), True),
        (lambda logits: logits.nonzero(), True),
        (lambda logits: logits[logits > 0], True),
        (lambda logits: logits.cpu(), True),
        (torch.ops.aten.lift_fresh, False),  # by torch.tensor(..., device="cuda"), of its copy
        (lambda logits: torch.ones(1).to(logits.device), False),
    ],
    ids=["item", "bool", "nonzero", "mask", "copy back", "constant", "copy"],
)
def test_a_decision_on_the_host_would_be_seen(spoil, unreadable, monkeypatch):
    judge_after(monkeypatch, spoil)
    program = program_of(llama(1), Cactus(0.1), SamplingParams(), 3)
    with contextlib.ExitStack() as stack:
        if unreadable:
            stack.enter_context(pytest.raises((RuntimeError, NotImplementedError), match="meta"))
        reads = stack.enter_context(HostReads())
        program._compute()
    assert unreadable or reads.found


def test_a_mask_is_read_and_a_list_of_places_is_not():
    values, places = torch.ones(3), torch.tensor([0, 2])
    with HostReads() as reads:
        values[places] = values[places] + 1
        _ = values.index_select(0, places)
    assert reads.found == []
    mask = values > 1
    with HostReads() as reads:
        values[mask] = values[mask]
    assert reads.found == ["aten.index.Tensor", "aten.index_put_.default"]


def test_what_no_graph_can_hold_is_run_as_it_is(monkeypatch):
    """One wait more, of the program's own; results are those of the host and models by turns."""
    requests = requests_alike(3)
    wanted, _ = decoded(alike(), requests, 2)
    judge_after(monkeypatch, lambda logits: logits.sum().item())
    with programs(), taped():
        batch = batch_of(requests)
        batch._block()
        launched = Tape.launches
        batch._block()
        assert Tape.launches == launched
        found = [told(result) for result in batch.finish()]
    assert [one[:4] for one in found] == [other[:4] for other in wanted]
