"""Every rule of the registry is everywhere a rule can be chosen, and looks as the registry says.

The command line, vLLM, curves, the page, pictures, test strategies and the docs' tables. Whether
lm-eval takes it is tested beside the rest of lm-eval, which needs its harness.
"""

import json
import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_runtime.cli import main
from cactus_runtime.cli.page import QS, curve_page
from cactus_runtime.integrations.vllm.settings import settings_of
from cactus_theory import CactusExact, ChiSquare, plots
from cactus_theory.curves import curve
from cactus_theory.recording import load_recording
from cactus_theory.rules.parsing import entry_from, parameters_of, rule_from
from cactus_theory.rules.registry import RULES
from cactus_theory.testing.strategies import rules_of

TINY = ["--pair", "tiny", "--tokens", "4", "--seed", "1"]
DOCS = Path(__file__).parents[3] / "docs"


def own(name):
    """Texts of all parameters of a rule, or of the one it wraps; none is a default, no two alike.

    Numbers are 1/4, 1/5, 1/6 ...: in the range of every parameter that is one.
    """
    special = {"count": "3", "divergence": "total-variation"}
    known = parameters_of(name).values()
    return {p.name: special.get(p.domain, f"{1 / i}") for i, p in enumerate(known, 4)}


def needed(name):
    """An example of every parameter that must be given."""
    return {key: p.example for key, p in parameters_of(name).items() if p.is_required}


@pytest.mark.parametrize("name", RULES)
def test_the_settings_of_vllm_take_every_ordered_rule_and_refuse_the_others(name):
    settings = {"rule": name, **needed(name)}
    if RULES[name].ordered:
        assert settings_of(settings).rule == RULES[name].example()
    else:
        with pytest.raises(ValueError, match=f"^rule must be one of .*, got '{name}'"):
            settings_of(settings)


@pytest.mark.parametrize("name", [name for name in RULES if needed(name)])
def test_no_place_that_decodes_takes_the_example_of_a_parameter_that_is_missing(name, capsys):
    missing = " or ".join(needed(name))
    with pytest.raises(ValueError, match=f"rule .* needs {missing.replace(' or ', ', ')}"):
        settings_of({"rule": name})
    if "delta" not in needed(name):  # which the command line gives
        assert main(["decode", "dog:", *TINY, "--rule", name]) == 2
        assert f"rule {name} needs" in capsys.readouterr().err


@pytest.mark.parametrize("name", RULES)
def test_a_picture_of_a_curve_is_drawn_in_the_rule_s_name_and_colour(name):
    found = curve(RULES[name].at, draft=[0.7, 0.3], target=[0.4, 0.6], deltas=[0.1, 1.0])
    left, _ = plots.delta_curves({name: found})
    plt.close(left.figure)
    (line,) = left.lines
    assert (line.get_label(), line.get_color()) == (RULES[name].title, RULES[name].colour)


def test_the_tables_of_the_docs_have_a_row_for_every_rule():
    table = runpy.run_path(str(DOCS / "_ext" / "rules_table.py"))
    kinds = table["KINDS"].values()
    rows = [name for belongs in kinds for name in RULES if belongs(RULES[name].kind)]
    assert sorted(rows) == sorted(RULES)
    text = table["_table"](RULES.items()).astext()
    for entry in RULES.values():
        assert entry.kind.__name__ in text
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    for kind in table["KINDS"]:
        assert re.search(rf"rules\}} {kind}$", pages, re.M)


@pytest.mark.parametrize("name", RULES)
@given(data=st.data())
def test_strategies_draw_every_rule(name, data):
    assert type(data.draw(rules_of(RULES[name].kind))) is RULES[name].kind


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
    told = re.sub(r"-\n +", "-", capsys.readouterr().out)  # lines may break at a hyphen
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


def test_the_page_tells_one_rule_with_other_parameters_apart():
    texts = ["exact", "exact:divergence=chi-square", "typical:alpha=0.5"]
    found = {
        text: curve(entry_from(text).at, draft=[0.7, 0.3], target=[0.4, 0.6], deltas=[0.1, 1.0])
        for text in texts
    }
    data = re.search(r"const data = (.*);\n", curve_page(found, about=""))
    assert data is not None
    drawn = json.loads(data[1])["rules"]
    assert [rule["name"] for rule in drawn] == [RULES["exact"].title, *texts[1:]]
    assert drawn[0]["dash"] != drawn[1]["dash"]
    wanted = CactusExact(1.0, ChiSquare()).boost(QS).tolist()
    assert drawn[1]["granted"][1] == pytest.approx(wanted, rel=1e-5)  # six digits


def test_optimum_has_a_row_for_a_candidate_s_budget_only(capsys):
    assert main(["optimum", "0.1", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for name, entry in RULES.items():
        assert (name in told) == (entry.has_candidates and entry.at_budget is not None)
