"""The newer strategies: what they promise, and the types registered for them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    CandidateRule,
    Clamp,
    Divergence,
    Rule,
    SharedRecoveryRule,
    SpeculativeSampling,
    output_distribution,
)
from cactus_theory import divergences as every_divergence
from cactus_theory import rules as every_rule
from cactus_theory.specification import verify
from cactus_theory.testing import (
    distributions,
    divergences,
    logits,
    pairs_with_acceptance,
    ragged_batches,
    rules,
)
from cactus_theory.testing._hypothesis_plugin import register

register()  # what the entry point of group "hypothesis" does

# Fails unless the strategies are registered: a delta drawn as any float may be NaN.
DRAWS = """
import sys
from hypothesis import given, settings, strategies as st
from cactus_theory import Cactus, Divergence, Rule

assert "cactus_theory.testing" in sys.modules
assert "cactus_theory.testing.strategies" not in sys.modules  # until one is needed

@settings(database=None)
@given(st.from_type(Rule), st.from_type(Cactus), st.from_type(Divergence))
def drawn(rule, cactus, divergence):
    assert isinstance(rule, Rule) and type(cactus) is Cactus and cactus.delta >= 0
    assert isinstance(divergence, Divergence)

drawn()
"""


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


@given(rule=st.from_type(Rule), p=distributions(min_size=3, max_size=3))
def test_any_rule_can_be_drawn_by_its_type(rule, p):
    assert isinstance(rule, Rule)
    law = output_distribution(rule, draft=p, target=p[::-1])
    assert law.min() >= 0
    assert law.sum() == pytest.approx(1, abs=1e-12)  # a few roundings of 2^-53


@given(data=st.data(), kind=st.sampled_from([CandidateRule, SharedRecoveryRule, Cactus, Clamp]))
def test_the_strategy_of_a_type_draws_that_type_only(data, kind):
    assert isinstance(data.draw(st.from_type(kind)), kind)


def kinds(module, base):
    """Classes of a module that derive from `base` and can be made."""
    found = [x for x in vars(module).values() if inspect.isclass(x) and issubclass(x, base)]
    return {kind for kind in found if not inspect.isabstract(kind) and kind.__name__[0] != "_"}


def seen(strategy):
    """Types that some hundred draws show, with those of the divergences they hold."""
    types = set()

    @settings(max_examples=400, database=None)
    @given(strategy)
    def look(drawn):
        types.update({type(drawn), type(getattr(drawn, "divergence", None))})

    look()
    return types


def test_the_strategy_of_rules_draws_every_rule_with_candidates_in_every_divergence():
    types = seen(rules())
    assert {SpeculativeSampling, Cactus, CactusExact, CactusSafe} <= types
    assert {kind for kind in types if issubclass(kind, Rule)} == kinds(every_rule, CandidateRule)
    made = kinds(every_divergence, Divergence)
    assert {kind for kind in types if issubclass(kind, Divergence)} == made
    assert seen(divergences()) - {type(None)} == made


def test_all_rules_are_those_of_the_package():
    types = {kind for kind in seen(st.from_type(Rule)) if issubclass(kind, Rule)}
    assert types == kinds(every_rule, Rule)


def test_hypothesis_finds_the_entry_point_by_itself():
    [point] = [point for point in entry_points(group="hypothesis") if point.name == "cactus"]
    assert point.load() is register


@pytest.mark.parametrize(("plugins", "drawn"), [(True, True), (False, False)])
def test_types_can_be_drawn_in_a_process_that_imports_no_strategies(plugins, drawn):
    environment = {k: v for k, v in os.environ.items() if k != "HYPOTHESIS_NO_PLUGINS"}
    if not plugins:
        environment["HYPOTHESIS_NO_PLUGINS"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", DRAWS], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == drawn, done.stderr


def test_an_acceptance_or_a_grid_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="rate"):
        pairs_with_acceptance(1.5)
    with pytest.raises(ValueError, match="dtype"):
        logits(dtype="int8")
