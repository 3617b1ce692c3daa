"""The conformance kit on vLLM's two rejection samplers, as pinned, driven without an engine.

What is asserted is what is true of that version, good or bad; docs/samplers.md states it as facts.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from cactus_theory import Cactus, Clamp, OneLevelRecovery, SpeculativeSampling, verify_block
from cactus_theory.specification import verify
from cactus_theory.testing import (
    ConformanceError,
    OnePosition,
    RaggedBatch,
    check_by_sampling,
    check_counts,
    check_edges,
    ragged_batches,
    samples_needed,
)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]

PLAIN = SpeculativeSampling()
P = np.array([0.5, 0.02, 0.42, 0.06])
Q = np.array([0.09, 0.14, 0.45, 0.32])


def rows_of(tokens, draft, target):
    """A batch with a row for each drafted token, all of one law."""
    token_rows = np.asarray(tokens, dtype=np.int64)[:, None]
    return RaggedBatch(
        list(token_rows),
        [draft[None]] * len(token_rows),
        [np.array([target] * 2)] * len(token_rows),
    )


def verification(runner, rule=None):
    """Of one drafted token; the second uniform seeds the recovery."""

    def verifier(token, draft, target, accept, recover):
        emitted = runner.emitted(
            rows_of([token], draft, target),
            rule=rule,
            uniforms=[accept],
            seeds={0: int(recover * 2**31)},
        )[0]
        return emitted[0], len(emitted) == 2

    return verifier


def counting(runner, rule=None, *, law=True):
    """Counts of emitted tokens by drafts of the sampler's own."""

    def counts(draft, target, count):
        torch.manual_seed(0)
        tokens = torch.multinomial(torch.from_numpy(draft), count, replacement=True)
        emitted = runner.emitted(rows_of(tokens, draft, target), rule=rule, law=law)
        return np.bincount([row[0] for row in emitted], minlength=draft.size)

    return counts


@pytest.fixture(scope="module")
def smallest(interpreted):
    """Total variation a test of a law must see; interpreted, a row takes some 40 ms."""
    return 0.1 if interpreted else 0.01


@pytest.fixture(scope="module")
def coarse(interpreted):
    """The same where several distributions are tested at once."""
    return 0.3 if interpreted else 0.05


def check_law(counts, rule, *, draft, smallest):
    laws = {"draft": draft, "target": Q, "smallest": smallest}
    samples = max(samples_needed(rule, **laws), int(5 / smallest**2))
    return check_counts(counts(draft, Q, samples), rule, **laws)


def test_the_law_emitted_is_that_of_the_target(runner, smallest):
    check_law(counting(runner), PLAIN, draft=P, smallest=smallest)


@pytest.mark.parametrize("delta", [0.1, 1.0])
def test_with_one_logit_shifted_it_is_cactus(runner, smallest, delta):
    report = check_law(counting(runner, Cactus(delta)), Cactus(delta), draft=P, smallest=smallest)
    assert "plain speculative sampling (no boost)" in report.power


@pytest.mark.parametrize("rule", [Clamp(0.05), OneLevelRecovery(Cactus(0.1))], ids=repr)
def test_with_its_row_replaced_it_is_any_ordered_rule(runner, smallest, rule):
    smallest = max(smallest, 0.03)  # a row takes a millisecond
    report = check_law(counting(runner, rule), rule, draft=P, smallest=smallest)
    assert "plain speculative sampling (no boost)" in report.power


def test_under_the_clamp_a_draft_without_a_law_is_certain(runner, smallest):
    counts = counting(runner, Clamp(0.05), law=False)
    check_law(counts, Clamp(0.05), draft=np.eye(4)[0], smallest=max(smallest, 0.03))


MIXED = {  # by what the request asks
    Cactus(0.1): {"cactus_delta": 0.1},
    Clamp(0.05): {"cactus_rule": "clamp", "cactus_delta": 0.05},
    PLAIN: None,
    Cactus(1.0): {"cactus_rule": "cactus:delta=1"},
}


