"""Names to models, and pairs that do not belong together."""

import os
import subprocess
import sys

import accelerate
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from cactus_runtime import Decoder, ModelNotFoundError, Request, load_pair
from cactus_runtime.loading import eos_token_ids
from cactus_theory import Cactus
from tests.tiny_models import tiny_model


def save(folder, model, words):
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=words[0]).save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


WORDS = ["zero", "one", "two", "three", "four", "five", "six"]


def test_a_pair_is_loaded_from_two_folders(tmp_path, random_model):
    target = save(tmp_path / "target", random_model(0, layers=2), WORDS)
    draft = save(tmp_path / "draft", random_model(1), WORDS)
    decoder = Decoder(target, draft=draft)
    result = decoder.stream(
        Request("one two", rule=Cactus(0.2), max_new_tokens=12, seed=1)
    ).finish()
    assert len(result.tokens) == 12
    assert set(result.text.split()) <= set(WORDS)


def test_two_really_different_tokenizers_are_refused(tmp_path, random_model):
    target = save(tmp_path / "target", random_model(0), WORDS)
    draft = save(tmp_path / "draft", random_model(1), [*WORDS[:5], "six", "five"])
    with pytest.raises(ValueError, match="share a tokenizer, but 2 of the draft's 7 tokens"):
        Decoder(target, draft=draft)


def test_vocabularies_further_apart_than_padding_are_refused(random_model):
    with pytest.raises(ValueError, match="vocabularies are 7 and 5000 wide"):
        Decoder(random_model(0), draft=random_model(1, vocabulary=5000))


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("name", ["no-such/model", "./nowhere"])
def test_an_unknown_name_without_network_is_a_clear_error(random_model, role, name):
    arguments = {"target": random_model(0), "draft": random_model(1), role: name}
    with pytest.raises(ModelNotFoundError, match=f"{role}='{name}' is not a bundled pair"):
        Decoder(arguments.pop("target"), **arguments)


def test_an_unknown_pair_is_a_clear_error():
    with pytest.raises(ValueError, match="name must be one of 'tiny', 'smollm2', got 'large'"):
        load_pair("large")


def test_something_that_is_no_model_is_a_clear_error(random_model):
    with pytest.raises(TypeError, match=r"target must be a name, .* got int"):
        Decoder(3)
    with pytest.raises(TypeError, match=r"draft must be .* a propose method, got dict"):
        Decoder(random_model(0), draft={})


def test_a_model_in_training_mode_is_refused(random_model):
    with pytest.raises(ValueError, match="draft must be in evaluation mode"):
        Decoder(random_model(0), draft=random_model(1).train())


def test_a_model_with_a_recurrent_state_is_refused():
    with pytest.raises(ValueError, match="target must be a model whose cache can be rewound"):
        Decoder(tiny_model("MambaForCausalLM", state_size=4))


def test_a_checkpoint_that_lacks_weights_is_refused_by_name(tmp_path, random_model):
    """They were random, of which only transformers' own report told."""
    folder = save(tmp_path, random_model(0), WORDS)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    words = r"target='.*' must have all weights of LlamaForCausalLM, .* lacks 1, lm_head.weight"
    with pytest.raises(ValueError, match=words):
        Decoder(folder)


def test_a_body_without_a_head_is_refused_and_a_tied_head_is_not_missed(tmp_path, random_model):
    folder = save(tmp_path, random_model(0), WORDS)
    random_model(0).model.save_pretrained(tmp_path)  # of class LlamaModel
    with pytest.raises(ValueError, match=r"target='.*' must have all weights .* lm_head.weight"):
        Decoder(folder)
    config = random_model(0).config
    config.tie_word_embeddings = True
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    Decoder(folder)


def test_weights_that_nobody_asked_for_are_no_fault(tmp_path, random_model):
    """Of another task's head, or of layers that predict further ahead."""
    folder = save(tmp_path, random_model(0), WORDS)
    weights = load_file(tmp_path / "model.safetensors")
    weights["score.weight"] = torch.zeros(2, 16)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    Decoder(folder)


def test_weights_of_another_shape_or_of_no_format_are_a_sentence(tmp_path, random_model):
    folder = save(tmp_path, random_model(0), WORDS)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = torch.zeros(9, 16)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelNotFoundError, match=r"target='.*' has weights .*shapes"):
        Decoder(folder)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    with pytest.raises(ModelNotFoundError, match=r"has a git-lfs pointer in place of model\."):
        Decoder(folder)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_offloaded_weights_are_refused_by_that_name(random_model, role):
    offloaded = accelerate.cpu_offload(random_model(0))
    models = {"target": random_model(1), "draft": None, role: offloaded.eval()}
    with pytest.raises(ValueError, match=f"{role} must be in memory, .* are offloaded .*load it"):
        Decoder(models["target"], draft=models["draft"])


OFFLINE = """
from cactus_runtime import Decoder, ModelNotFoundError
try:
    Decoder("no-such/model")
except ModelNotFoundError as error:
    print(error)
"""


def test_an_unknown_name_is_told_without_retries_where_nobody_answers():
    """For 23 seconds the hub was asked again and again."""
    nowhere = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    run = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        capture_output=True,
        text=True,
        env={**os.environ, **nowhere},
    )
    assert "'no-such/model' is not a bundled pair" in run.stdout
    assert "Retry" not in run.stderr


def test_a_loaded_model_is_not_moved_behind_the_caller_s_back(random_model):
    with pytest.raises(ValueError, match="target is on cpu, not on device='meta'"):
        Decoder(random_model(0), device="meta")


@pytest.mark.gpu
def test_a_pair_decodes_on_the_gpu():
    result = (
        Decoder("tiny", device="cuda").stream(Request("dog:", rule=Cactus(0.1), seed=1)).finish()
    )
    assert result.tokens
    assert torch.cuda.max_memory_allocated() > 0


def test_the_end_of_sequence_is_the_caller_s_the_model_s_or_the_tokenizer_s(random_model, tiny):
    model = random_model(0)
    assert eos_token_ids(model, None, None) == frozenset()
    assert eos_token_ids(model, tiny.tokenizer, None) == {tiny.tokenizer.eos_token_id}
    model.generation_config.eos_token_id = [1, 2]
    assert eos_token_ids(model, tiny.tokenizer, None) == {1, 2}
    assert eos_token_ids(model, tiny.tokenizer, 5) == {5}
    assert eos_token_ids(model, tiny.tokenizer, ()) == frozenset()


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_its_packages_the_runtime_says_what_to_install(missing):
    program = f"import sys; sys.modules[{missing!r}] = None; from cactus_runtime import decode"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 1
    assert f"cactus_runtime needs {missing}: pip install" in run.stderr


def test_the_package_itself_imports_without_them():
    program = "import sys, cactus_runtime; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_name_that_does_not_exist_is_an_attribute_error():
    import cactus_runtime

    with pytest.raises(AttributeError, match="cactus_runtime attribute decde"):
        cactus_runtime.decde  # noqa: B018
    assert (
        {"Decoder", "decode", "Request"} <= set(dir(cactus_runtime)) == set(cactus_runtime.__all__)
    )


@pytest.mark.parametrize(
    "module",
    ["loop.judging", "verification.kernels", "loop.batch", "verification", "result.web_page"],
)
def test_any_module_of_the_package_can_be_imported_first(module):
    program = f"import cactus_runtime.{module}; from cactus_runtime import Decoder"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
