"""`cactus curve --recommend`."""

from __future__ import annotations

import pytest

from cactus_runtime.cli import main
from cactus_theory import recommend
from cactus_theory.recording import load_recording

GOAL = ["curve", "--recommend", "--rules", "lenience,cactus", "--draft-cost", "0.05"]


@pytest.mark.parametrize(
    ("option", "goal"), [("--speed", {"min_speedup": 2.2}), ("--kl", {"max_kl": 0.02})]
)
def test_the_best_setting_of_every_rule_is_printed(option, goal, capsys):
    assert main([*GOAL, option, str(*goal.values())]) == 0
    about, header, *lines = capsys.readouterr().out.splitlines()
    assert "96 positions" in about
    assert header.split() == ["rule", "delta", "drafts", "speed", "KL/token", "accepted"]
    found = recommend(load_recording(), draft_cost=0.05, rules=["lenience", "cactus"], **goal)
    for line, one in zip(lines, found, strict=True):
        name, delta, drafts, speed, cost, _ = line.split()
        assert (name, int(drafts)) == (one.name, one.num_draft_tokens)
        assert float(delta) == pytest.approx(one.delta, rel=1e-3)  # four digits are printed
        assert float(speed) == pytest.approx(one.speedup, abs=1e-3)
        assert float(cost) == pytest.approx(one.kl_per_token, abs=1e-5)


def test_costs_and_the_number_of_drafts_are_applied(capsys):
    more = ["--speed", "1.2", "--verify-cost", "1.5", "--max-draft-tokens", "3"]
    assert main([*GOAL, *more]) == 0
    found = recommend(
        load_recording(),
        draft_cost=0.05,
        verify_cost=1.5,
        max_draft_tokens=3,
        min_speedup=1.2,
        rules=["lenience", "cactus"],
    )
    assert f"{found[0].kl_per_token:.5f}" in capsys.readouterr().out.splitlines()[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--speed", "2"], "--speed needs --recommend"),
        (["--draft-cost", "0.1"], "--draft-cost needs --recommend"),
        (["--recommend", "--draft-cost", "0.1"], "needs one of --speed and --kl"),
        (["--recommend", "--speed", "2", "--kl", "1", "--draft-cost", "1"], "needs one of"),
        (["--recommend", "--speed", "2"], "needs --draft-cost"),
        (["--recommend", "--speed", "2", "--draft-cost", "0.1", "--csv"], "--csv cannot be given"),
        (["--recommend", "--speed", "2", "--points", "5"], "--points cannot be given"),
        (["--recommend", "--speed", "99", "--draft-cost", "0.1"], "min_speedup must be at most"),
        (["--recommend", "--speed", "2", "--draft-cost", "-1"], "draft_cost must be"),
    ],
)
def test_what_would_not_be_applied_is_refused(arguments, message, capsys):
    assert main(["curve", "--rules", "cactus", *arguments]) == 2
    assert message in capsys.readouterr().err