def test_each_request_of_a_mixed_batch_follows_its_own_rule(runner, coarse):
    samples = max(
        max(samples_needed(rule, draft=P, target=Q, smallest=coarse) for rule in MIXED),
        int(5 / coarse**2),
    )
    torch.manual_seed(0)
    draft = torch.from_numpy(P)
    tokens = torch.multinomial(draft, samples * len(MIXED), replacement=True)
    emitted = runner.emitted(rows_of(tokens, P, Q), own=list(MIXED.values()) * samples)
    for place, rule in enumerate(MIXED):
        firsts = [row[0] for row in emitted[place :: len(MIXED)]]
        counts = np.bincount(firsts, minlength=Q.size)
        check_counts(counts, rule, draft=P, target=Q, smallest=coarse)


@pytest.mark.parametrize("own", MIXED.values(), ids=map(repr, MIXED))
def test_a_seeded_row_emits_the_same_beside_rows_of_other_rules(runner, own):
    length, others = 4, list(MIXED.values())
    one = RaggedBatch(
        [np.zeros(length, dtype=np.int64)],
        [np.array([P] * length)],
        [np.array([Q] * (length + 1))],
    )
    five = RaggedBatch(*(part * 5 for part in one))
    for seed in range(10):
        alone = runner.emitted(one, own=[own], seeds={0: seed})[0]
        among = runner.emitted(five, own=[*others, own], seeds={4: seed})[4]
        assert among[:length] == alone[:length]  # the first runner draws its bonus elsewhere


@given(ragged_batches(), st.randoms(use_true_random=False))
@pytest.mark.parametrize("rule", [PLAIN, Clamp(0.1)], ids=repr)
def test_block_verification_keeps_what_its_specification_keeps(runner_v2, rule, batch, random):
    tokens, draft = np.concatenate(batch.tokens), np.concatenate(batch.draft)
    uniforms = [random.uniform(2.0**-30, 1 - 2.0**-30) for _ in tokens]
    assume((draft[np.arange(tokens.size), tokens] > 1e-6).all())  # ratios are right in float32
    emitted = runner_v2.emitted(batch, rule=rule, uniforms=uniforms, block=True)
    left = list(uniforms)
    for row, drafts, laws_p, laws_q in zip(emitted, *batch, strict=True):
        mine, left = left[: drafts.size], left[drafts.size :]
        kept = {  # where a uniform is within float32's rounding of its threshold, either is right
            verify_block(
                rule,
                drafts,
                draft=laws_p,
                target=laws_q,
                accept_uniforms=[min(max(u + nudge, 0.0), 1 - 1e-9) for u in mine],
                recover_uniform=0.5,
            )[1]
            for nudge in (-1e-5, 0.0, 1e-5)
        }
        assert len(row) - 1 in kept
        assert row[:-1] == drafts[: len(row) - 1].tolist()


@pytest.mark.parametrize("rule", [PLAIN, Clamp(0.05)], ids=repr)
def test_block_verification_emits_the_rule_after_every_prefix_that_is_kept(runner_v2, rule):
    # Given that the first draft is kept, the second token has the emitted distribution too.
    laws = {"draft": P, "target": Q, "smallest": 0.2}
    count = samples_needed(rule, **laws)
    torch.manual_seed(0)
    firsts, seconds = [], []
    while len(seconds) < count:
        drafts = torch.multinomial(torch.from_numpy(P), 2 * count, replacement=True).view(-1, 2)
        batch = RaggedBatch(
            list(drafts.numpy()), [np.array([P] * 2)] * count, [np.array([Q] * 3)] * count
        )
        blocks = runner_v2.emitted(batch, rule=rule, block=True)
        firsts += [block[0] for block in blocks]
        seconds += [block[1] for block in blocks if len(block) > 1]
    for found in (firsts, seconds):
        check_counts(np.bincount(found, minlength=Q.size), rule, **laws)


