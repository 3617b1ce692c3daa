"""Tests of the tiny pair: what ships, and what its two laws are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_runtime.pairs import tiny

LOAD_WITHOUT_NETWORK = """
import socket
def refuse(*_): raise OSError("no network in this test")
socket.socket.connect = socket.getaddrinfo = refuse
from cactus_runtime.pairs.tiny import load
target, draft, tokenizer = load()
assert not target.training and not draft.training
assert not any(p.requires_grad for m in (target, draft) for p in m.parameters())
"""
GLOSSES = (
    "phenomenon: any state or process known through the senses rather than by reasoning",
    "punctilio: strict observance of formalities",
    "carpetbag: traveling bag made of carpet; widely used in 19th century",
    "tricorn: cocked hat with the brim turned up to form three points",
    "mummery: meaningless ceremonies and flattery",
    "adobo: a dish of marinated vegetables and meat or fish; served with rice",
    "Sapotaceae: tropical trees or shrubs with milky juice and often edible fleshy fruit",
    'clean out: empty completely; "We cleaned out all the drawers"',
    'tapered: becoming gradually narrower; "long tapering fingers"; "trousers with tapered legs"',
    'gradually: in a gradual manner; "the snake moved gradually toward its victim"',
)


@pytest.fixture(scope="module")
def pair():
    return tiny.load()


def test_the_pair_loads_without_a_network_and_without_a_word():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOAD_WITHOUT_NETWORK],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env={name: value for name, value in os.environ.items() if not name.startswith("HF_")},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_dtype_is_the_one_asked_for(pair):
    assert {model.dtype for model in pair[:2]} == {torch.float32}
    assert tiny.load(dtype=torch.float64)[1].dtype == torch.float64


@pytest.mark.parametrize("name", ["target", "draft"])
def test_each_folder_is_an_ordinary_transformers_folder(name, pair):
    folder = str(tiny.FOLDER / name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert tokenizer.get_vocab() == pair[2].get_vocab()
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 0
    assert tokenizer.eos_token_id == 0
    assert len(tokenizer) == model.config.vocab_size == 1024


def test_the_draft_has_less_than_a_ninth_of_the_targets_parameters(pair):
    target, draft, _ = pair
    assert target.num_parameters() / draft.num_parameters() == pytest.approx(9.407, abs=1e-3)


def test_the_files_of_the_pair_weigh_less_than_six_megabytes():
    files = [path for path in tiny.FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 6e6


def test_the_licence_of_wordnet_ships_with_the_weights():
    notice = (tiny.FOLDER / "NOTICE").read_text()
    assert "WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved." in notice


def test_the_two_laws_agree_on_between_half_and_three_quarters_of_their_mass(pair):
    target, draft, tokenizer = pair
    masses = []
    for gloss in GLOSSES:
        ids = tokenizer(gloss + tokenizer.eos_token, return_tensors="pt")["input_ids"]
        p, q = (model(input_ids=ids).logits[0].softmax(-1) for model in (target, draft))
        masses.append(torch.minimum(p, q).sum(-1))
    assert 0.5 < torch.cat(masses).mean().item() < 0.75


def test_greedy_continuation_ends_with_the_eos_token(pair):
    target, _, tokenizer = pair
    prompt = tokenizer("dog:", return_tensors="pt")
    ids = target.generate(**prompt, max_new_tokens=200, do_sample=False)[0].tolist()
    assert ids.count(tokenizer.eos_token_id) == 1
    assert ids[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("text", [*GLOSSES, "  two  spaces , and\ttabs \n", "naïve 犬 🐕", ""])
def test_the_tokenizer_gives_back_the_text_it_was_given(text, pair):
    tokenizer = pair[2]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_prompt_is_a_prefix_of_the_tokens_of_its_line(pair):
    tokenizer = pair[2]
    whole, prompt = (tokenizer(t)["input_ids"] for t in ("dog: a domestic animal", "dog:"))
    assert whole[: len(prompt)] == prompt
