"""The conformance kit on samplers nobody here wrote: those of transformers, as pinned.

What is asserted is what is true of that version, good or bad; docs/samplers.md states it as facts.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # no test reaches for a network; read when transformers loads

from unittest import mock

import numpy as np
import pytest
import torch
from transformers.generation import utils

from cactus_theory import Cactus, Mixture, SpeculativeSampling
from cactus_theory.specification import inverse_cdf
from cactus_theory.testing import (
    ConformanceError,
    OnePosition,
    as_sampler,
    check_by_enumeration,
    check_by_sampling,
    check_counts,
    check_edges,
    specification_verifier,
    tempered,
)
from tests.tiny_models import tiny_llama

PLAIN = SpeculativeSampling()
P = np.array([0.50, 0.26, 0.15, 0.06, 0.03])
Q = np.array([0.05, 0.03, 0.35, 0.28, 0.29])


def driven(accepts, recover):
    """torch's two sources of randomness, replaced by uniforms."""

    def rand_like(ratio):
        return torch.tensor(accepts, dtype=ratio.dtype).reshape(ratio.shape)

    def multinomial(weights, num_samples):
        if not torch.isfinite(weights).all():
            raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
        return torch.tensor([[inverse_cdf(weights[0].numpy(), recover)]])

    return mock.patch.multiple(torch, rand_like=rand_like, multinomial=multinomial)


def logits_of(laws):
    return torch.tensor(np.array(laws)).log()[None]


def their_verifier(weight=None):
    """transformers' verification of one drafted token, in the form the checks take."""
    return OnePosition(their_verification(weight))


def their_verification(weight=None):
    def verifier(token, draft, target, accept, recover):
        ids = torch.tensor([[token]])
        with driven([accept], recover):
            emitted, matches = utils._speculative_sampling(
                ids, logits_of([draft]), 1, logits_of([target, target]), weight
            )
        return emitted[0, 0], matches

    return verifier


def test_speculative_sampling_of_transformers_emits_the_law_of_the_target():
    found = check_by_enumeration(their_verifier(), PLAIN, draft=P, target=Q, cells=40)
    assert found.accepted_mass().sum() == pytest.approx(np.minimum(P, Q).sum(), abs=0.5 / 40)
    assert len(found.unresolved) == 0


def test_its_ensemble_weight_is_the_mixture_rule_and_is_named_so():
    check_by_enumeration(their_verifier(0.5), Mixture(0.5), draft=P, target=Q, cells=40)
    with pytest.raises(ConformanceError, match=r"it matches mixture w = 0\.(49|50|5 )"):
        check_by_enumeration(their_verifier(0.5), PLAIN, draft=P, target=Q, cells=40)


def their_blocks(tokens, draft, target, accept, recover):
    """transformers' verification of whole blocks, row by row; it is not asked without a draft."""
    emitted, accepted = [], []
    for x, p, q, u, v in zip(tokens, draft, target, accept, recover, strict=True):
        with driven(u, v):
            block, matches = utils._speculative_sampling(
                torch.tensor([x]), logits_of(p), len(x), logits_of(q)
            )
        emitted.append(block[0])
        accepted.append(matches)
    return emitted, accepted


def drawn_blocks(tokens, draft, target, seed):
    """The same with torch's own random numbers."""
    torch.manual_seed(seed)
    blocks = [
        utils._speculative_sampling(torch.tensor([x]), logits_of(p), len(x), logits_of(q))
        for x, p, q in zip(tokens, draft, target, strict=True)
    ]
    return [block[0] for block, _ in blocks], [matches for _, matches in blocks]


# Thresholds are multiples of 1/4, and a recovered token is certain: exact on a grid of 4 cells.
BLOCKS = {
    "draft": [[[0.5, 0.5], [0.8, 0.2]], [[0.25, 0.75]]],
    "target": [[[0.75, 0.25], [0.4, 0.6], [0.5, 0.5]], [[0.8125, 0.1875], [0.25, 0.75]]],
}


def test_whole_blocks_follow_their_joint_law_in_tokens_and_matches():
    found = check_by_enumeration(their_blocks, PLAIN, **BLOCKS, cells=4)
    assert found.reported
    assert max(max(slack.values()) for slack in found.tolerances) < 1e-5  # float32, 1e-6 a side
    report = check_by_sampling(drawn_blocks, PLAIN, **BLOCKS, samples=2000, smallest=0.1)
    assert min(report.power.values()) >= 0.999


def test_a_tampered_block_of_theirs_is_named():
    def uncounted(*arguments):
        emitted, _ = their_blocks(*arguments)
        return emitted, [len(block) for block in emitted]

    with pytest.raises(ConformanceError, match="it matches the count includes the recovered or bo"):
        check_by_enumeration(uncounted, PLAIN, **BLOCKS, cells=4)


def test_a_row_without_drafts_cannot_be_verified_by_it():
    with pytest.raises((RuntimeError, IndexError)):
        their_blocks([[]], [np.empty((0, 2))], [np.array([[0.5, 0.5]])], [[]], [0.5])


@pytest.mark.parametrize("rule", [PLAIN, Cactus(0.5), Mixture(0.5)], ids=repr)
def test_our_own_specification_passes_the_checks_of_whole_blocks(rule):
    verifier = specification_verifier(rule)
    check_by_enumeration(verifier, rule)
    check_by_sampling(as_sampler(verifier), rule, smallest=0.05)


