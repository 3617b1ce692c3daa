"""What a rule says of torch, against what it does there."""

from __future__ import annotations

import numpy as np
import pytest

from cactus_theory import (
    KL,
    Alpha,
    Cactus,
    CactusExact,
    CactusSafe,
    CandidateRule,
    ChiSquare,
    Clamp,
    JensenShannon,
    Lenience,
    Mixture,
    OneLevelRecovery,
    ReverseKL,
    Rule,
    SharedRecoveryRule,
    SpeculativeSampling,
    SquaredHellinger,
    TopKAcceptance,
    TotalVariation,
    TypicalAcceptance,
)
from cactus_theory.emitted import emission_sums
from cactus_theory.rules.registry import RULES

READY = [
    *(SpeculativeSampling(), Cactus(0.3), CactusSafe(0.3)),
    *(CactusExact(0.3, d) for d in (KL(), ChiSquare(), TotalVariation(), SquaredHellinger())),
    *(CactusExact(0.3, Alpha(order)) for order in (0.5, 1.0, 2.0)),
    *(Lenience(0.5), Mixture(0.3), TypicalAcceptance(), TopKAcceptance(1), TopKAcceptance(3)),
    *(OneLevelRecovery(Cactus(0.1)), OneLevelRecovery(SpeculativeSampling())),
    *(Clamp(0.05, d) for d in (KL(), ReverseKL(), ChiSquare(), TotalVariation(), JensenShannon())),
    *(Clamp(0.05, d) for d in (SquaredHellinger(), Alpha(-0.5), Alpha(0.0), Alpha(1.5))),
    *(Clamp(0.0), Clamp(100.0), Clamp(1.0, TotalVariation())),
]
NUMPY_ONLY = [
    *(CactusExact(0.3, d) for d in (ReverseKL(), JensenShannon(), Alpha(0.0), Alpha(1.5))),
    OneLevelRecovery(CactusExact(0.3, JensenShannon())),
]


EXAMPLES = [entry.example() for entry in RULES.values()]
READY += [rule for rule in EXAMPLES if rule.torch_ready and rule not in READY]
NUMPY_ONLY += [rule for rule in EXAMPLES if not rule.torch_ready and rule not in NUMPY_ONLY]


def laws():
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.ones(7), (2, 3, 2))
    q[0, 0], p[1, 0] = np.eye(7)[2], q[1, 0]  # a certain target, and equal laws
    q[2, 1, :4] = 0
    return p, q / q.sum(axis=-1, keepdims=True)


def evaluated(rule, p, q, xp):
    """Everything that takes a namespace, and the account."""
    yield from (rule.accepted_mass(p, q, xp=xp), *vars(emission_sums(rule, p, q, xp=xp)).values())
    if isinstance(rule, CandidateRule):
        yield from (rule.boost(q, xp=xp), rule.shrink(q, xp=xp))
        yield rule.acceptance_probability(p, q, xp=xp)
    else:
        yield from rule.accepted_and_emitted(p, q, xp=xp)
    if isinstance(rule, SharedRecoveryRule):
        yield rule.shared_weights(p, q, xp=xp)


@pytest.mark.parametrize("rule", READY, ids=str)
def test_a_rule_that_is_ready_for_torch_gives_there_what_it_gives_over_numpy(torch, rule):
    assert rule.torch_ready is True
    p, q = laws()
    tensors = [torch.tensor(x) for x in (p, q)]
    for got, expected in zip(
        evaluated(rule, *tensors, torch), evaluated(rule, p, q, np), strict=True
    ):
        assert got.dtype == torch.float64
        # torch's exp and log differ from numpy's by an ulp; sums of 7 terms in another order.
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("rule", NUMPY_ONLY, ids=str)
def test_a_rule_that_is_not_ready_refuses_torch_in_a_sentence(torch, rule):
    assert rule.torch_ready is False
    p, q = (torch.tensor(x) for x in laws())
    with pytest.raises(TypeError, match="numpy"):
        emission_sums(rule, p, q, xp=torch)


def test_a_rule_of_ones_own_is_ready_if_it_is_a_formula_and_does_not_say_otherwise():
    class HalfWay(CandidateRule):
        def boost(self, target_prob, *, xp=np):
            return (1 + target_prob) / 2

        def shrink(self, target_prob, *, xp=np):
            return 0.5 * xp.ones_like(target_prob)

    class Tabulated(HalfWay):
        torch_ready = False

    class AcceptAll(Rule):
        def accepted_mass(self, draft, target, *, xp=np):
            return draft

        def recovery_weights(self, token, draft, target):
            return target

    assert HalfWay().torch_ready
    assert not Tabulated().torch_ready
    assert not AcceptAll().torch_ready
