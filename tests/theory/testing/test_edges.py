"""The battery of edge cases finds what enumeration on usual rows cannot."""

from __future__ import annotations

import numpy as np
import pytest

from cactus_theory import (
    Lenience,
)
from cactus_theory.specification import inverse_cdf
from cactus_theory.testing import (
    ConformanceError,
    OnePosition,
    check_edges,
)
from tests.theory.testing.position_samplers import CANDIDATES, PLAIN, SHARED, guarded


@pytest.mark.parametrize("rule", [*CANDIDATES, *SHARED], ids=repr)
def test_the_specification_passes_the_edge_battery(rule):
    check_edges(guarded(rule), rule)


def sps(*, passes=lambda u, p, q: u * p < q, residual=None, invert=inverse_cdf):
    def verifier(token, p, q, accept, recover):
        if passes(accept, p[token], q[token]):
            return token, True
        weights = np.maximum(q - p, 0) if residual is None else residual(p, q)
        return invert(weights if weights.sum() > 0 else q, recover), False

    return verifier


def careless_inverse(weights, uniform):
    cumulative = np.cumsum(weights)
    return int(np.nonzero(cumulative >= uniform * cumulative[-1])[0][0])


def crashing(token, p, q, accept, recover):
    if accept * p[token] < q[token]:
        return token, True
    weights = np.maximum(q - p, 0)
    if not weights.sum() > 0:
        raise RuntimeError("invalid multinomial distribution")
    return inverse_cdf(weights, recover), False


@pytest.mark.parametrize(
    ("words", "verifier"),
    [
        ("target 0 where the draft is not, u = 0, ", sps(passes=lambda u, p, q: u * p <= q)),
        ("draft = target, u = 0.99", sps(passes=lambda u, p, q: u * p < 0.99 * q)),
        ("leading and trailing zeros in the residual", sps(invert=careless_inverse)),
        (
            "padded vocabulary, u = .*recovered token 4",
            sps(invert=lambda w, u: inverse_cdf(w, u) if u < 0.9 else len(w) - 1),
        ),
        (
            "outside a vocabulary of 1",
            lambda n, p, q, u, v: (n + 1, False) if p.size == 1 else sps()(n, p, q, u, v),
        ),
        ("empty residual: RuntimeError", crashing),
        ("recovered token", sps(residual=lambda p, q: q)),
        (
            "accepted drafted token 0 but emitted 1",
            lambda n, p, q, u, v: (1, True) if n == 0 and p.size > 1 else sps()(n, p, q, u, v),
        ),
        ("NaN row", sps(passes=lambda u, p, q: not u * p >= q)),
    ],
)
def test_the_edge_battery_finds(words, verifier):
    check_edges(OnePosition(sps()))
    with pytest.raises(ConformanceError, match=words):
        check_edges(OnePosition(verifier))


def test_a_rule_with_shared_recovery_is_meant_as_it_is_defined_at_the_edges():
    with pytest.raises(ConformanceError):
        check_edges(guarded(PLAIN), Lenience(0.5))
