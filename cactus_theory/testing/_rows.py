"""Rows to verify, and running them through a verifier in shuffled ragged batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cactus_theory.testing._block import Block
from cactus_theory.testing._calls import ConformanceError, outcomes
from cactus_theory.testing._outcomes import Distribution, Outcome

_ENOUGH = 30  # agreeing pairs of rows; by chance about as likely as this many equal coin flips

Grid = tuple[int, int]  # cells of every acceptance uniform, and of every recovery uniform


class Row(NamedTuple):
    """One row to verify: the index of its block, its tokens and its uniforms."""

    block: int
    tokens: tuple[int, ...]
    accept: tuple[Any, ...]
    recover: Any


def midpoints(cells: int, *, exact: bool) -> list[Any]:
    points = [Fraction(2 * i + 1, 2 * cells) for i in range(cells)]
    return points if exact else [float(point) for point in points]


def grid(blocks: Sequence[Block], cells: Grid) -> list[Row]:
    """Every drafted block with every combination of midpoints, shuffled."""
    accept, recover = (midpoints(n, exact=blocks[0].exact) for n in cells)
    every = [
        Row(at, tokens, uniforms, last)
        for at, block in enumerate(blocks)
        for tokens, _ in block.drafts()
        for uniforms in product(accept, repeat=len(tokens))
        for last in recover
    ]
    return [every[i] for i in np.random.default_rng(0).permutation(len(every))]


def size_of_grid(blocks: Sequence[Block], cells: Grid) -> int:
    """Rows that `grid` makes."""
    return sum(
        prod(at.drafted.size * cells[0] for at in block.positions) * cells[1] for block in blocks
    )


def drawn(blocks: Sequence[Block], samples: int, rng: np.random.Generator) -> list[Row]:
    """`samples` rows of every block with random drafted tokens and uniforms, shuffled."""
    every = []
    for at, block in enumerate(blocks):
        drafts = [p / p.sum() for p in block.draft.astype(np.float64)]
        columns = [rng.choice(p.size, size=samples, p=p).tolist() for p in drafts]
        uniforms = rng.random((samples, len(drafts) + 1)).tolist()
        every += [
            Row(at, tuple(column[i] for column in columns), tuple(row[:-1]), row[-1])
            for i, row in enumerate(uniforms)
        ]
    return [every[i] for i in rng.permutation(len(every))]


def batches(points: Sequence[Any], rows: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(points), rows):
        yield points[start : start + rows]


def verified(
    call: Callable[..., Any], blocks: Sequence[Block], points: Sequence[Row], rows: int
) -> tuple[list[Outcome], bool]:
    """Outcomes of all rows, and whether their numbers of accepted tokens were reported.

    `call` takes tokens, draft, target, accept_uniforms and recover_uniforms of one batch.
    """
    found: list[Outcome] = []
    reported = True
    for batch in batches(points, rows):
        returned = call(
            [list(row.tokens) for row in batch],
            [blocks[row.block].draft.copy() for row in batch],
            [blocks[row.block].target.copy() for row in batch],
            [np.array(row.accept) for row in batch],
            np.array([row.recover for row in batch]),
        )
        seen, has_counts = outcomes(returned, rows=len(batch), vocabulary=blocks[0].size)
        found += seen
        reported = reported and has_counts
    return found, reported


def counted(
    points: Sequence[Row], found: Sequence[Outcome], blocks: Sequence[Block]
) -> list[Distribution]:
    """How often each outcome was found, for each block."""
    counts: list[Distribution] = [{} for _ in blocks]
    for row, outcome in zip(points, found, strict=True):
        counts[row.block][outcome] = counts[row.block].get(outcome, 0) + 1
    return counts


def weighted(
    points: Sequence[Row], found: Sequence[Outcome], blocks: Sequence[Block]
) -> list[Distribution]:
    """Probability of each outcome, for each block: drafts by probability, uniforms equally."""
    weights = [dict(block.drafts()) for block in blocks]
    rows = Counter((row.block, row.tokens) for row in points)
    pairs = Counter(
        (row.block, row.tokens, outcome) for row, outcome in zip(points, found, strict=True)
    )
    total: list[Distribution] = [{} for _ in blocks]
    for (at, tokens, outcome), count in pairs.items():
        weight = weights[at][tokens] * count / rows[at, tokens]
        total[at][outcome] = total[at].get(outcome, 0) + weight
    return total


def demand_independent_rows(call: Callable[..., Any], blocks: Sequence[Block], rows: int) -> None:
    """Raise unless rows keep their outcomes in another order and in smaller batches.

    Uniforms are random, not midpoints, because a threshold on a midpoint may round either way.
    """
    points = drawn(blocks, 24, np.random.default_rng(1))
    found, _ = verified(call, blocks, points, rows)
    again, _ = verified(call, blocks, points, rows)
    if found != again:
        raise ConformanceError(
            "two calls with the same uniforms differ: the verifier draws its own numbers; check "
            "it by check_by_sampling"
        )
    turned, _ = verified(call, blocks, points[::-1], max(rows // 2, 1))
    for row, one, other in zip(points, found, turned[::-1], strict=True):
        if one != other:
            raise ConformanceError(
                f"a row with drafts {list(row.tokens)} gives {one} in one batch and {other} in "
                "another, with the same uniforms: it reads the distributions or uniforms of other "
                "rows"
            )


def in_step(points: Sequence[Row], found: Sequence[Outcome], rows: int) -> str:
    """A sentence if rows of one call with equal drafts always agree, else ""."""
    pairs = 0
    for batch, outcome_rows in zip(batches(points, rows), batches(found, rows), strict=True):
        first: dict[tuple[int, tuple[int, ...]], Outcome] = {}
        for row, outcome in zip(batch, outcome_rows, strict=True):
            if first.setdefault((row.block, row.tokens), outcome) != outcome:
                return ""
            pairs += 1
        pairs -= len(first)
    return "rows of one call share their random numbers" if pairs >= _ENOUGH else ""
