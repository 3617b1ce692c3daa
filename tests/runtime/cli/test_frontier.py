"""`cactus frontier`."""

from __future__ import annotations

import pytest

from cactus_runtime.cli import main
from cactus_theory import Frontier, compare
from cactus_theory.recording import load_recording


def test_rules_and_numbers_of_drafts_are_compared(tmp_path, capsys):
    path = tmp_path / "frontier.png"
    arguments = ["--rules", "lenience,cactus", "--kl", "0.05", "--drafts", "1,2"]
    assert main(["frontier", *arguments, "--plot", str(path)]) == 0
    laws = load_recording()
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["rule", "delta", "KL", "accepted"]
    for line, one in zip(lines[:2], compare(laws, ["lenience", "cactus"], kl=0.05), strict=True):
        name, delta, cost, accepted, gain, needed, tokens, block = line.split()
        assert name == one.name
        assert float(delta) == pytest.approx(one.delta, rel=1e-2)  # three digits are printed
        assert cost == "0.0500"
        assert accepted == f"{one.figures.acceptance_rate:.4f}"
        assert gain == f"{one.share:.0%}"
        assert needed == f"{one.needed:.4f}"
        assert (tokens, block) == (f"{one.token_by_token:.2f}", f"{one.by_block:.2f}")
    two = Frontier(draft=laws.draft, target=laws.target, num_drafts=2)
    assert lines[-1].split() == [
        "2",
        f"{two.at_price(0.0).acceptance_rate:.4f}",
        f"{two.at_kl(0.05).acceptance_rate:.4f}",
    ]
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kl", "0"], "kl must be > 0"),
        (["--rules", "best"], "rule must be one of"),
        (["--drafts", "0"], "integers >= 1"),
    ],
)
def test_bad_options_are_refused(arguments, message, capsys):
    assert main(["frontier", *arguments]) == 2
    assert message in capsys.readouterr().err
