"""Rows of the emitted distribution in torch, against the theory's formulas in numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_runtime import judge
from cactus_runtime.verification.emitted import by_candidates, emitted_rows
from cactus_theory import Cactus, CactusExact, CactusSafe, Clamp, Lenience, output_distribution
from cactus_theory.testing.strategies import pairs

CANDIDATES = [Cactus(0.0), Cactus(0.05), Cactus(2.0), CactusExact(0.1), CactusSafe(0.3)]


def both(pair):
    return [torch.tensor(np.asarray(law, dtype=float))[None] for law in pair]


@pytest.mark.parametrize("rule", CANDIDATES)
@given(pair=pairs())
def test_the_torch_formula_is_the_theorys(rule, pair):
    p, q = both(pair)
    found = by_candidates(rule, p, q, rule.accepted_mass(p, q, xp=torch))[0].numpy()
    wanted = output_distribution(rule, draft=p[0].numpy(), target=q[0].numpy())
    # Both round each of at most V steps; a residual that is empty in one may hold 1e-16 in the
    # other, so the comparison is absolute.
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("rule", [Cactus(0.1), Lenience(0.5), Clamp(0.05)])
def test_rows_do_not_depend_on_where_they_are_computed(rule, monkeypatch):
    rng = np.random.default_rng(1)
    p, q = (torch.tensor(rng.dirichlet(np.full(50, 0.3), size=4)) for _ in range(2))
    host = emitted_rows(rule, p, q)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    for one, other in zip(emitted_rows(rule, p, q), host, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-14)  # order of summation


@given(
    pair=pairs(),
    rule=st.sampled_from([*CANDIDATES, Lenience(0.6), Clamp(0.05)]),
    uniforms=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2),
    device=st.booleans(),
)
def test_a_judged_token_carries_the_logarithm_of_what_it_was_drawn_from(
    pair, rule, uniforms, device
):
    p, q = both(pair)
    token = int(p.argmax())
    with pytest.MonkeyPatch.context() as patch:
        if device:
            patch.setattr(torch.Tensor, "is_cpu", False)
        found = judge(
            rule,
            torch.tensor([[token]]),
            draft_probs=p[None],
            target_logits=torch.stack([q[0], q[0]])[None].log(),
            accept_uniforms=torch.tensor([[uniforms[0]]]).double(),
            recover_uniforms=torch.tensor([uniforms[1]]).double(),
            emitted_logprobs=True,
        )
    first = int(found.emitted[0, 0])
    out = output_distribution(rule, draft=p[0].numpy(), target=q[0].numpy())
    # q is read from logits again: a few ulp, relative to the probability
    assert np.exp(float(found.emitted_logprobs[0, 0])) == pytest.approx(out[first], rel=1e-9)
    assert np.exp(float(found.warped_logprobs[0, 0])) == pytest.approx(float(q[0, first]), rel=1e-9)
    if int(found.accepted[0]) == 1:  # the bonus token is the target's own
        assert found.emitted_logprobs[0, 1] == found.warped_logprobs[0, 1]