def test_a_draft_without_a_law_is_certain_and_emits_the_shifted_candidate(runner, smallest):
    counts = counting(runner, Cactus(0.1), law=False)
    check_law(counts, Cactus(0.1), draft=np.eye(4)[0], smallest=smallest)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_token_is_judged_by_the_laws_after_the_temperature(runner, temperature):
    batch = rows_of([0, 0], np.array([0.6, 0.4]), np.array([0.3, 0.7]))
    rows = runner.emitted(batch, uniforms=[0.49, 0.51], temperature=[temperature] * 2)
    assert [len(row) - 1 for row in rows] == [1, 0]  # .3 / .6 = 1/2


def faults_found(runner, rule=None):
    verifier = OnePosition(verification(runner, rule))
    with pytest.raises(ConformanceError) as caught:
        check_edges(verifier, rule, largest_uniform=runner.largest_uniform)
    return [fault.strip() for fault in str(caught.value).splitlines()[1:]]


@pytest.mark.parametrize("rule", [None, Cactus(0.5)], ids=["stock", "shifted"])
def test_the_first_runner_accepts_what_the_target_excludes_at_a_uniform_of_zero(runner_v1, rule):
    faults = faults_found(runner_v1, rule)
    assert [fault.split(", u = 0,")[0] for fault in faults] == [
        "target 0 where the draft is not",
        "disjoint supports",
        "one-hot target",
        "one-hot draft and target, apart",
        "draft mass on the padding",
    ]
    assert all("which has no chance of acceptance" in fault for fault in faults)


def test_the_second_runner_rejects_a_certain_token_at_the_largest_uniform(runner_v2):
    # log u + log p rounds to log p; Triton's generator does return 1 - 2^-24
    assert np.float32(2**31 - 1) * np.float32(4.6566127342e-10) == 1 - 2.0**-24
    (fault,) = faults_found(runner_v2)
    assert fault.startswith("draft = target, u = 0.999999940")
    assert fault.endswith("which is always accepted")


def test_with_one_logit_shifted_the_second_runner_passes_the_edge_battery(runner_v2):
    check_edges(
        OnePosition(verification(runner_v2, Cactus(0.5))),
        Cactus(0.5),
        largest_uniform=runner_v2.largest_uniform,
    )


def test_an_empty_residual_of_the_first_runner_emits_token_0_which_the_target_excludes(runner_v1):
    # The draft's law is one float32 above the target's at token 1: no token has residual mass.
    draft, target = np.array([0, 0.5 + 2.0**-24, 0.5]), np.array([0, 0.5, 0.5])
    assert verification(runner_v1)(1, draft, target, 1 - 2.0**-24, 0.5) == (0, False)


def test_an_empty_residual_of_the_second_runner_emits_token_0_which_the_target_excludes(runner_v2):
    law = np.array([0, 0.1, 0.9])
    assert verification(runner_v2)(1, law, law, 1 - 2.0**-24, 0.5) == (0, False)


@given(ragged_batches(), st.randoms(use_true_random=False))
def test_a_ragged_batch_keeps_what_the_specification_keeps(runner, batch, random):
    tokens, draft = np.concatenate(batch.tokens), np.concatenate(batch.draft)
    target = np.concatenate([laws[:-1] for laws in batch.target])
    uniforms = np.array([random.uniform(2.0**-30, 1 - 2.0**-30) for _ in tokens])
    drafted, wanted = (laws[np.arange(tokens.size), tokens] for laws in (draft, target))
    assume((drafted > 1e-30).all())  # else 0 in float32
    assume((abs(uniforms * drafted - wanted) > 1e-5 * drafted).all())  # else a tie in float32
    emitted = runner.emitted(batch, uniforms=uniforms.tolist())
    for row, drafts, laws_p, laws_q in zip(emitted, *batch, strict=True):
        mine, uniforms = uniforms[: drafts.size], uniforms[drafts.size :]
        expected, kept = verify(
            PLAIN, drafts, draft=laws_p, target=laws_q, accept_uniforms=mine, recover_uniform=0.5
        )
        assert len(row) == kept + 1
        assert row[:kept] == expected[:kept]
        if kept == drafts.size or np.maximum(laws_q[kept] - laws_p[kept], 0).sum() > 1e-5:
            assert laws_q[kept, row[kept]] > 0  # else the residual is empty in float32


