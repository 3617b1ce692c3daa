"""The newer strategies: what they promise, and the type registered for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    CandidateRule,
    Clamp,
    Rule,
    SharedRecoveryRule,
    SpeculativeSampling,
    output_law,
)
from cactus_theory.specification import verify
from cactus_theory.testing import laws, logits, pairs_with_acceptance, ragged_batches
from cactus_theory.testing._hypothesis_plugin import register

register()  # what the entry point of group "hypothesis" does


@settings(max_examples=60)
@given(data=st.data(), rate=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)))
def test_pairs_have_the_acceptance_asked_for(data, rate):
    p, q = data.draw(pairs_with_acceptance(rate))
    assert p.sum() == pytest.approx(1, abs=1e-14)
    assert q.sum() == pytest.approx(1, abs=1e-14)
    assert np.minimum(p, q).sum() == pytest.approx(rate, abs=1e-14)  # a few roundings of 2^-53


@given(row=logits(dtype="bfloat16"))
def test_bfloat16_logits_have_eight_bits(row):
    assert row.dtype == np.float32
    assert not (row.view(np.uint32) & 0xFFFF).any()
    assert not np.isnan(row).any()
    assert row.max() > -np.inf


@given(batch=ragged_batches())
def test_a_ragged_batch_can_be_verified_row_by_row(batch):
    for tokens, draft, target in zip(*batch, strict=True):
        emitted, accepted = verify(
            SpeculativeSampling(),
            tokens.tolist(),
            draft=draft,
            target=target,
            accept_uniforms=[0.5] * len(tokens),
            recover_uniform=0.5,
        )
        assert len(emitted) == accepted + 1


@given(rule=st.from_type(Rule), p=laws(min_size=3, max_size=3))
def test_any_rule_can_be_drawn_by_its_type(rule, p):
    assert isinstance(rule, Rule)
    assert output_law(rule, draft=p, target=p) == pytest.approx(p, abs=1e-12)


@given(data=st.data(), kind=st.sampled_from([CandidateRule, SharedRecoveryRule, Cactus, Clamp]))
def test_the_strategy_of_a_type_draws_that_type_only(data, kind):
    assert isinstance(data.draw(st.from_type(kind)), kind)


def test_an_acceptance_or_a_grid_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="rate"):
        pairs_with_acceptance(1.5)
    with pytest.raises(ValueError, match="dtype"):
        logits(dtype="int8")
