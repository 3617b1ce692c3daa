"""Drafters that are no models: what they are asked, and what they may propose."""

import pytest
import torch

from cactus_runtime import (
    Decoder,
    Proposal,
)
from tests.runtime.greedy import GREEDY, greedy_reference, stream


def test_a_drafter_may_propose_nothing(random_pair):
    class Silent:
        def propose(self, ids, count, uniforms):
            return Proposal(ids[0, :0])

    result = stream(
        Decoder(random_pair[0], draft=Silent()), [1, 2, 3], sampling=GREEDY, max_new_tokens=10
    )
    result = result.finish()
    assert result.tokens == greedy_reference(random_pair[0], [1, 2, 3], 10)
    assert set(result.origins) == {"plain"}


@pytest.mark.parametrize(
    ("proposal", "words"),
    [
        (Proposal(torch.tensor([9])), r"ids in \[0, 7\), got \[9\]"),
        (Proposal(torch.tensor([-1])), r"ids in \[0, 7\), got \[-1\]"),
        (Proposal(torch.tensor([1] * 9)), "at most 4 tokens"),
        (Proposal(torch.tensor([1.0])), "int64"),
        (Proposal(torch.tensor([1]), torch.ones(1, 6) / 6), r"shape \(1, 7\)"),
        (Proposal(torch.tensor([1]), torch.ones(1, 7)), "must be distributions, got sums"),
        (Proposal(torch.tensor([1]), torch.full((1, 7), torch.nan)), "must be distributions"),
        (
            Proposal(torch.tensor([1]), torch.tensor([[2.0, -1, 0, 0, 0, 0, 0]])),
            "must be distributions",
        ),
        (Proposal(torch.tensor([1]), torch.eye(7)[:1]), "positive probability"),
    ],
)
def test_a_proposal_that_is_none_is_refused(random_pair, proposal, words):
    class Wrong:
        def propose(self, ids, count, uniforms):
            return proposal

    with pytest.raises(ValueError, match=words):
        stream(Decoder(random_pair[0], draft=Wrong()), [1], max_new_tokens=9).finish()
