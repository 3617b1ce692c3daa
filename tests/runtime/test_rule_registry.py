"""Every rule of the registry is everywhere a rule can be chosen, and looks as the registry says."""

import json
import re

import pytest

from cactus_runtime.cli import main
from cactus_runtime.cli.page import QS, curve_page
from cactus_theory.curves import curve
from cactus_theory.recording import load_recording
from cactus_theory.rules.parsing import rule_from
from cactus_theory.rules.registry import RULES

TINY = ["--pair", "tiny", "--tokens", "4", "--seed", "1"]
VALUES = {"delta": "0.2", "epsilon": "0.2", "lenience": "0.5", "weight": "0.5", "k": "3"}
VALUES |= {"alpha": "0.5", "divergence": "total-variation"}


def own(name):
    """Values of all parameters of a rule; of those of the one it wraps, for one that wraps."""
    found = {p.name: VALUES[p.name] for p in RULES[name].parameters if p.domain != "rule"}
    return found or {"delta": "0.2"} if name == "one-level" else found


@pytest.mark.parametrize("name", RULES)
def test_the_command_line_decodes_by_every_rule_and_all_of_its_parameters(name, capsys):
    given = own(name)
    options = [part for key, value in given.items() for part in (f"--{key}", value)]
    text = ",".join(f"{key}={value}" for key, value in given.items())
    for arguments in (["--rule", name, *options], ["--rule", f"{name}:{text}" if text else name]):
        assert main(["decode", "dog:", "--json", *TINY, *arguments]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["rule"] == str(rule_from(name, **given))
        assert len(told["tokens"]) == 4


@pytest.mark.parametrize("name", RULES)
def test_the_help_names_every_rule_and_every_parameter(name, capsys):
    assert main(["decode", "--help"]) == 0
    told = capsys.readouterr().out
    assert name in told
    for parameter in own(name):
        assert f"--{parameter} " in told
    assert main(["curve", "--help"]) == 0
    assert re.search(rf"^  {name} +{re.escape(RULES[name].title)}", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rule", "best"], "rule must be one of speculative, cactus, "),
        (["--rule", "speculative", "--delta", "1"], "rule speculative takes no parameter"),
        (["--rule", "lenience"], "rule lenience needs lenience"),
        (["--rule", "exact:delta=1", "--delta", "2"], "delta of rule exact is given twice"),
        (["--delta", "much"], "delta must be a number >= 0, got 'much'"),
        (["--rule", "clamp", "--epsilon", "1", "--k", "2"], "takes epsilon, divergence, got k="),
    ],
)
def test_a_parameter_is_applied_or_refused(arguments, told, capsys):
    assert main(["decode", "dog:", *TINY, *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("cactus: ")
    assert told in err


def test_a_delta_that_is_not_given_is_a_tenth_where_the_rule_has_one(capsys):
    for rule in ("cactus", "exact", "safe", "one-level"):
        assert main(["decode", "dog:", "--json", *TINY, "--rule", rule]) == 0
        assert "delta=0.1" in json.loads(capsys.readouterr().out)["rule"]


@pytest.mark.parametrize("name", RULES)
def test_the_page_draws_every_rule_from_data_alone(name):
    laws = load_recording()
    deltas = [0.01, 1.0]
    found = curve(RULES[name].at, draft=laws.draft[:2], target=laws.target[:2], deltas=deltas)
    page = curve_page({name: found}, about="")
    assert "Math.sqrt" not in page  # no formula of a rule
    (drawn,) = json.loads(re.search(r"const data = (.*);\n", page).group(1))["rules"]
    assert (drawn["key"], drawn["name"], drawn["colour"]) == (
        name,
        RULES[name].title,
        RULES[name].colour,
    )
    if not RULES[name].has_candidates:
        assert drawn["granted"] is None
        return
    for delta, granted in zip(deltas, drawn["granted"], strict=True):
        wanted = RULES[name].at(delta).boost(QS)
        assert granted == pytest.approx(wanted.tolist(), rel=1e-5)  # six digits


def test_optimum_has_a_row_for_a_candidate_s_budget_only(capsys):
    assert main(["optimum", "0.1", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for name, entry in RULES.items():
        assert (name in told) == (entry.has_candidates and entry.at_budget is not None)
