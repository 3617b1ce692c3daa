"""Compiled passes: of prepared widths, with the tokens of passes that are not compiled."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_runtime import AdaptiveDraft, Decoder, PromptLookup, Request, decode
from cactus_runtime.cli import main
from cactus_runtime.models import compiled
from cactus_runtime.models.compiled import CompiledContext
from cactus_runtime.models.kv_cache import Context
from cactus_theory import Cactus
from tests.runtime.prefix_model import alike
from tests.tiny_models import tiny_llama


@pytest.fixture
def uncompiled(monkeypatch):
    """Passes have the widths, dummies and caches of compiled ones, and are not compiled."""
    monkeypatch.setattr(compiled, "_compiled", lambda read_at: read_at)
    monkeypatch.setattr(compiled, "_without_compiler", lambda: None)


def told(result):
    return result.tokens, result.origins, result.blocks


LENGTHS = st.integers(0, 4) | st.just(AdaptiveDraft(draft_cost=0.1, max_draft_tokens=3))
REQUESTS = st.builds(
    Request,
    st.lists(st.integers(0, 6), min_size=1, max_size=12),
    rule=st.sampled_from([Cactus(0), Cactus(0.3)]),
    num_draft_tokens=LENGTHS,
    max_new_tokens=st.integers(1, 15),
    max_kl=st.sampled_from([float("inf"), 1.0]),
    seed=st.integers(0, 2**32),
)


@settings(max_examples=settings.default.max_examples // 2)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=4), size=st.integers(1, 3), data=st.data())
def test_passes_of_prepared_widths_give_the_same_tokens(requests, size, data):
    """Exactly: these models answer in integers, whatever the shapes of their passes."""
    target, draft = alike(seed=data.draw(st.integers(0, 3)))
    draft = data.draw(st.sampled_from([draft, None, PromptLookup()]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_compiled", lambda read_at: read_at)
        patch.setattr(compiled, "_without_compiler", lambda: None)
        decoders = [Decoder(target, draft=draft, compile=flag) for flag in (False, True)]
        plain, padded = (decoder.batch(requests, batch_size=size) for decoder in decoders)
        assert [told(r) for r in padded.finish()] == [told(r) for r in plain.finish()]


@given(
    lengths=st.lists(st.integers(0, 20), min_size=2, max_size=2),
    count=st.integers(1, 9),
    keep=st.integers(1, 9),
    rows=st.integers(1, 2),
)
def test_a_pass_of_any_width_reads_what_a_pass_of_its_own_width_reads(lengths, count, keep, rows):
    keep = min(keep, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_compiled", lambda read_at: read_at)
        model = tiny_llama(0)
        contexts = [kind(model, rows=2, slots=40) for kind in (Context, CompiledContext)]
        contexts[1].prepare((2, 5))
        found = []
        for context in contexts:
            for row, length in enumerate(lengths):
                if length:
                    context.read([[(3 * i + row) % 7 for i in range(length)]], first=row)
            tokens = torch.arange(rows * count).view(rows, count) % 7
            found.append(context._forward(tokens, 0, keep))
    assert found[1].shape == (rows, keep, 7)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)  # float32, other shapes


def test_few_passes_are_compiled_and_none_twice(monkeypatch):
    made = []
    monkeypatch.setattr(compiled, "_compiled", lambda read_at: made.append(1) or read_at)
    decoder = Decoder(tiny_llama(0), draft=tiny_llama(1), compile=True)
    request = Request([1, 2], num_draft_tokens=3, max_new_tokens=12, seed=1)
    decoder.stream(request).finish()
    assert len(made) == 3  # the target's k + 1 tokens; one or two of the draft
    decoder.stream(Request([4], num_draft_tokens=3, max_new_tokens=20, seed=1)).finish()
    assert len(made) == 3
    decoder.stream(Request([4], num_draft_tokens=0, max_new_tokens=20, seed=1)).finish()
    assert len(made) == 4


def test_options_and_results_say_that_passes_are_compiled(uncompiled, capsys):
    with pytest.raises(TypeError, match=r"compile must be True or False, got 1"):
        decode("tiny", "dog:", compile=1)
    result = decode("tiny", "dog:", compile=True, max_new_tokens=4, seed=1)
    assert result.seconds.compilation > 0
    assert "compiled before decoding, in" in str(result)
    assert told(result) == told(decode("tiny", "dog:", max_new_tokens=4, seed=1))
    assert main(["decode", "dog:", "--pair", "tiny", "--compile", "--tokens", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compile_seconds"] > 0


def test_without_a_compiler_there_is_a_sentence_and_no_work(tiny):
    with (
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(ValueError, match=r"compile=True needs a C\+\+ compiler.*no-such-compiler"),
    ):
        Decoder(tiny, compile=True).stream(Request("dog:", seed=1))


@pytest.mark.skipif(
    compiled._without_compiler() is not None, reason="there is no C++ compiler on this machine"
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # inductor's own
def test_compiled_passes_decode_the_tokens_of_others():
    """In float32, sums in another order differ by some 1e-6, and no uniform falls between."""
    models = {"target": tiny_llama(0), "draft": tiny_llama(1)}
    request = Request([1, 2, 3], rule=Cactus(0.1), num_draft_tokens=1, max_new_tokens=30, seed=1)
    plain, fast = (
        Decoder(**models, compile=flag).stream(request).finish() for flag in (False, True)
    )
    assert told(fast) == told(plain)
    logs = ([token.logprob for token in result.trace] for result in (fast, plain))
    assert next(logs) == pytest.approx(next(logs), abs=1e-5)
    assert fast.seconds.fused > 0
    assert fast.kl_bound == pytest.approx(plain.kl_bound, abs=1e-5)