@pytest.mark.parametrize("rule", [PLAIN, Cactus(0.1)], ids=["stock", "shifted"])
def test_whole_blocks_of_a_ragged_batch_follow_their_joint_law(runner, rule, smallest, interpreted):
    def sampler(tokens, draft, target, seed):
        torch.manual_seed(seed)
        drafted = [np.array(row, dtype=np.int64) for row in tokens]
        batch = RaggedBatch(drafted, list(draft), list(target))
        emitted = runner.emitted(batch, rule=None if rule == PLAIN else rule)
        return emitted, [len(row) - 1 for row in emitted]

    samples = max(samples_needed(rule, smallest=smallest), 300 if interpreted else 5_000)
    check_by_sampling(sampler, rule, samples=samples, smallest=smallest)


def test_the_second_runner_draws_from_the_target_where_there_is_no_draft(runner_v2, smallest):
    def counts(_, target, count):
        torch.manual_seed(0)
        none = RaggedBatch(
            [np.empty(0, dtype=np.int64)] * count,
            [np.empty((0, target.size))] * count,
            [target[None]] * count,
        )
        return np.bincount(np.concatenate(runner_v2.emitted(none)), minlength=target.size)

    check_law(counts, PLAIN, draft=P, smallest=smallest)


def test_a_placeholder_is_rejected(runner):
    laws = np.array([[0.5, 0.25, 0.25]] * 3)  # every token would be accepted
    (row,) = runner.emitted(RaggedBatch([np.array([-1, 0])], [laws[:2]], [laws]))
    assert len(row) == 1
    assert row[0] in (0, 1, 2)


def test_a_recovered_token_may_lie_in_the_last_tile_of_a_padded_vocabulary(runner):
    size, padding = 8_192 + 5, 3  # the widest tile of a kernel is 8192 tokens
    draft, target = np.eye(1, size)[0], np.eye(1, size, size - padding - 1)[0]
    assert runner.emitted(rows_of([0], draft, target)) == [[size - padding - 1]]


@pytest.mark.parametrize("temperature", [[0, 0, 0], [0, 0, 1]])
def test_greedy_rows_keep_what_equals_the_argmax(runner, temperature):
    batch = RaggedBatch(
        [np.array([2, 2]), np.array([2, 0]), np.array([0])],
        [np.array([P, P]), np.array([P, P]), P[None]],
        [np.array([Q] * 3), np.array([Q] * 3), np.array([Q] * 2)],
    )
    rows = runner.emitted(batch, temperature=temperature)
    assert rows[0][:2] == [2, 2]
    assert len(rows[0]) == 3
    assert rows[1] == [2, 2]
    if temperature[2] == 0:
        assert rows[2] == [2]


def test_a_seeded_row_emits_the_same_in_any_batch(runner):
    def block(length):
        return (
            np.zeros(length, dtype=np.int64),
            np.array([P] * length),
            np.array([Q] * length + [Q]),
        )

    for seed in range(20):  # of 20 blocks of five some would differ
        alone = runner.emitted(RaggedBatch(*([part] for part in block(5))), seeds={0: seed})
        batch = RaggedBatch(*map(list, zip(block(3), block(5), strict=True)))
        among = runner.emitted(batch, seeds={1: seed})[1]
        assert among[:5] == alone[0][:5]  # the first runner draws its bonus tokens elsewhere
