"""What is observed is given the name of the mistake that explains it, and its parameter."""

from __future__ import annotations

import pytest

from cactus_theory import (
    Cactus,
    Lenience,
    Mixture,
)
from cactus_theory.testing import (
    ConformanceError,
    check_counts,
    diagnose,
    wrong_distributions,
)
from tests.theory.testing.position_samplers import (
    LOSSY,
    PLAIN,
    P,
    Q,
    counting,
    parts,
    powered,
    variant,
)


@pytest.mark.parametrize(
    ("pattern", "value", "solve"),
    [
        ("draft temperature", 0.49, parts(PLAIN, proposal=lambda p: powered(p, 1 / 0.49))),
        ("mixture w =", 0.3, variant(Mixture(0.3))),
        ("lenience l =", 0.4, variant(Lenience(0.4))),
        ("Cactus, delta =", 0.25, variant(Cactus(0.25))),
    ],
)
def test_a_parameter_is_fitted_to_a_few_percent(pattern, value, solve):
    counts = counting(solve)(P, Q, 4_000_000, 3)
    name, distance = diagnose(counts, PLAIN, draft=P, target=Q)[0]
    assert name.startswith(pattern)
    assert float(name.split()[-1]) == pytest.approx(value, rel=0.03)
    assert distance < 1e-5  # G / 2n, with G about its 4 degrees of freedom


def test_the_exact_laws_of_the_catalogue_are_named_without_noise():
    family = lambda name: name.split(",")[0].split(" = ")[0].rstrip("0123456789.")  # noqa: E731
    for rule in (PLAIN, LOSSY):
        wrong = wrong_distributions(rule, draft=P, target=Q)
        for law in wrong.values():
            found = diagnose(law, rule, draft=P, target=Q)
            same = {family(name) for name, other in wrong.items() if abs(other - law).max() < 1e-12}
            # A fitted family may meet another's law by chance; the right one is among the first.
            assert found[0][1] < 1e-7
            assert same & {family(name) for name, distance in found if distance < 1e-7}


def test_a_law_found_right_is_said_to_be_right():
    counts = counting(parts(LOSSY))(P, Q, 100_000, 0)
    assert (
        diagnose(counts, LOSSY, draft=P, target=Q)[0][0] == "the distribution of Cactus(delta=0.1)"
    )


def test_a_law_that_nothing_explains_is_not_given_a_name():
    with pytest.raises(ConformanceError, match="nothing in the catalogue fits"):
        check_counts([20_000] * 5, PLAIN, draft=P, target=Q)
