"""The ledger and its stop, on whole texts whose distribution is enumerated."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    CactusExact,
    output_distribution,
)
from cactus_theory.ledger import Ledger, budget_stop
from tests.theory.chains import (
    ROUNDING,
    Chain,
    block,
    charge_emitted,
    cost_of_text,
    emitted,
    expected,
    prefixes,
    random_chain,
    stop_at_the_budget,
    text_law,
)


def test_the_enumeration_of_a_lossless_decoder_gives_the_law_of_the_target():
    rng = np.random.default_rng(0)
    for k in (1, 2, 3):
        chain = random_chain(rng)
        final, stops = emitted(chain, Ledger(max_kl=0.0, max_total_variation=0.0), k)
        np.testing.assert_allclose(
            text_law(chain, final), chain.target_law(), atol=ROUNDING, rtol=0
        )
        assert expected(final, "kl") == 0
        assert not any(map(any, stops))


def test_the_enumeration_of_one_position_gives_the_output_law():
    rng = np.random.default_rng(1)
    pair = rng.dirichlet(np.ones(3), size=2)
    for rule in (Cactus(0.2), CactusExact(0.2)):
        final, _ = emitted(Chain({(): pair}, 1, rule), Ledger(), 1)
        expected_law = output_distribution(rule, draft=pair[0], target=pair[1])
        law = np.array([sum(c for (t, _), c in final.items() if t == (x,)) for x in range(3)])
        np.testing.assert_allclose(law, expected_law, atol=ROUNDING, rtol=0)


def test_without_a_budget_the_expected_ledger_bounds_the_text():
    rng = np.random.default_rng(2)
    strict = 0
    for trial in range(45):
        chain = random_chain(rng, bound=trial % 3 == 0)
        final, _ = emitted(chain, Ledger(), 1 + trial % 3)
        assert sum(final.values()) == pytest.approx(1, abs=ROUNDING)
        cost = cost_of_text(chain, final)
        assert cost.kl <= expected(final, "kl") + ROUNDING
        assert cost.total_variation <= expected(final, "total_variation") + ROUNDING
        strict += cost.kl < 0.999 * expected(final, "kl")
    assert strict > 10


@pytest.mark.parametrize("bound", [False, True], ids=["exact KL", "O(V) bound"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_stop_keeps_every_text_within_its_budgets(k, bound):
    rng = np.random.default_rng(10 + k)
    inside, lossy_blocks = 0, 0
    for trial in range(40):
        chain = random_chain(rng, bound=bound)
        free, _ = emitted(chain, Ledger(), k)
        budgets = {}
        if trial % 3 != 1:
            budgets["max_kl"] = float(rng.uniform(0, 1) * expected(free, "kl"))
        if trial % 3 != 0:
            distance = expected(free, "total_variation")
            budgets["max_total_variation"] = float(rng.uniform(0, 1) * distance)
        start = Ledger(**budgets)
        final, stops = emitted(chain, start, k)
        assert sum(final.values()) == pytest.approx(1, abs=ROUNDING)
        cost = cost_of_text(chain, final)
        assert cost.kl <= start.max_kl + ROUNDING
        assert cost.total_variation <= start.max_total_variation + ROUNDING
        assert cost.total_variation <= math.sqrt(start.max_kl / 2) + ROUNDING
        assert cost.kl <= expected(final, "kl") + ROUNDING
        assert cost.total_variation <= expected(final, "total_variation") + ROUNDING
        assert all(ledger.kl <= start.max_kl for _, ledger in final)
        inside += sum(any(lossy) and not all(lossy) for lossy in stops)
        lossy_blocks += sum(map(any, stops))
    assert lossy_blocks > 100
    assert inside > 100 or k == 1


def violations(k, decide, charge=charge_emitted, *, trials=25, seed=3):
    """How often a decoder's text costs more than the budget that its decision was given."""
    rng = np.random.default_rng(seed)
    count = 0
    for _ in range(trials):
        chain = random_chain(rng)
        free, _ = emitted(chain, Ledger(), k)
        limit = float(rng.uniform(0.1, 0.9) * expected(free, "kl"))
        final, _ = emitted(
            chain, Ledger(), k, decide=lambda *at, b=limit: decide(b, *at), charge=charge
        )
        count += cost_of_text(chain, final).kl > limit + ROUNDING
    return count


