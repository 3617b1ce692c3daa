"""The registry of rules: every rule of the package is in it once, and what it says holds."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cactus_theory
from cactus_theory import (
    Alpha,
    Cactus,
    CactusExact,
    CandidateRule,
    Divergence,
    Rule,
    kl,
    output_distribution,
)
from cactus_theory.curves import curve
from cactus_theory.recording import load_recording
from cactus_theory.rules import registry
from cactus_theory.rules.parameters import DIVERGENCES, RANGES, Parameter
from cactus_theory.rules.parsing import entry_from, parameters_of, rule_from
from cactus_theory.rules.registry import RULES
from cactus_theory.testing._rules import rules_of
from cactus_theory.testing.strategies import pairs

ULPS = 2.0**-48  # 16 ulp: formulas of a few operations, each in its own order
KINDS = {
    item
    for item in vars(cactus_theory).values()
    if inspect.isclass(item) and issubclass(item, Rule) and not inspect.isabstract(item)
}


def needed(name):
    """An example of every parameter that must be given."""
    return {key: p.example for key, p in parameters_of(name).items() if p.is_required}


def test_every_rule_of_the_package_is_registered_once():
    kinds = [entry.kind for entry in RULES.values()]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == KINDS


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_made_by_its_name_and_its_parameters(name):
    given = ",".join(f"{key}={value}" for key, value in needed(name).items())
    entry, rule = RULES[name], rule_from(f"{name}:{given}" if given else name)
    assert rule == rule_from(name, **needed(name)) == entry.example()
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


@pytest.mark.parametrize("name", [name for name in RULES if needed(name)])
def test_the_example_of_a_parameter_that_must_be_given_is_never_taken_for_it(name):
    given = needed(name)
    for key in given:
        others = {other: value for other, value in given.items() if other != key}
        with pytest.raises(ValueError, match=rf"needs (\w+, )*{key}"):
            rule_from(name, **others)


def test_every_divergence_of_the_package_has_a_name_that_a_budget_can_be_given_in():
    classes = [item for item in vars(cactus_theory).values() if inspect.isclass(item)]
    families = {item for item in classes if issubclass(item, Divergence)} - {Divergence}
    assert families == {Alpha, *map(type, DIVERGENCES.values())}


def test_a_parameter_without_default_and_example_is_refused():
    with pytest.raises(ValueError, match="parameter single needs a default or an example"):
        Parameter("single", "least q that is kept", "fraction")


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


@pytest.mark.parametrize("name", [name for name, entry in RULES.items() if entry.ordered])
@given(pair=pairs(), data=st.data())
def test_what_an_ordered_rule_emits_lies_between_draft_and_target(name, pair, data):
    draft, target = pair
    emitted = output_distribution(data.draw(rules_of(RULES[name].kind)), draft=draft, target=target)
    room = 1e-12  # sums of roundings
    assert (emitted >= np.minimum(draft, target) - room).all()
    assert (emitted <= np.maximum(draft, target) + room).all()


def masses(rule, q):
    """What is accepted at each of 24 tokens, the first of which has target probability q."""
    rest = np.arange(1, 24) / np.arange(1, 24).sum()
    q = np.asarray(q)[..., None]
    target = np.concatenate([q, (1 - q) * rest], axis=-1)
    draft = np.broadcast_to([0.9, *(0.1 * rest[::-1])], target.shape)
    return rule.accepted_mass(draft, target)


def largest_jump(rule):
    """Of what is accepted: the steepest steps of a grid of q are halved until nothing is left.

    Of 64 steps at once, each time the half with the larger step; after 40 halvings a step is
    1e-15 wide. Ends a millionth from 0 and 1, where an exact optimum climbs slower than any power.
    """
    grid = np.linspace(1e-6, 1 - 1e-6, 1025)
    steps = np.abs(np.diff(masses(rule, grid), axis=0)).max(axis=-1)
    steepest = np.argsort(-steps)[:64]
    low, high = grid[steepest], grid[steepest + 1]
    for _ in range(40):
        middle = (low + high) / 2
        below, at, above = (masses(rule, q) for q in (low, middle, high))
        left = np.abs(at - below).max(axis=-1) >= np.abs(above - at).max(axis=-1)
        low, high = np.where(left, low, middle), np.where(left, middle, high)
    return np.abs(masses(rule, high) - masses(rule, low)).max()


@pytest.mark.parametrize("name", RULES)
def test_the_accepted_mass_is_continuous_where_the_registry_says_so(name):
    """A rule that jumps for some parameters only has an example for which it does."""
    assert (largest_jump(RULES[name].example()) < 1e-5) == RULES[name].continuous


def on_a_grid(rule):
    """q > 0 at every magnitude, evenly, and at the rule's own numbers, where it may switch."""
    own = [x for x in vars(rule).values() if isinstance(x, float) and 0 < x <= 1]
    return np.unique(
        [*np.geomspace(1e-300, 1, 101), *np.linspace(0, 1, 513)[1:], 1 - 2.0**-53, *own]
    )


CANDIDATES = [name for name, entry in RULES.items() if entry.has_candidates]


@pytest.mark.parametrize("name", CANDIDATES)
@given(data=st.data())
def test_a_rule_is_lossless_exactly_where_it_boosts_nothing(name, data):
    rule = data.draw(rules_of(RULES[name].kind))
    q = on_a_grid(rule)
    assert rule.lossless == bool((rule.boost(q) == q).all())
    if rule.lossless:
        assert (rule.shrink(q) == 1).all()


@pytest.mark.parametrize("name", CANDIDATES)
@given(data=st.data())
def test_a_rule_grants_nothing_to_a_token_that_the_target_excludes(name, data):
    """What it granted there would be emitted and not charged: gains are summed where q > 0."""
    rule = data.draw(rules_of(RULES[name].kind))
    assert rule.boost(0.0) == 0
    assert rule.shrink(0.0) == 1


@pytest.mark.parametrize("name", CANDIDATES)
@given(data=st.data())
def test_a_rule_boosts_by_the_chi_square_that_it_promises(name, data):
    rule = data.draw(rules_of(RULES[name].kind))
    q = on_a_grid(rule)
    least = np.minimum(q + np.sqrt(rule.chi_square_floor * (1 - q)) * np.sqrt(q), 1)
    assert rule.chi_square_floor >= 0
    assert (rule.boost(q) >= least * (1 - ULPS)).all()


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
    ("text", "delta", "rule"),
    [
        ("cactus", 0.2, Cactus(0.2)),
        ("cactus:delta=0.3", 0.2, Cactus(0.3)),
        ("exact:divergence=alpha:0.5", 0.2, CactusExact(0.2, Alpha(0.5))),
        ("one-level:rule=exact", 0.2, cactus_theory.OneLevelRecovery(CactusExact(0.2))),
        ("one-level:rule=safe:delta=1", 0.2, rule_from("one-level:rule=safe,delta=1")),
        ("typical:alpha=0.5", 0.2, rule_from("typical:alpha=0.5")),
        ("mixture:weight=0.25", 0.2, rule_from("mixture:weight=0.25")),
    ],
)
def test_delta_gives_what_the_text_of_a_curve_leaves_open(text, delta, rule):
    entry = entry_from(text)
    assert entry.at(delta) == rule
    assert entry.colour == RULES[text.partition(":")[0]].colour
    assert entry.title == text or entry is RULES[text]


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
