"""The benchmark's numbers are those of what it names; none of its times is judged."""

import argparse
import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
import torch

from cactus_runtime import Decoder, judge
from cactus_runtime.bench.models import synthetic_distributions
from cactus_runtime.bench.verifying import materialised, random_block, textbook
from cactus_runtime.cli import main
from cactus_runtime.loop import block_program
from cactus_theory import Cactus
from tests.runtime.tape import programs

SHAPE = {
    "model_type": "qwen3",
    "vocab_size": 500,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHAPE))
    return str(path)


def lines(capsys):
    return {line["name"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}


def test_verification_lines_name_what_is_compared(capsys):
    small = ["--batch", "2", "--verified-drafts", "2", "--vocabulary", "300", "--rounds", "2"]
    assert main(["bench", "verification", *small]) == 0
    found = lines(capsys)
    assert {"machine", "verification / logsumexp", "verification / textbook"} <= set(found)
    line = found["verification / logsumexp"]
    assert 0 < line["ratio"]["min"] <= line["ratio"]["median"] <= line["ratio"]["max"]
    assert line["vocabulary"] == 300


def test_a_configuration_is_timed_with_the_agreement_asked_for(capsys, config):
    options = ["--config", config, "--agreement", "0.7", "--temperature", "1", "--dtype", "float32"]
    small = ["--rounds", "2", "--tokens", "12", "--deltas", "0.5", "--prompt-tokens", "4"]
    assert main(["bench", "decoding", *options, *small]) == 0
    found = lines(capsys)
    sps, cactus = found["speculative sampling"], found["Cactus(0.5)"]
    assert sps["acceptance_rate"]["median"] == pytest.approx(0.7, abs=1e-3)  # float32 logits
    assert cactus["acceptance_rate"]["median"] > 0.7
    assert sps["total_variation_per_token"]["max"] == 0 < cactus["kl_bound_per_token"]["min"]
    assert {"over plain", "over transformers generate", "of_bound"} <= set(sps)
    assert found["plain"]["block_efficiency"]["max"] == 1
    assert "transformers assisted" in found


@pytest.mark.parametrize("size", [10, 11, 1000])
@pytest.mark.parametrize("agreement", [0.0, 0.3, 1.0])
def test_synthetic_laws_agree_exactly_by_what_is_asked(size, agreement):
    draft, target = synthetic_distributions(size, agreement)
    assert torch.minimum(draft, target).sum().item() == pytest.approx(agreement, abs=1e-12)
    assert [draft.sum().item(), target.sum().item()] == pytest.approx([1, 1])


def test_the_contenders_accept_what_verify_accepts():
    block = random_block(6, 3, 50, "cpu")
    wanted = judge(Cactus(0.2), **block)
    for contender in (textbook, materialised):
        assert torch.equal(contender(Cactus(0.2), **block)[0], wanted.accepted)
    assert torch.equal(materialised(Cactus(0.2), **block)[1], wanted.last_token)


def test_a_wrong_agreement_is_an_error_of_one_sentence(capsys, config):
    assert main(["bench", "decoding", "--config", config, "--agreement", "1.5"]) == 2
    assert "agreement must lie in [0, 1], got 1.5" in capsys.readouterr().err


@pytest.fixture
def gpu_checks():
    path = Path(__file__).parents[3] / "scripts" / "gpu_checks.py"
    spec = importlib.util.spec_from_file_location("gpu_checks", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_script_for_a_gpu_runs_to_its_end(gpu_checks, tmp_path, config, capsys):
    output = tmp_path / "out.json"
    small = ["--device", "cpu", "--vocabulary", "300", "--rounds", "1", "--without", "tests"]
    with programs():
        assert gpu_checks.main([str(output), "--target", config, "--draft", config, *small]) == 0
    record = json.loads(output.read_text())
    parts = {"device", "graphs agree with the CPU", "blocks agree with passes", "kernel"}
    assert parts | {"decoding"} <= set(record)
    assert all(part["ok"] for part in record.values())
    assert record["decoding"]["found"][-1]["ratio"]["min"] > 0


def test_the_script_for_a_gpu_notices_blocks_that_differ_from_passes(gpu_checks, monkeypatch):
    options = argparse.Namespace(device="cpu")
    sound = block_program.SamplingWarp.__call__
    monkeypatch.setattr(block_program.SamplingWarp, "__call__", lambda *of: 0.9 * sound(*of))
    with programs(), pytest.raises(AssertionError, match=r"differs by|and \("):
        gpu_checks.blocks_agree(options)
    options = argparse.Namespace(device="cuda:0")
    monkeypatch.setattr(gpu_checks, "Decoder", lambda pair, *, device: Decoder(pair))
    with pytest.raises(AssertionError, match=r"no block of SpeculativeSampling.* was one launch"):
        gpu_checks.blocks_agree(options)


@pytest.mark.parametrize("field", ["target_prob", "kl_bound", "last_token"])
def test_the_script_for_a_gpu_says_where_a_block_first_differs(gpu_checks, field):
    block = random_block(2, 3, 50, "cpu")
    got = judge(Cactus(0.1), **block)
    wrong = dataclasses.replace(got, **{field: getattr(got, field) + 1})
    assert gpu_checks.first_difference(got, got, rtol=1e-9) == "agree"
    found = gpu_checks.first_difference(wrong, got, rtol=1e-9, others=1)
    assert found.startswith(f"{field} differs by 1, and all before it agrees: look at ")
