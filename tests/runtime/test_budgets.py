"""Budgets of whole texts in the decoder, and what an interruption leaves."""

import gc
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_runtime import Decoder, Proposal, Request
from cactus_theory import Cactus, CactusExact, Lenience, SpeculativeSampling
from tests.runtime.prefix_model import alike

RULES = [Cactus(0.5), CactusExact(0.5), Lenience(0.5)]
TARGET, DRAFT = alike(7)
DECODER = Decoder(TARGET, draft=DRAFT)


def decode(**options):
    return DECODER.stream(Request([1, 2], **options)).finish()


@given(
    st.sampled_from(RULES),
    st.floats(0, 3),
    st.floats(0, 1.5),
    st.integers(0, 2**64 - 1),
    st.integers(1, 5),
)
def test_no_budget_is_ever_passed_and_one_that_suffices_changes_nothing(
    rule, max_kl, max_total_variation, seed, num_draft_tokens
):
    options = {"seed": seed, "num_draft_tokens": num_draft_tokens, "max_new_tokens": 8}
    free = decode(rule=rule, **options)
    bound = decode(rule=rule, max_kl=max_kl, max_total_variation=max_total_variation, **options)
    assert bound.kl_bound <= max_kl
    assert bound.total_variation <= max_total_variation
    # the ledger rounds sums up: a budget within rounding of the need may not suffice
    if free.kl_bound < max_kl - 1e-9 and free.total_variation < max_total_variation - 1e-9:
        assert bound.trace == free.trace
    # up to the first position that it cannot pay, a budget changes nothing
    for ours, theirs in zip(bound.verdicts, free.verdicts, strict=False):
        if ours.total_variation == 0 < theirs.total_variation:
            assert ours.boosted == ours.target_prob or rule == Lenience(0.5)
            break
        assert ours == theirs


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_budget_of_zero_is_plain_speculative_sampling_token_for_token(rule):
    for seed in range(4):
        options = {"seed": seed, "max_new_tokens": 20}
        plain = decode(rule=SpeculativeSampling(), **options)
        for name in ("max_kl", "max_total_variation"):
            assert decode(rule=rule, **{name: 0.0}, **options).tokens == plain.tokens


def test_budgets_of_a_batch_are_each_request_s_own():
    batch = [
        Request([1, 2], rule=Cactus(0.5), max_kl=budget, seed=i, max_new_tokens=20)
        for i, budget in enumerate([torch.inf, 0.0, 0.5, 2.0, torch.inf])
    ]
    results = DECODER.batch(batch, batch_size=5).finish()
    for request, result in zip(batch, results, strict=True):
        assert result.kl_bound <= request.max_kl
    assert results[0].kl_bound > 2 < results[4].kl_bound
    assert results[2].kl_bound > 0


# Interruption -----------------------------------------------------------------------------------

BATCH = [Request([i], rule=Cactus(0.3), seed=i, max_new_tokens=9 + i) for i in range(4)]


def undisturbed():
    return [result.trace for result in DECODER.batch(BATCH, batch_size=3).finish()]


def check_partial(results):
    """Beginnings of the undisturbed results, in whole blocks; and the decoder still works."""
    for result, whole in zip(results, undisturbed(), strict=True):
        assert result.trace == whole[: len(result.trace)]
        assert sum(block.emitted for block in result.blocks) == len(result.trace)
        assert (result.finish_reason == "length") == (len(result.trace) == len(whole))
        assert result.finish_reason in ("length", "interrupted")


@pytest.mark.parametrize("count", [1, 2, 7, 25])
def test_an_interruption_of_a_batch_returns_what_was_decoded(count):
    seen = []

    def interrupt(index, token):
        seen.append((index, token))
        if len(seen) == count:
            raise KeyboardInterrupt

    results = DECODER.batch(BATCH, batch_size=3).finish(interrupt)
    check_partial(results)
    assert count <= sum(len(result.trace) for result in results) < 42
    for index, result in enumerate(results):
        told = [token for i, token in seen if i == index]
        assert tuple(told) == result.trace[: len(told)]


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_ctrl_c_within_a_pass_returns_the_blocks_before_it(passes):
    """The signal itself, raised while the target reads."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # may start ignored
    done = []

    def press(*_):
        done.append(1)
        if len(done) == passes:
            signal.raise_signal(signal.SIGINT)

    hook = TARGET.register_forward_pre_hook(press)
    try:
        results = DECODER.batch(BATCH, batch_size=3).finish()
    finally:
        hook.remove()
        signal.signal(signal.SIGINT, previous)
    check_partial(results)
    assert max(len(result.blocks) for result in results) == passes - 1
    assert results[2].finish_reason == "interrupted"


def test_a_decoding_that_is_dropped_or_left_leaves_the_decoder_usable():
    decoding = DECODER.batch(BATCH, batch_size=3)
    for _ in range(3):
        next(decoding)
    check_partial(decoding.results)
    del decoding
    gc.collect()
    one = DECODER.stream(BATCH[2])
    for _ in one:
        break
    assert undisturbed()[2] == one.finish().trace  # and can be taken up again


def test_a_failing_callback_is_told_and_the_batch_can_be_finished():
    decoding = DECODER.batch(BATCH, batch_size=3)
    with pytest.raises(ZeroDivisionError):
        decoding.finish(lambda index, token: 1 // (index - 1))
    check_partial(decoding.results)
    assert [result.trace for result in decoding.finish()] == undisturbed()


def test_a_failing_draft_fails_its_batch_for_good_and_keeps_what_was_decoded():
    class Failing:
        def propose(self, ids, count, uniforms):
            if ids.shape[1] > 4:
                raise RuntimeError("out of ideas")
            return Proposal(ids[0, :0])

    decoding = Decoder(TARGET, draft=Failing()).batch(BATCH, batch_size=3)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of ideas"):
            decoding.finish()
    assert [len(result.trace) for result in decoding.results] == [4, 4, 4, 0]
    assert {result.finish_reason for result in decoding.results} == {"interrupted"}
