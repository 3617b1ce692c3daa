"""Where a text ends within a block, and what a row keeps of one."""

from itertools import product

import pytest
import torch

from cactus_runtime import (
    Decoder,
    Proposal,
)
from cactus_theory import (
    Cactus,
    CactusExact,
)
from tests.runtime.greedy import GREEDY, greedy_reference, stream


class Scripted:
    """A drafter that proposes what it is told, and remembers what it was asked."""

    def __init__(self, script, vocabulary):
        self.script, self.vocabulary, self.asked = list(script), vocabulary, []

    def propose(self, ids, count, uniforms):
        self.asked.append((ids.shape[1], count))
        done = ids.shape[1] - self.prompt_length
        return Proposal(torch.tensor(self.script[done : done + count], dtype=torch.int64))


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3, 6])
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 7, 8])
def test_never_more_than_the_asked_number_of_tokens(random_pair, num_draft_tokens, max_new_tokens):
    result = stream(
        Decoder(random_pair[0], draft=random_pair[1]),
        [1],
        rule=CactusExact(3.0),
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=max_new_tokens,
        seed=0,
    )
    result = result.finish()
    assert len(result.tokens) == max_new_tokens
    assert result.finish_reason == "length"
    assert sum(block.emitted for block in result.blocks) == max_new_tokens


@pytest.mark.parametrize("index", range(10))
def test_an_end_of_sequence_token_ends_the_text_at_every_index_of_a_block(random_pair, index):
    target, _ = random_pair
    greedy = greedy_reference(target, [1, 2, 3], 10)
    script = Scripted(greedy, 7)
    script.prompt_length = 3
    eos = greedy[index]
    result = stream(
        Decoder(target, draft=script),
        [1, 2, 3],
        sampling=GREEDY,
        num_draft_tokens=9,
        max_new_tokens=10,
        eos_token_id=eos,
    )
    result = result.finish()
    assert result.tokens == greedy[: greedy.index(eos) + 1]
    assert result.finish_reason == "eos"


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 8])
def test_a_stop_string_cuts_the_text_at_every_index_of_a_block(tiny, num_draft_tokens):
    decoder = Decoder(tiny)
    options = {
        "rule": Cactus(0.5),
        "num_draft_tokens": num_draft_tokens,
        "max_new_tokens": 24,
        "seed": 3,
        "eos_token_id": (),
    }
    whole = stream(decoder, "river:", **options).finish()
    for size in (1, 2, 5):
        for start in range(0, len(whole.text) - size, 3):
            stop = whole.text[start : start + size]
            cut = stream(decoder, "river:", stop=[stop], **options)
            pieces = "".join(token.text for token in cut)
            result = cut.result
            assert result.text == whole.text[: whole.text.index(stop)]
            assert pieces == result.text
            assert result.tokens == whole.tokens[: len(result.tokens)]
            assert result.finish_reason == "stop"


def test_a_stop_string_completed_by_the_last_allowed_token_counts(tiny):
    decoder = Decoder(tiny)
    whole = stream(decoder, "river:", sampling=GREEDY, max_new_tokens=12, eos_token_id=()).finish()
    stop = whole.text[-3:]
    cut = stream(
        decoder, "river:", sampling=GREEDY, max_new_tokens=12, stop=[stop], eos_token_id=()
    ).finish()
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"


def accept_all(greedy):
    return greedy


def reject_all(greedy):
    return [(token + 1) % 7 for token in greedy]


@pytest.mark.parametrize("script_of", [accept_all, reject_all])
def test_the_cache_holds_all_but_the_last_token_after_every_block(random_pair, script_of):
    target, _ = random_pair
    greedy = greedy_reference(target, [1, 2, 3], 30)
    script = Scripted(script_of(greedy), 7)
    script.prompt_length = 3
    decoding = stream(
        Decoder(target, draft=script),
        [1, 2, 3],
        sampling=GREEDY,
        num_draft_tokens=4,
        max_new_tokens=30,
    )
    batch, emitted = decoding._batch, 3
    while decoding.result.finish_reason != "length":
        emitted += len(batch._block())
        assert batch._target.lengths == [emitted - 1]  # the committed text but its last token
    assert decoding.result.tokens == greedy
    accepted = {block.accepted for block in decoding.result.blocks if block.drafted == 4}
    assert accepted == ({4} if script_of is accept_all else {0})


def test_the_draft_is_asked_after_the_committed_text_and_never_for_too_much(random_pair):
    greedy = greedy_reference(random_pair[0], [1, 2, 3], 10)
    script = Scripted(greedy, 7)
    script.prompt_length = 3
    stream(
        Decoder(random_pair[0], draft=script),
        [1, 2, 3],
        sampling=GREEDY,
        num_draft_tokens=4,
        max_new_tokens=12,
    ).finish()
    assert script.asked[:2] == [(3, 4), (8, 4)]
    assert script.asked[2] == (13, 1)


def test_origins_tell_accepted_recovered_and_bonus_tokens_apart(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    result = stream(decoder, [1], rule=Cactus(0.3), num_draft_tokens=2, max_new_tokens=60, seed=0)
    result = result.finish()
    assert set(result.origins) == {"accepted", "recovered", "bonus", "plain"} - (
        set() if "plain" in result.origins else {"plain"}
    )
    at = 0
    for block in result.blocks:
        origins = result.origins[at : at + block.emitted]
        assert origins[: block.accepted] == ("accepted",) * block.accepted
        if block.emitted > block.accepted:
            full = block.accepted == block.drafted
            last = "plain" if not block.drafted else "bonus" if full else "recovered"
            assert origins[-1] == last
        at += block.emitted


def test_every_small_case_of_lengths_ends_well(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    for prompt, new, drafts in product(range(1, 4), range(1, 6), range(4)):
        for rule in (Cactus(0.0), Cactus(0.7)):
            result = stream(
                decoder,
                list(range(prompt)),
                rule=rule,
                num_draft_tokens=drafts,
                max_new_tokens=new,
                seed=1,
            ).finish()
            assert len(result.tokens) == new
            assert str(result).startswith(str(rule))