def from_the_front(limit, ledger, costs, drafts):
    spent = list(itertools.accumulate([ledger.kl, *(cost.kl for cost in costs)]))
    return [total <= limit for total in spent[1:]]


def one_position_too_late(limit, ledger, costs, drafts):
    spent = list(itertools.accumulate([ledger.kl, *(cost.kl for cost in costs)]))
    return [total <= limit for total in spent[:-1]]


def looking_at_the_drafted_token(limit, ledger, costs, drafts):
    lossy, spent = [], ledger.kl
    for cost, token in zip(costs, drafts, strict=True):
        lossy.append(token == 0 and spent + cost.kl <= limit)
        spent += cost.kl * lossy[-1]
    return lossy


def only_the_accepted(ledger, costs, accepted):
    return charge_emitted(ledger, costs[:accepted], accepted)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_same_rule_written_anew_never_passes_the_budget(k):
    assert violations(k, from_the_front) == 0


@pytest.mark.parametrize("k", [1, 2, 3])
def test_stopping_one_position_too_late_passes_the_budget_on_some_chain(k):
    assert violations(k, one_position_too_late) > 0


@pytest.mark.parametrize("k", [1, 2])
def test_charging_only_accepted_tokens_passes_the_budget_on_some_chain(k):
    assert violations(k, from_the_front, only_the_accepted) > 0


@pytest.mark.parametrize("k", [1, 2])
def test_deciding_and_charging_by_the_drafted_token_passes_the_budget_on_some_chain(k):
    assert violations(k, looking_at_the_drafted_token, trials=50) > 0


def test_a_decision_by_the_drafted_token_is_covered_when_the_whole_cost_is_charged():
    def by_token(ledger, costs, drafts):
        allowed = stop_at_the_budget(ledger, costs, drafts)
        return [flag and token == 0 for flag, token in zip(allowed, drafts, strict=True)]

    rng = np.random.default_rng(4)
    for _ in range(30):
        chain = random_chain(rng)
        free, _ = emitted(chain, Ledger(), 1)
        limit = float(rng.uniform(0.1, 0.9) * expected(free, "kl"))
        final = {}
        states = {((), Ledger(max_kl=limit)): 1.0}
        while states:
            (text, now), chance = states.popitem()
            if len(text) == chain.length:
                final[text, now] = final.get((text, now), 0.0) + chance
                continue
            whole = chain.lossy[text].cost
            affordable = stop_at_the_budget(now, [whole], (0,))[0]
            after = charge_emitted(now, [whole] * affordable, 0)
            for tokens, _, share, _ in block(chain, text, now, 1, by_token, charge_emitted):
                state = text + tokens[:1], after
                states[state] = states.get(state, 0.0) + chance * share
        assert cost_of_text(chain, final).kl <= limit + ROUNDING


def test_a_block_that_is_lossy_only_if_all_of_it_fits_passes_the_budget():
    # Whether the first position is lossy then hangs on the cost of the second, that is, on the
    # token drafted at the first, which is not yet verified.
    dear, even = ([0.95, 0.05], [0.05, 0.95]), ([0.5, 0.5], [0.5, 0.5])
    root = ([0.6, 0.4], [0.3, 0.7])
    laws = dict.fromkeys(prefixes(2, 4), even)
    laws |= {(): root, (1,): dear, (1, 0): root, (1, 1): root}
    laws = {text: tuple(map(np.array, pair)) for text, pair in laws.items()}
    chain = Chain(laws, 4, Cactus(0.1))
    limit = chain.lossy[()].cost.kl

    def all_or_nothing(ledger, costs, drafts):
        fits = all(stop_at_the_budget(ledger, costs, drafts))
        return [fits] * len(costs)

    start = Ledger(max_kl=limit)
    final, _ = emitted(chain, start, 2, decide=all_or_nothing)
    assert all(ledger.kl <= limit for _, ledger in final)
    assert cost_of_text(chain, final).kl > 1.1 * limit
    final, _ = emitted(chain, start, 2)
    assert cost_of_text(chain, final).kl <= limit + ROUNDING


COSTS = st.lists(st.tuples(st.floats(0, 2), st.floats(0, 5)), max_size=8)
LIMITS = st.one_of(st.just(math.inf), st.floats(0, 10))


