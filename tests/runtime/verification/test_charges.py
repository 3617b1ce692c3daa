"""Charges over a large vocabulary: few tokens in float64, against float64 formulas for all."""

import numpy as np
import pytest
import torch

from cactus_runtime.verification.charges import CandidateCharges, Charges, dense_charges
from cactus_theory import Cactus, CactusExact, CactusSafe, SpeculativeSampling
from tests.runtime.kernel_blocks import HalfWay

RULES = [
    *(kind(delta) for kind in (Cactus, CactusSafe, CactusExact) for delta in (1e-3, 0.1, 1.0)),
    SpeculativeSampling(),
    HalfWay(),
]


def positions(count, *, vocabulary=5000, noise=1.0, seed=0):
    """Draft probabilities in float32, and logits; at one token only the draft is confident."""
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, vocabulary, generator=rng)
    draft = logits + noise * torch.randn(count, vocabulary, generator=rng)
    draft[:, 7] = draft.amax(-1) + 1
    logits[0, 7] = -torch.inf  # which the target excludes at the first position
    return draft.softmax(-1), logits


def charges(rule, draft, logits):
    found = CandidateCharges(rule)
    for p, row in zip(draft.split(1), logits.split(1), strict=True):
        found.add(p, row.softmax(-1), row, row.double().logsumexp(-1))
    return found.total()


@pytest.mark.parametrize("noise", [0.3, 1.0])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_charges_agree_with_float64_formulas_for_all_tokens(rule, noise):
    draft, logits = positions(4, noise=noise)
    found = charges(rule, draft, logits)
    wanted = dense_charges(rule, draft, logits.softmax(-1, dtype=torch.float64))
    for name in Charges._fields:  # float32: sums of 5000 rounded terms
        np.testing.assert_allclose(
            getattr(found, name), getattr(wanted, name), rtol=2e-6, atol=2e-7, err_msg=name
        )


def test_some_tokens_are_uncertain_and_some_positions_have_many():
    """Else the tests of this file would compare one formula with itself."""
    draft, logits = positions(4, noise=1.0)
    found = CandidateCharges(Cactus(0.1))
    found.add(draft, logits.softmax(-1), logits, logits.double().logsumexp(-1))
    assert all(0 < len(few) < 5000 / 64 for few, _ in found._uncertain)
    found = CandidateCharges(Cactus(1e-6))
    found.add(draft, logits.softmax(-1), logits, logits.double().logsumexp(-1))
    assert [len(few) for few, _ in found._uncertain] == [0] * 4


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_the_charges_of_a_position_do_not_depend_on_the_others(rule):
    draft, logits = positions(5)
    together = charges(rule, draft, logits)
    for i in range(5):
        alone = charges(rule, draft[i : i + 1], logits[i : i + 1])
        assert [figure.item() for figure in alone] == [figure[i].item() for figure in together]
