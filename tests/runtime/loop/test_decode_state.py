"""A decoder keeps its caches from one decode to the next; no text depends on it."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_runtime import Decoder, Request
from cactus_runtime.loop import batch as decoding
from cactus_runtime.loop.drafting import ModelDrafts
from cactus_theory import Cactus


@pytest.fixture
def opened(monkeypatch):
    """The slots of every target context opened since."""
    slots = []
    true = decoding.open_context

    def opening(model, *, rows, slots):
        opening.slots.append(slots)
        return true(model, rows=rows, slots=slots)

    opening.slots = slots
    monkeypatch.setattr(decoding, "open_context", opening)
    return slots


def request(seed, tokens=12, prompt=(1, 2, 3), **options):
    return Request(prompt, rule=Cactus(0.2), max_new_tokens=tokens, seed=seed, **options)


def test_caches_are_opened_once_for_requests_alike(random_pair, opened):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    for seed in range(3):
        decoder.stream(request(seed, tokens=12 - seed)).finish()
    list(decoder.stream(request(3)))
    assert len(opened) == 1
    decoder.batch([request(4), request(5)]).finish()  # two rows
    assert len(opened) == 2


def test_a_longer_request_or_a_much_shorter_one_opens_its_own(random_model, opened):
    decoder = Decoder(random_model(0), draft=random_model(1))
    decoder.stream(request(0, tokens=8)).finish()
    decoder.stream(request(0, tokens=100)).finish()
    assert len(opened) == 2
    assert opened[1] > opened[0]


def test_idle_room_is_bounded_and_models_must_be_as_they_were(random_model):
    target, draft = random_model(0), random_model(1)
    drafts = ModelDrafts(draft, rows=1, slots=2000, vocabulary=7)
    state = decoding.DecodeState(target, draft, drafts, rows=1, slots=2000)
    assert state.can_reuse(target, draft, rows=1, slots=1999)
    for rows, slots in ((1, 800), (1, 2001), (2, 1999)):
        assert not state.can_reuse(target, draft, rows=rows, slots=slots)
    assert not state.can_reuse(random_model(0), draft, rows=1, slots=1999)
    assert not state.can_reuse(target, None, rows=1, slots=1999)
    assert not state.can_reuse(target, draft.double(), rows=1, slots=1999)


def test_another_model_put_in_a_decoder_decodes(random_model):
    decoder = Decoder(random_model(0), draft=random_model(1))
    decoder.stream(request(1)).finish()
    decoder.target, decoder.draft = random_model(5), None
    found = decoder.stream(request(1)).finish()
    assert found.tokens == Decoder(random_model(5)).stream(request(1)).finish().tokens
    assert not found.verdicts


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_resized_between_two_texts_decodes_as_in_a_decoder_of_its_own(random_model, role):
    """Where an error about broadcasting was raised."""
    models = {"target": random_model(0), "draft": random_model(1)}
    decoder = Decoder(models["target"], draft=models["draft"])
    decoder.stream(request(1)).finish()
    for width in (12, 5):
        models[role].resize_token_embeddings(width, mean_resizing=False)
        found = decoder.stream(request(1)).finish().tokens
        fresh = Decoder(models["target"], draft=models["draft"])
        assert found == fresh.stream(request(1)).finish().tokens


def test_a_model_changed_between_two_texts_is_checked_again(random_model):
    target, draft = random_model(0), random_model(1)
    decoder = Decoder(target, draft=draft)
    decoder.stream(request(1)).finish()
    draft.train()
    with pytest.raises(ValueError, match="draft must be in evaluation mode"):
        decoder.stream(request(1))
    draft.eval().resize_token_embeddings(2000, mean_resizing=False)
    with pytest.raises(ValueError, match="vocabularies are 7 and 2000 wide"):
        decoder.stream(request(1))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.double(),
        lambda model: model.resize_token_embeddings(9, mean_resizing=False),
        lambda model: model.lm_head.register_parameter("bias", torch.nn.Parameter(torch.ones(7))),
        lambda model: setattr(model, "lm_head", torch.nn.Linear(16, 7, bias=False)),
        lambda model: model.set_attn_implementation("eager"),
    ],
    ids=["type", "size", "one more weight", "another head", "attention"],
)
def test_caches_are_not_kept_for_a_model_that_was_changed(random_model, opened, change):
    target = random_model(0)
    decoder = Decoder(target)
    decoder.stream(request(1)).finish()
    change(target)
    decoder.stream(request(1)).finish()
    assert len(opened) == 2


def test_weights_trained_on_in_place_are_those_that_decode(random_model, opened):
    target = random_model(0)
    decoder = Decoder(target)
    decoder.stream(request(1)).finish()
    target.load_state_dict(random_model(5).state_dict())
    found = decoder.stream(request(1)).finish().tokens
    assert found == Decoder(random_model(5)).stream(request(1)).finish().tokens


def test_texts_under_way_at_once_do_not_share_caches(random_pair, opened):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    alone = [decoder.stream(request(seed)).finish().tokens for seed in (1, 2)]
    first, second = decoder.stream(request(1)), decoder.stream(request(2))
    for _ in range(12):
        _ = next(first), next(second)
    assert [x.finish().tokens for x in (first, second)] == alone
    assert len(opened) == 2


def test_a_decode_that_failed_leaves_no_caches_behind(random_pair, opened):
    def fail(ids):
        raise RuntimeError("enough")

    decoder = Decoder(random_pair[0], draft=random_pair[1])
    wanted = decoder.stream(request(1)).finish().tokens
    with pytest.raises(RuntimeError, match="enough"):
        decoder.stream(request(1, stop_when=fail)).finish()
    assert decoder.stream(request(1)).finish().tokens == wanted
    assert len(opened) == 2


def test_a_text_given_up_frees_its_caches(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    stream = decoder.stream(request(1))
    next(stream)
    caches = weakref.ref(stream._batch._state)
    del stream
    gc.collect()
    assert caches() is None


prompts = st.lists(st.integers(0, 6), min_size=1, max_size=9)


@given(
    st.lists(
        st.lists(st.tuples(prompts, st.integers(1, 20)), min_size=1, max_size=3),
        min_size=2,
        max_size=4,
    )
)
@settings(deadline=None)
def test_what_was_decoded_before_changes_no_text(random_pair, batches):
    kept = Decoder(random_pair[0], draft=random_pair[1])
    for batch in batches:
        requests = [
            request(seed, tokens=tokens, prompt=prompt, num_draft_tokens=2)
            for seed, (prompt, tokens) in enumerate(batch)
        ]
        fresh = Decoder(random_pair[0], draft=random_pair[1])
        wanted = [result.tokens for result in fresh.batch(requests, batch_size=2).finish()]
        assert [result.tokens for result in kept.batch(requests, batch_size=2).finish()] == wanted