@given(costs=COSTS, distance=LIMITS, nats=LIMITS)
def test_the_stop_is_the_longest_front_whose_exact_sums_fit(costs, distance, nats):
    ledger = Ledger(max_total_variation=distance, max_kl=nats)
    columns = {"total_variations": [c[0] for c in costs], "kls": [c[1] for c in costs]}
    allowed = budget_stop(ledger, **columns)
    front = {name: values[:allowed] for name, values in columns.items()}
    after = ledger.spend(**front)
    sums = [sum(map(Fraction, values)) for values in front.values()]
    # Rounded up: at most an ulp per addition, and never down.
    for total, exact in zip((after.total_variation, after.kl), sums, strict=True):
        assert exact <= Fraction(total) <= exact * (1 + Fraction(len(costs), 2**52))
    assert after.total_variation <= distance
    assert after.kl <= nats
    if allowed < len(costs):
        with pytest.raises(ValueError, match="must be at most max_"):
            ledger.spend(**{name: values[: allowed + 1] for name, values in columns.items()})


@given(costs=COSTS, nats=LIMITS, split=st.integers(0, 8))
def test_spending_in_two_parts_is_spending_at_once_and_leaves_the_first_ledger_alone(
    costs, nats, split
):
    columns = {"total_variations": [c[0] for c in costs], "kls": [c[1] for c in costs]}
    start = Ledger()
    first = start.spend(**{name: values[:split] for name, values in columns.items()})
    both = first.spend(**{name: values[split:] for name, values in columns.items()})
    assert both == start.spend(**columns)
    assert hash(both) == hash(start.spend(**columns))
    assert start == Ledger()
    rest = Ledger(total_variation=first.total_variation, kl=first.kl, max_kl=max(nats, first.kl))
    later = {name: values[split:] for name, values in columns.items()}
    whole = Ledger(max_kl=max(nats, first.kl))
    if budget_stop(whole, **columns) >= min(split, len(costs)):
        assert budget_stop(rest, **later) == budget_stop(whole, **columns) - min(split, len(costs))


def test_a_sum_that_rounds_down_counts_as_more():
    # 1 + 2**-60 is 1 in float64, but not within a budget of 1.
    assert budget_stop(Ledger(max_kl=1.0), total_variations=[0, 0], kls=[1.0, 2.0**-60]) == 1
    assert Ledger(kl=1.0).spend(total_variations=[0], kls=[2.0**-60]).kl == 1 + 2.0**-52
    assert budget_stop(Ledger(max_kl=1.0), total_variations=[0, 0], kls=[1.0, 0.0]) == 2


def test_no_budget_allows_everything_and_a_zero_budget_what_is_free():
    columns = {"total_variations": [0.5, 0.5], "kls": [3.0, math.inf]}
    assert budget_stop(Ledger(), **columns) == 2
    assert Ledger().spend(**columns).kl == math.inf
    assert budget_stop(Ledger(max_kl=1e300), **columns) == 1
    free = {"total_variations": [0.0, 0.0, 0.1], "kls": [0.0, 0.0, 0.2]}
    assert budget_stop(Ledger(max_kl=0.0), **free) == 2
    assert budget_stop(Ledger(max_total_variation=0.0), **free) == 2
    assert budget_stop(Ledger(), total_variations=[], kls=[]) == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Ledger(max_kl=-1.0), ValueError, "max_kl must be a number >= 0, got -1.0"),
        (lambda: Ledger(max_kl=math.nan), ValueError, "max_kl must be .* got nan"),
        (lambda: Ledger(kl="two"), TypeError, "kl must be a number >= 0, got 'two'"),
        (lambda: Ledger(kl=2.0, max_kl=1.0), ValueError, "kl must be at most max_kl=1.0, got 2.0"),
        (
            lambda: Ledger(total_variation=0.5, max_total_variation=0.25),
            ValueError,
            "total_variation must be at most max_total_variation=0.25, got 0.5",
        ),
        (
            lambda: budget_stop(Ledger(), total_variations=[0.1], kls=[]),
            ValueError,
            "one entry per position, got 1 and 0",
        ),
        (
            lambda: budget_stop(Ledger(), total_variations=[0.1], kls=[math.nan]),
            ValueError,
            "a kl must be a number >= 0, got nan",
        ),
        (
            lambda: Ledger().spend(total_variations=[-0.1], kls=[0.1]),
            ValueError,
            "a total variation must be a number >= 0, got -0.1",
        ),
    ],
)
def test_bad_amounts_are_named_with_their_value(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_ledger_is_immutable():
    with pytest.raises(AttributeError):
        Ledger().kl = 1.0
