"""Rows to verify, and their passage through a sampler in shuffled ragged batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cactus_theory.testing._block_calls import outcomes
from cactus_theory.testing._blocks import Block, BlockLaw, Outcome
from cactus_theory.testing._errors import ConformanceError

_ENOUGH = 30  # pairs of rows that agree by chance about as often as a coin falls so many times


class Row(NamedTuple):
    """One row to verify: which of the blocks it is, its tokens, its uniforms and its weight."""

    block: int
    tokens: tuple[int, ...]
    accept: tuple[float, ...]
    recover: float
    weight: float


def grid(blocks: Sequence[Block], cells: int) -> list[Row]:
    """Every drafted block with every combination of midpoints, shuffled; weights add to 1 each."""
    points = [(i + 0.5) / cells for i in range(cells)]
    every = [
        Row(at, tokens, tuple(uniforms[:-1]), uniforms[-1], drawn / cells ** (len(tokens) + 1))
        for at, block in enumerate(blocks)
        for tokens, drawn in block.drafts()
        for uniforms in product(points, repeat=len(tokens) + 1)
    ]
    return [every[i] for i in np.random.default_rng(0).permutation(len(every))]


def drawn(blocks: Sequence[Block], samples: int, rng: np.random.Generator) -> list[Row]:
    """So many rows of every block with drafted tokens and uniforms drawn, shuffled; weights 1."""
    every = []
    for at, block in enumerate(blocks):
        laws = [p / p.sum() for p in block.draft]
        columns = [rng.choice(p.size, size=samples, p=p).tolist() for p in laws]
        uniforms = rng.random((samples, len(laws) + 1)).tolist()
        every += [
            Row(at, tuple(column[i] for column in columns), tuple(row[:-1]), row[-1], 1.0)
            for i, row in enumerate(uniforms)
        ]
    return [every[i] for i in rng.permutation(len(every))]


def batches(points: Sequence[Row], rows: int) -> Iterator[Sequence[Row]]:
    for start in range(0, len(points), rows):
        yield points[start : start + rows]


def verified(
    call: Callable[..., Any], blocks: Sequence[Block], points: Sequence[Row], rows: int
) -> tuple[list[Outcome], bool]:
    """Outcomes of all rows, and whether their numbers of accepted tokens were reported.

    `call` takes tokens, draft, target, accept_uniforms and recover_uniforms of one batch.
    """
    seen: list[Outcome] = []
    reported = True
    for batch in batches(points, rows):
        found, told = outcomes(
            call(
                [list(row.tokens) for row in batch],
                [blocks[row.block].draft.copy() for row in batch],
                [blocks[row.block].target.copy() for row in batch],
                [np.array(row.accept) for row in batch],
                np.array([row.recover for row in batch]),
            ),
            rows=len(batch),
            vocabulary=blocks[0].target.shape[1],
        )
        seen += found
        reported = reported and told
    return seen, reported


def tallied(points: Sequence[Row], seen: Sequence[Outcome], blocks: int) -> list[BlockLaw]:
    """Weight of each outcome, for each of the blocks."""
    laws: list[BlockLaw] = [{} for _ in range(blocks)]
    for row, outcome in zip(points, seen, strict=True):
        laws[row.block][outcome] = laws[row.block].get(outcome, 0.0) + row.weight
    return laws


def demand_independent_rows(call: Callable[..., Any], blocks: Sequence[Block], rows: int) -> None:
    """Raise unless rows keep their outcomes in another order and in smaller batches.

    Uniforms are drawn, not midpoints: a threshold on a midpoint may round either way.
    """
    points = drawn(blocks, 24, np.random.default_rng(1))
    seen, _ = verified(call, blocks, points, rows)
    again, _ = verified(call, blocks, points, rows)
    if seen != again:
        raise ConformanceError(
            "two calls with the same uniforms differ: the verifier draws numbers of its own; check "
            "it by check_blocks_by_sampling"
        )
    turned, _ = verified(call, blocks, points[::-1], max(rows // 2, 1))
    for row, one, other in zip(points, seen, turned[::-1], strict=True):
        if one != other:
            raise ConformanceError(
                f"a row with drafts {list(row.tokens)} gives {one} in one batch and {other} in "
                "another, by the same uniforms: it reads the laws or uniforms of other rows"
            )


def in_step(points: Sequence[Row], seen: Sequence[Outcome], rows: int) -> str:
    """A sentence if rows of one call that have the same drafts always agree, else nothing."""
    pairs = 0
    for batch, found in zip(batches(points, rows), _parts(seen, rows), strict=True):
        first: dict[tuple[int, tuple[int, ...]], Outcome] = {}
        for row, outcome in zip(batch, found, strict=True):
            if first.setdefault((row.block, row.tokens), outcome) != outcome:
                return ""
            pairs += 1
        pairs -= len(first)
    return "rows of one call share their random numbers" if pairs >= _ENOUGH else ""


def _parts(seen: Sequence[Outcome], rows: int) -> Iterator[Sequence[Outcome]]:
    for start in range(0, len(seen), rows):
        yield seen[start : start + rows]


def size_of_grid(blocks: Sequence[Block], cells: int) -> int:
    """Rows that `grid` makes."""
    return sum(
        prod(at.drafted.size for at in block.positions) * cells ** (len(block.positions) + 1)
        for block in blocks
    )
