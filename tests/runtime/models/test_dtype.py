"""The type of the weights: chosen by the processor, applied or refused, and named in the result."""

import json

import pytest
import torch

from cactus_runtime import Decoder, Request, decode, load_pair
from cactus_runtime.cli import main
from cactus_runtime.models import dtype as module
from cactus_runtime.models.dtype import chosen_dtype, has_native_bfloat16
from cactus_runtime.models.int4 import quantised_copy
from cactus_runtime.pairs.tiny import FOLDER


@pytest.fixture
def native(monkeypatch):
    """A machine of its own: no variable set, and a processor that has bfloat16 or has not."""
    monkeypatch.delenv(module.VARIABLE)

    def has(it):
        monkeypatch.setattr(module, "has_native_bfloat16", lambda device: it)

    return has


def test_auto_is_bfloat16_only_where_the_processor_has_it(native):
    native(True)
    assert chosen_dtype("auto") is torch.bfloat16
    native(False)
    assert chosen_dtype("auto") is torch.float32
    assert chosen_dtype("bfloat16") is torch.bfloat16


@pytest.mark.parametrize("asks", ["_is_avx512_bf16_supported", "_is_amx_tile_supported", None])
def test_either_instruction_set_is_enough_and_one_is_needed(asks, monkeypatch):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name == asks)
    assert has_native_bfloat16() == (asks is not None)
    assert not has_native_bfloat16("meta")


def test_the_variable_decides_what_auto_means_and_nothing_else(native, monkeypatch):
    native(True)
    monkeypatch.setenv(module.VARIABLE, "float32")
    assert chosen_dtype("auto") is torch.float32
    assert chosen_dtype("float16") is torch.float16
    monkeypatch.setenv(module.VARIABLE, "int7")
    with pytest.raises(ValueError, match=r"CACTUS_DTYPE must be one of auto, .*, got 'int7'"):
        chosen_dtype("auto")


@pytest.mark.parametrize("wrong", ["int8", "f32", torch.int64, 3])
def test_an_unknown_type_is_refused(wrong):
    with pytest.raises(ValueError, match=r"dtype must be one of auto, float32"):
        decode("tiny", "dog:", dtype=wrong)


@pytest.mark.parametrize("native_here", [True, False])
def test_pairs_are_loaded_in_the_type_of_the_machine(native, native_here):
    native(native_here)
    wanted = torch.bfloat16 if native_here else torch.float32
    for pair in (load_pair("tiny"), Decoder("tiny")):
        assert {pair.target.dtype, pair.draft.dtype} == {wanted}
        # Frequencies of positions in bfloat16 would be those of other positions.
        assert pair.target.model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_folder_keeps_the_type_of_its_checkpoint_unless_another_is_asked_for(native):
    native(True)
    stored = Decoder(FOLDER / "draft").target.dtype
    asked = torch.float32 if stored != torch.float32 else torch.bfloat16
    assert Decoder(FOLDER / "draft", dtype=asked).target.dtype == asked
    both = Decoder(FOLDER / "target", draft=FOLDER / "draft", dtype="float32")
    assert {both.target.dtype, both.draft.dtype} == {torch.float32}


def test_a_loaded_target_of_another_type_is_refused(tiny):
    with pytest.raises(ValueError, match=r"dtype='bfloat16' is for models given by name.*float32"):
        Decoder(tiny, dtype="bfloat16")
    assert Decoder(tiny, dtype="float32").target is tiny.target


def test_results_name_the_types(tiny, capsys):
    result = decode("tiny", "dog:", dtype="bfloat16", max_new_tokens=3, seed=1)
    assert str(result.dtypes) == "bfloat16 target, bfloat16 draft"
    assert "(bfloat16 target, bfloat16 draft)" in str(result)
    options = ["--pair", "tiny", "--dtype", "bfloat16", "--tokens", "3", "--json"]
    assert main(["decode", "dog:", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["dtype"], told["draft_dtype"]) == ("bfloat16", "bfloat16")
    request = Request("dog:", max_new_tokens=2, seed=1)
    copied = Decoder(tiny, draft=quantised_copy(tiny.target)).stream(request).finish()
    assert str(copied.dtypes) == "float32 target, int4 draft"
    alone = Decoder(tiny.target, tokenizer=tiny.tokenizer).stream(request).finish()
    assert str(alone.dtypes) == "float32 target"