def test_the_edge_battery_finds_two_faults_in_it_and_no_more():
    with pytest.raises(ConformanceError) as caught:
        check_edges(their_verifier())
    faults = str(caught.value).splitlines()[1:]
    accepted, crashed = [f for f in faults if "u = 0," in f], [f for f in faults if "Error" in f]
    assert [f.split(", u")[0].strip() for f in accepted] == [
        "target 0 where the draft is not",
        "disjoint supports",
        "one-hot target",
        "one-hot draft and target, apart",
        "draft mass on the padding",
    ]
    assert all("which has no chance of acceptance" in f for f in accepted)
    assert [f.split(":")[0].strip() for f in crashed] == ["empty residual"]
    assert len(faults) == len(accepted) + len(crashed)


def test_a_token_the_target_excludes_is_accepted_at_a_uniform_of_zero():
    half, one_hot = np.array([0.5, 0.5]), np.array([0.0, 1.0])
    emitted, accepted = their_verification()(0, half, one_hot, 0.0, 0.5)
    assert (int(emitted), int(accepted)) == (0, 1)
    # torch.rand does return 0: float32 uniforms are multiples of 2^-24
    assert torch.rand(2**24, generator=torch.Generator().manual_seed(1)).min() == 0


@pytest.mark.parametrize("weight", [None, 0.5])
def test_an_empty_residual_crashes_unless_an_ensemble_weight_is_set(weight):
    # In float32 this draft is 1 at token 0, as is the target, and still draws token 1 at times.
    draft, target = torch.tensor([[[0.0, -20.0]]]), torch.tensor([[[0.0, -torch.inf]] * 2])
    assert draft.softmax(-1)[0, 0, 0] == 1
    assert draft.softmax(-1)[0, 0, 1] > 0

    def verify():
        return utils._speculative_sampling(torch.tensor([[1]]), draft, 1, target, weight)

    with mock.patch.object(torch, "rand_like", lambda ratio: torch.full_like(ratio, 0.75)):
        if weight is None:
            with pytest.raises(RuntimeError, match="probability tensor contains"):
                verify()
        else:
            emitted, _ = verify()
            assert emitted.tolist() == [[0]]


# Assisted generation, on two random models of seven tokens.


@pytest.fixture(scope="module")
def models():
    target, draft = (tiny_llama(seed, initializer_range=0.3) for seed in (0, 1))
    draft.generation_config.num_assistant_tokens = 1
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    return target, draft


PROMPT = torch.tensor([[1, 2, 3]])


def assisted(models, temperature):
    target, draft = models
    return target.generate(
        PROMPT,
        assistant_model=draft,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=2,
    )


def law(model, temperature=1.0):
    logits = model(PROMPT).logits[0, -1].double()
    return (logits / temperature).softmax(-1).numpy()


def drafted_law(models, temperature):
    """The law that assisted generation hands to the verification as the draft's."""
    seen = []
    real = utils._speculative_sampling

    def spy(ids, candidate_logits, *rest, **options):
        seen.append(candidate_logits[0, 0].double().softmax(-1).numpy())
        return real(ids, candidate_logits, *rest, **options)

    with mock.patch.object(utils, "_speculative_sampling", spy):
        assisted(models, temperature)
    return seen[0]


@pytest.mark.parametrize(("temperature", "effective"), [(0.7, 0.49), (1.0, 1.0), (1.5, 2.25)])
def test_assisted_generation_warps_the_draft_twice(models, temperature, effective):
    drafted = drafted_law(models, temperature)
    # float32 logits of magnitude about 4, divided twice
    assert drafted == pytest.approx(tempered(law(models[1]), effective), abs=1e-6)
    if temperature != 1:
        assert abs(drafted - law(models[1], temperature)).sum() / 2 > 0.02


def test_the_law_emitted_by_assisted_generation_is_right_all_the_same(models):
    # The twice warped law is also the one judged by: what suffers is the acceptance.
    laws = {"draft": drafted_law(models, 0.7), "target": law(models[0], 0.7)}
    torch.manual_seed(0)
    firsts = [int(assisted(models, 0.7)[0, PROMPT.shape[1]]) for _ in range(600)]
    counts = np.bincount(firsts, minlength=len(laws["target"]))
    report = check_counts(counts, PLAIN, **laws, smallest=0.2)
    assert {"everything accepted (the draft itself)", "mixture w = 0.5"} < set(report.power)


def test_a_verifier_that_trusts_the_nominal_draft_law_would_be_told_the_temperature(models):
    nominal, target, drafted = law(models[1], 0.7), law(models[0], 0.7), drafted_law(models, 0.7)

    rng = np.random.default_rng(0)
    tokens = rng.multinomial(2_000_000, drafted / drafted.sum())
    kept = rng.binomial(tokens, np.minimum(target / nominal, 1))
    residual = np.maximum(target - nominal, 0)
    counts = kept + rng.multinomial((tokens - kept).sum(), residual / residual.sum())
    with pytest.raises(ConformanceError, match=r"it matches draft temperature 0\.(69|7)"):
        check_counts(counts, PLAIN, draft=nominal, target=target)
