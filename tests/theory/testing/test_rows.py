"""Rows of one call are independent: where they share something, it is found."""

from __future__ import annotations

import numpy as np
import pytest

from cactus_theory.testing import (
    ConformanceError,
    as_sampler,
    check_by_enumeration,
    check_by_sampling,
    check_edges,
    specification_verifier,
)
from tests.theory.testing.block_samplers import PLAIN


def test_rows_that_read_the_uniforms_of_another_row_are_found():
    right = specification_verifier(PLAIN)

    def first_for_all(tokens, draft, target, accept, recover):
        return right(tokens, draft, target, accept, [recover[0]] * len(tokens))

    with pytest.raises(
        ConformanceError, match="it reads the distributions or uniforms of other rows"
    ):
        check_by_enumeration(first_for_all, PLAIN)


def test_rows_that_share_their_random_numbers_are_found_by_counts():
    right = specification_verifier(PLAIN)

    def one_stream(tokens, draft, target, seed):
        u, v = np.random.default_rng(seed).random((2, 4))
        accept = [u[: len(row)] for row in tokens]
        return right(tokens, draft, target, accept, [v[0]] * len(tokens))

    with pytest.raises(ConformanceError, match="rows of one call share their random numbers"):
        check_by_sampling(one_stream, PLAIN, samples=5000, smallest=0.1)


def test_rows_offset_by_a_row_without_drafts_are_found():
    right = specification_verifier(PLAIN)

    def packed(tokens, draft, target, accept, recover):
        """The k-th row of all laws that are drafted from, as if every row had as many."""
        flat = np.concatenate([*target])
        longest = max(len(row) for row in tokens) + 1
        shifted = [
            flat[min(i * longest, len(flat) - len(q)) :][: len(q)] for i, q in enumerate(target)
        ]
        return right(tokens, draft, shifted, accept, recover)

    with pytest.raises(ConformanceError, match="other rows"):
        check_by_enumeration(packed, PLAIN)
    with pytest.raises(ConformanceError):
        check_edges(packed, PLAIN)


def test_a_verifier_with_random_numbers_of_its_own_is_sent_to_the_other_check():
    rng = np.random.default_rng(0)
    sampler = as_sampler(specification_verifier(PLAIN))

    def own(tokens, draft, target, accept, recover):
        return sampler(tokens, draft, target, int(rng.integers(1000)))

    with pytest.raises(ConformanceError, match="check it by check_by_sampling"):
        check_by_enumeration(own, PLAIN)
