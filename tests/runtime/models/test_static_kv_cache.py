"""Contexts of fixed shapes: on the CPU, what a CUDA graph would replay is computed as it is."""

import pytest
import torch

from cactus_runtime import Decoder, Request, SamplingParams
from cactus_runtime.loop import batch as decoding
from cactus_runtime.models.kv_cache import Context
from cactus_runtime.models.static_kv_cache import StaticContext, open_context
from cactus_theory import Cactus
from tests.runtime.tape import programs


@pytest.fixture
def static(monkeypatch):
    """Decoders use static contexts, as they do on a CUDA device, and read them pass by pass."""
    monkeypatch.setattr(decoding, "open_programs", lambda target, drafter: None)
    with programs():
        yield


def test_a_static_context_reads_what_a_context_reads(random_model):
    model = random_model(0, layers=2)
    static, plain = (kind(model, rows=3, slots=60) for kind in (StaticContext, Context))
    rng = torch.Generator().manual_seed(0)
    for step in range(12):
        active = 3 - step % 3  # rows beyond are read in vain
        news = [
            torch.randint(7, (1 + i * (step % 2),), generator=rng).tolist() for i in range(active)
        ]
        drafts = torch.randint(7, (active, step % 4), generator=rng)
        found, wanted = (context.read(news, drafts) for context in (static, plain))
        # float32 sums over 60 slots instead of as many as are held
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=0)
        for i in range(active):
            back = int(torch.randint(drafts.shape[1] + 1, (), generator=rng))
            for context in (static, plain):
                context.lengths[i] -= back
    assert static.lengths == plain.lengths


def test_passes_of_one_length_share_their_buffers(random_model):
    context = StaticContext(random_model(0), rows=2, slots=40)
    context.read([[1, 2, 3], [4]])
    for _ in range(3):
        context.extend(torch.tensor([1, 2]))
    assert sorted(context._replays) == [1, 3]
    logits = [context.extend(torch.tensor([1])) for _ in range(2)]
    assert logits[0].shape == (1, 1, 7)


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_decoding_in_static_contexts_gives_the_same_tokens(random_pair, static, temperature):
    requests = [
        Request(
            list(range(1, 2 + i)),
            rule=Cactus(0.2),
            num_draft_tokens=i % 4,
            max_new_tokens=15 + 3 * i,
            sampling=SamplingParams(temperature=temperature),
            seed=i,
        )
        for i in range(6)
    ]
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    together = [result.tokens for result in decoder.batch(requests, batch_size=3).finish()]
    assert together == [decoder.stream(request).finish().tokens for request in requests]


def test_a_long_prompt_is_read_at_its_own_length(random_pair, static):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    request = Request([1] * 50, max_new_tokens=20, seed=0, sampling=SamplingParams(temperature=0))
    assert len(decoder.stream(request).finish().tokens) == 20


def test_on_the_cpu_contexts_are_not_static(random_model):
    assert type(open_context(random_model(0), rows=1, slots=5)) is Context


@pytest.mark.parametrize(
    ("rope", "kind"),
    [
        ({"rope_type": "default"}, StaticContext),
        ({"rope_type": "llama3", "factor": 2.0}, StaticContext),
        ({"rope_type": "dynamic", "factor": 2.0}, Context),
        ({"rope_type": "longrope"}, Context),
        ({"full_attention": {"rope_type": "dynamic"}, "sliding_attention": None}, Context),
    ],
    ids=str,
)
def test_where_frequencies_follow_the_longest_row_contexts_are_not_static(
    rope, kind, random_model, monkeypatch
):
    """Static ones read beyond the texts, and a graph keeps the frequencies it was captured with."""
    model = random_model(0)
    model.config.rope_parameters = rope
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert type(open_context(model, rows=1, slots=5)) is kind
