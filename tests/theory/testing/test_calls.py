"""What a verifier returns is read in either convention, or refused."""

from __future__ import annotations

import pytest

from cactus_theory.testing import (
    ConformanceError,
    check_by_enumeration,
    check_edges,
    specification_verifier,
)
from cactus_theory.testing._calls import outcomes
from tests.theory.testing.block_samplers import PLAIN


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([[0], [1]], r"returns \(emitted, accepted\)"),
        (([[0]], None), "2 rows went in; 1 rows of tokens and none accepted counts came out"),
        (([[0], [1]], [0]), "1 accepted counts came out"),
        (([[0, -1, 1], [1]], None), r"row 0 has tokens after its padding of -1"),
        (([[0], [7]], None), "row 1 emits 7, outside a vocabulary of 2"),
        (([[0], [-2]], None), "row 1 emits -2, outside"),
    ],
)
def test_what_is_no_batch_of_blocks_is_said_so(returned, words):
    with pytest.raises(ConformanceError, match=words):
        outcomes(returned, rows=2, vocabulary=2)


def test_an_empty_row_is_a_block_without_a_token_and_is_rejected():
    right = specification_verifier(PLAIN)

    def silent(tokens, *rest):
        emitted, accepted = right(tokens, *rest)
        return [row if len(x) else [] for row, x in zip(emitted, tokens, strict=True)], accepted

    for check in (check_by_enumeration, check_edges):
        with pytest.raises(ConformanceError, match=r"\[\]"):
            check(silent, PLAIN)
