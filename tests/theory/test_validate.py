"""What is refused, and that the message names the argument and shows the value."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cactus_theory import (
    Cactus,
    CactusExact,
    SpeculativeSampling,
    acceptance_rate,
    binary_kl,
    block_efficiency,
    emission,
    exact_optimum,
    kl,
    optimum_gap,
    output_distribution,
    residual_distribution,
    second_order_optimum,
    total_variation,
)

RULE = Cactus(0.5)
GOOD = [0.5, 0.5]


def refuses(error, *parts):
    """A context that expects `error` with a message holding each of the parts, in order."""
    return pytest.raises(error, match=".*".join(re.escape(str(part)) for part in parts))


LAW_FUNCTIONS = {
    "output_distribution": lambda a, b: output_distribution(RULE, draft=a, target=b),
    "emission": lambda a, b: emission(RULE, draft=a, target=b),
    "acceptance_rate": lambda a, b: acceptance_rate(RULE, draft=a, target=b),
    "residual_distribution": lambda a, b: residual_distribution(RULE, 0, draft=a, target=b),
    "kl": kl,
    "total_variation": total_variation,
}
NAMES = {"kl": ("p", "q"), "total_variation": ("p", "q")}


@pytest.fixture(params=LAW_FUNCTIONS)
def law_function(request):
    return LAW_FUNCTIONS[request.param], *NAMES.get(request.param, ("draft", "target"))


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        ([0.5, 0.4], "sum of 0.9"),
        ([0.6, 0.41], "sum of 1.01"),
        ([0.0, 0.0], "sum of 0"),
        ([0.5, 0.5 + 3e-6], "sum of 1.000003"),
        ([1.5, -0.5], "got 1.5 at index (0,)"),
        ([-0.5, 1.5], "got -0.5 at index (0,)"),
        ([0.5, float("nan")], "got nan at index (1,)"),
        ([float("inf"), 0.5], "got inf at index (0,)"),
        ([], "got shape (0,)"),
        (0.5, "got shape ()"),
        (np.empty((3, 0)), "got shape (3, 0)"),
    ],
)
def test_what_is_not_a_law_is_refused_by_name_and_value(law_function, bad, shown):
    function, first, second = law_function
    with refuses(ValueError, first, "must", shown):
        function(bad, GOOD)
    with refuses(ValueError, second, "must", shown):
        function(GOOD, bad)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (GOOD, [0.2, 0.3, 0.5]),
        ([1.0], GOOD),  # numpy would broadcast a vocabulary of one
        (np.full((2, 2), 0.5), np.full((3, 2), 0.5)),
    ],
)
def test_laws_that_do_not_fit_are_refused_with_both_shapes(law_function, a, b):
    function, first, second = law_function
    with refuses(ValueError, f"{first} and {second} must share", np.shape(a), np.shape(b)):
        function(a, b)


def test_the_index_of_a_bad_probability_in_a_batch_is_told():
    batch = np.full((2, 3, 2), 0.5)
    batch[1, 2] = [1.25, -0.25]
    with refuses(ValueError, "draft must be a probability", "got 1.25 at index (1, 2, 0)"):
        output_distribution(RULE, draft=batch, target=GOOD)
    batch[1, 2] = [0.25, 0.5]
    with refuses(ValueError, "target must sum to 1", "0.75"):
        output_distribution(RULE, draft=GOOD, target=batch)


def test_a_single_precision_softmax_is_a_law():
    logits = np.random.default_rng(0).standard_normal(152_000).astype(np.float32)
    law = np.exp(logits) / np.exp(logits).sum()
    assert law.dtype == np.float32
    assert kl(law, law) == 0
    assert kl([1 + 5e-7], [1.0]) >= 0


@pytest.mark.parametrize("rule", [Cactus, CactusExact])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (-1e-9, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (-float("inf"), ValueError),
        (np.float64("nan"), ValueError),
        (True, TypeError),
        (False, TypeError),
        (np.bool_(True), TypeError),
        ("0.5", TypeError),
        (None, TypeError),
        (1j, TypeError),
        ([0.5], TypeError),
    ],
)
def test_a_rule_refuses_a_bad_budget_by_name_and_value(rule, bad, error):
    with refuses(error, "delta must be a", repr(bad)):
        rule(bad)


@pytest.mark.parametrize("rule", [Cactus, CactusExact])
def test_a_rule_takes_any_real_number_of_nats_and_is_a_value(rule):
    for delta in (0, 1, 0.5, np.float32(0.5), np.int64(2)):
        made = rule(delta)
        assert type(made.delta) is float
        assert made.delta == delta
        assert made == rule(float(delta))
        assert hash(made) == hash(rule(float(delta)))
    with pytest.raises(AttributeError):
        rule(1.0).delta = 2.0
    assert Cactus(1.0) != CactusExact(1.0)
    assert SpeculativeSampling() == SpeculativeSampling()


@pytest.mark.parametrize("function", [exact_optimum, second_order_optimum, optimum_gap])
def test_an_optimum_refuses_bad_probabilities_and_budgets(function):
    for bad in (-1e-9, 1 + 1e-9, float("nan"), float("inf")):
        with refuses(ValueError, "target_prob must be a probability in [0, 1], got", repr(bad)):
            function(bad, 1.0)
        with refuses(ValueError, "target_prob", repr(bad), "at index (1,)"):
            function([0.5, bad], 1.0)
    for bad in (-1e-9, float("nan"), float("inf")):
        with refuses(ValueError, "delta must be in [0, 1e100] (nats), got", repr(bad)):
            function(0.5, bad)
        with refuses(ValueError, "delta", repr(bad), "at index (1, 0)"):
            function(0.5, [[1.0], [bad]])


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan"), float("inf")])
def test_binary_kl_and_block_efficiency_refuse_what_is_no_probability(bad):
    with refuses(ValueError, "h must be a probability in [0, 1], got", repr(bad)):
        binary_kl(bad, 0.5)
    with refuses(ValueError, "q must be a probability in [0, 1], got", repr(bad)):
        binary_kl(0.5, bad)
    with refuses(ValueError, "rates must be a probability", repr(bad), "at index (1,)"):
        block_efficiency([0.5, bad])


def test_block_efficiency_refuses_a_scalar():
    with refuses(ValueError, "rates must have shape (..., k)", "0.5"):
        block_efficiency(0.5)


def test_draft_and_target_are_keyword_only():
    for function in (output_distribution, emission, acceptance_rate):
        with pytest.raises(TypeError):
            function(RULE, GOOD, GOOD)
    with pytest.raises(TypeError):
        residual_distribution(RULE, 0, GOOD, GOOD)
