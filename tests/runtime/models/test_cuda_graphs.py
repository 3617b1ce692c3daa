"""What a graph replays is decided on the device: reads of the host are found."""

import contextlib

import pytest
import torch

from cactus_runtime import (
    SamplingParams,
)
from cactus_runtime.loop import block_program
from cactus_runtime.loop.block_program import BlockProgram
from cactus_runtime.loop.drafting import ModelDrafts, NoDrafts
from cactus_runtime.models.cuda_graphs import HostReads
from cactus_runtime.models.static_kv_cache import StaticContext
from cactus_runtime.verification import device_functions, kernels, passes
from cactus_runtime.verification.method import Method
from cactus_theory import (
    Cactus,
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
from tests.runtime.prefix_model import alike
from tests.runtime.tape import Tape, programs, taped


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
    return BlockProgram(StaticContext(target, **contexts), drafter, Method(rule), sampling, k)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("draft", "k"), [(None, 0), (5, 1), (7, 3), (9, 3)])
def test_nothing_in_a_program_is_decided_on_the_host(rule, sampling, draft, k):
    program = program_of(draft and llama(1, draft), rule, sampling, k)
    with HostReads() as reads:
        packed, drafts, normaliser = program._compute()
    assert reads.found == []
    assert packed.shape == (2, 3 + 8 * k)
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
