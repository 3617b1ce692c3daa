"""Whole blocks in one launch: on the CPU, as a function, or replayed from a tape as a graph is."""

import contextlib

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessor

from cactus_runtime import (
    AdaptiveDraft,
    Decoder,
    NonFiniteLogitsError,
    PromptLookup,
    Request,
    SamplingParams,
)
from cactus_runtime.loop import block_program
from cactus_runtime.loop.drafting import ModelDrafts
from cactus_runtime.loop.row import Row
from cactus_runtime.models.cuda_graphs import HostReads
from cactus_theory import (
    Cactus,
    CactusExact,
    Clamp,
    JensenShannon,
    Lenience,
)
from tests.runtime.loop.requests_alike import (
    RULES,
    SAMPLINGS,
    batch_of,
    decoded,
    llama,
    requests_alike,
    told,
)
from tests.runtime.prefix_model import PrefixModel, alike
from tests.runtime.tape import Tape, programs, taped, tensors


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
