"""`cactus record`."""

from __future__ import annotations

import numpy as np

from cactus_runtime.cli import main
from cactus_theory import Cactus
from cactus_theory.curves import curve
from cactus_theory.recording import load_recording
from cactus_theory.rules.registry import RULES


def test_record_makes_the_file_that_comes_with_the_package(tmp_path, capsys):
    path = tmp_path / "tiny.npz"
    assert main(["record", "--pair", "tiny", "-o", str(path)]) == 0
    mine, bundled = load_recording(path), load_recording()
    assert dict(mine.about) == dict(bundled.about)
    # Machines differ in the last bits of float32 logits, which may move a token past the tolerance.
    for rule in (Cactus, RULES["typical"].at):
        a, b = (
            curve(rule, draft=laws.draft, target=laws.target, deltas=[0.1])
            for laws in (mine, bundled)
        )
        np.testing.assert_allclose(a.acceptance_rate, b.acceptance_rate, atol=1e-4)
        np.testing.assert_allclose(a.kl, b.kl, atol=1e-3)
    assert f"wrote {path}: 96 positions" in capsys.readouterr().err


def test_record_takes_prompts_and_filters_and_curve_explores_them(tmp_path, capsys):
    path, prompts = str(tmp_path / "own.npz"), tmp_path / "prompts"
    prompts.write_bytes(b"river:\r\n\nmusic:\n")
    arguments = ["--tokens", "3", "--temperature", "1", "--top-k", "5"]
    assert main(["record", "-o", path, "--file", str(prompts), *arguments]) == 0
    laws = load_recording(path)
    assert len(laws) == 6
    assert ((laws.target > 0).sum(axis=1) <= 5).all()
    assert laws.about["prompts"] == "river:\nmusic:"
    assert main(["curve", path, "--rules", "cactus,mixture", "--points", "2"]) == 0
    assert "inf" in capsys.readouterr().out  # the mixture leaves the target's support
