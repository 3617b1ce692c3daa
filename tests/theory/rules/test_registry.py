"""The registry of rules: every rule of the package is in it once, and what it says holds."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cactus_theory
from cactus_theory import Alpha, Cactus, CactusExact, CandidateRule, Rule, kl, output_distribution
from cactus_theory.curves import curve
from cactus_theory.recording import load_recording
from cactus_theory.rules import registry
from cactus_theory.rules.registry import DIVERGENCES, RANGES, RULES, rule_from
from cactus_theory.testing._rules import rules_of
from cactus_theory.testing.strategies import pairs

REQUIRED = {"delta": 0.5, "epsilon": 0.5, "lenience": 0.5, "weight": 0.5, "k": 3}
KINDS = {
    item
    for item in vars(cactus_theory).values()
    if inspect.isclass(item) and issubclass(item, Rule) and not inspect.isabstract(item)
}


def made(name):
    """The rule by its name and the parameters that it needs, in the text form."""
    needed = [p.name for p in RULES[name].parameters if p.is_required]
    inner = ["delta"] if any(p.domain == "rule" for p in RULES[name].parameters) else []
    given = ",".join(f"{key}={REQUIRED[key]}" for key in needed + inner)
    return rule_from(f"{name}:{given}" if given else name)


def test_every_rule_of_the_package_is_registered_once():
    kinds = [entry.kind for entry in RULES.values()]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == KINDS


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_made_by_its_name_and_its_parameters(name):
    entry, rule = RULES[name], made(name)
    assert type(rule) is entry.kind
    assert rule_from(rule) is rule
    assert entry.facts is entry.kind.facts
    assert entry.has_candidates == isinstance(rule, CandidateRule)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert re.fullmatch(r"#[0-9A-F]{6}", entry.colour)


@pytest.mark.parametrize("name", RULES)
def test_the_parameters_are_those_of_the_class(name):
    entry = RULES[name]
    signature = inspect.signature(entry.kind).parameters
    assert [p.name for p in entry.parameters] == list(signature)
    for parameter in entry.parameters:
        assert parameter.domain in RANGES
        own = signature[parameter.name].default
        if not parameter.is_required and own is not inspect.Parameter.empty:
            assert parameter.default == own


def test_no_two_rules_look_alike():
    assert len({(e.colour, e.dash) for e in RULES.values()}) == len(RULES)
    assert len({e.title for e in RULES.values()}) == len(RULES)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_a_curve_and_one_free_of_delta_is_flat(name):
    laws = load_recording()
    found = curve(
        RULES[name].at, draft=laws.draft[:4], target=laws.target[:4], deltas=[0.0, 0.5, 2.0]
    )
    assert (len(set(found.acceptance_rate)) == 1) == (RULES[name].at_budget is None)


@pytest.mark.parametrize("name", RULES)
@given(data=st.data())
def test_hypothesis_draws_the_rule(name, data):
    assert type(data.draw(rules_of(RULES[name].kind))) is RULES[name].kind


@pytest.mark.parametrize("name", [name for name, entry in RULES.items() if entry.ordered])
@given(pair=pairs(), data=st.data())
def test_what_an_ordered_rule_emits_lies_between_draft_and_target(name, pair, data):
    draft, target = pair
    emitted = output_distribution(data.draw(rules_of(RULES[name].kind)), draft=draft, target=target)
    room = 1e-12  # sums of roundings
    assert (emitted >= np.minimum(draft, target) - room).all()
    assert (emitted <= np.maximum(draft, target) + room).all()


@pytest.mark.parametrize("name", [name for name, entry in RULES.items() if not entry.ordered])
def test_what_a_rule_that_is_not_ordered_emits_leaves_that_range(name):
    draft, target = np.full(12, 1 / 12), np.arange(1, 13) / 78
    emitted = output_distribution(RULES[name].make(), draft=draft, target=target)
    assert (emitted > np.maximum(draft, target) + 0.01).any() or (
        emitted < np.minimum(draft, target) - 0.01
    ).any()


def largest_step(rule, steps):
    """Of the mass accepted at a token, as its probability grows from .05 to .55."""
    q = np.linspace(0.05, 0.55, steps)
    target = np.stack([q, 0.4 - q / 3, 0.3 - q / 3, 0.3 - q / 3], axis=-1)
    draft = np.broadcast_to([0.3, 0.3, 0.2, 0.2], target.shape)
    mass = np.array([rule.accepted_mass(d, t)[0] for d, t in zip(draft, target, strict=True)])
    return np.abs(np.diff(mass)).max()


@pytest.mark.parametrize("name", RULES)
def test_the_accepted_mass_is_continuous_where_the_registry_says_so(name):
    """Steps of a continuous function shrink with their number; a jump stays."""
    rule = rule_from("top-k:k=1") if name == "top-k" else made(name)
    assert (largest_step(rule, 1001) < 0.02) == RULES[name].continuous


def spent(name, delta, draft, target):
    """KL of the emitted distribution under the rule of a curve."""
    return kl(output_distribution(RULES[name].at(delta), draft=draft, target=target), target)


@pytest.mark.parametrize("name", [name for name, entry in RULES.items() if entry.bounds_kl])
@given(pair=pairs(), delta=st.floats(0.01, 5))
def test_delta_bounds_the_emitted_kl_where_the_registry_says_so(name, pair, delta):
    assert spent(name, delta, *pair) <= delta + 1e-12  # rounding


@pytest.mark.parametrize("name", [n for n, e in RULES.items() if e.at_budget and not e.bounds_kl])
def test_delta_does_not_bound_the_emitted_kl_where_the_registry_says_so(name):
    """Ten drafted tokens, each of them improbable, gain ten times."""
    draft = np.array([0.1] * 10 + [0.0])
    target = np.array([1e-3] * 9 + [1e-12, 1 - 9e-3 - 1e-12])
    assert spent(name, 0.01, draft, target) > 0.01


@pytest.mark.parametrize(
    ("text", "parameters", "rule"),
    [
        ("cactus", {"delta": 0.1}, Cactus(0.1)),
        ("cactus", {"delta": "0.1"}, Cactus(0.1)),
        ("exact:delta=0.3,divergence=kl", {}, CactusExact(0.3)),
        ("exact:delta=0.3", {"divergence": "alpha:0.5"}, CactusExact(0.3, Alpha(0.5))),
        ("one-level:delta=0.3", {}, cactus_theory.OneLevelRecovery(Cactus(0.3))),
        ("one-level", {"rule": Cactus(1)}, cactus_theory.OneLevelRecovery(Cactus(1))),
        (
            "one-level:rule=exact,delta=0.3,divergence=chi-square",
            {},
            cactus_theory.OneLevelRecovery(CactusExact(0.3, DIVERGENCES["chi-square"])),
        ),
    ],
)
def test_a_text_and_keywords_say_the_same(text, parameters, rule):
    assert rule_from(text, **parameters) == rule


@pytest.mark.parametrize(
    ("text", "parameters", "error", "told"),
    [
        ("best", {}, ValueError, "rule must be one of speculative, cactus, .*, got 'best'"),
        (3, {}, ValueError, "got 3"),
        ("cactus", {}, ValueError, "rule cactus needs delta, got none"),
        ("cactus:", {}, ValueError, "rule cactus needs delta"),
        ("cactus:delta", {}, ValueError, "like NAME:KEY=VALUE"),
        ("cactus:delta=1,delta=2", {}, ValueError, "each key once"),
        ("cactus:delta=1", {"delta": 2}, ValueError, "delta of rule cactus is given twice: '1', 2"),
        ("cactus:delta=much", {}, ValueError, "delta must be a number >= 0, got 'much'"),
        ("cactus:delta=-1", {}, ValueError, "delta must"),
        ("speculative", {"delta": 1}, ValueError, "rule speculative takes no parameter, got delta"),
        ("clamp", {"delta": 1}, ValueError, "rule clamp takes epsilon, divergence, got delta=1"),
        ("clamp", {"epsilon": 1, "divergence": "l1"}, ValueError, "kl, reverse-kl, .*got 'l1'"),
        ("top-k:k=1.5", {}, ValueError, "k must be an integer >= 1, got '1.5'"),
        ("one-level:rule=clamp,epsilon=1", {}, TypeError, "rule must be a rule with candidates"),
        (Cactus(1), {"delta": 2}, ValueError, "has its parameters, got more: delta=2"),
    ],
)
def test_a_wrong_name_or_parameter_is_told_with_what_would_be_right(text, parameters, error, told):
    with pytest.raises(error, match=told):
        rule_from(text, **parameters)


def test_names_of_rules_are_spelled_in_the_registry_only():
    """No other source keeps a table of its own: two or more class names as values of a mapping."""
    names = "|".join(kind.__name__ for kind in KINDS)
    table = re.compile(rf'"[\w-]+": (?:lambda \w+: )?(?:{names})\b.*\n\s*"[\w-]+": .*(?:{names})\b')
    root = Path(cactus_theory.__file__).parents[1]
    sources = [p for d in ("cactus_theory", "cactus_runtime") for p in (root / d).rglob("*.py")]
    found = {path.name for path in sources if table.search(path.read_text(encoding="utf-8"))}
    assert found <= {"arms.py", Path(registry.__file__).name}  # arms rescales what it matches
