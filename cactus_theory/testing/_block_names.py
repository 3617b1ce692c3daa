"""What wrong laws of blocks there are to tell from the right one, and which one was seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log

import numpy as np

from cactus_theory.testing._block_mistakes import BLOCK_CATALOGUE, without_count
from cactus_theory.testing._blocks import Block, BlockLaw, law_of_block
from cactus_theory.testing.catalogue import looks_like

_SAME = 1e-9  # total variation below which two laws are one

Laws = Sequence[BlockLaw]


def distance(law: BlockLaw, other: BlockLaw) -> float:
    """Total variation."""
    keys = {*law, *other}
    return sum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in keys) / 2


def wrong_blocks(blocks: Sequence[Block], *, reported: bool) -> dict[str, list[BlockLaw]]:
    """Laws of the catalogue, one for each block, without those that are the right ones."""
    right = [law_of_block(block) for block in blocks]
    wrong = {}
    for mistake in BLOCK_CATALOGUE:
        laws = [mistake.law(block) for block in blocks]
        laws = laws if reported else [without_count(law) for law in laws]
        if max(map(distance, laws, right)) > _SAME:
            wrong[mistake.name] = laws
    return wrong


def farthest(seen: Laws, right: Laws) -> str:
    """A sentence on the outcome whose probability is off by most."""
    off = [
        (abs(law.get(key, 0.0) - wanted.get(key, 0.0)), at, key)
        for at, (law, wanted) in enumerate(zip(seen, right, strict=True))
        for key in {*law, *wanted}
    ]
    _, at, (emitted, accepted) = max(off)
    key = emitted, accepted
    return (
        f"row {at} emits {list(emitted)} with {accepted} accepted with probability "
        f"{seen[at].get(key, 0.0):.4g} instead of {right[at].get(key, 0.0):.4g}"
    )


def block_looks_like(
    seen: Laws,
    blocks: Sequence[Block],
    *,
    reported: bool,
    samples: float,
    fits: Callable[[Laws], bool],
    first_right: Callable[[Block, np.ndarray], bool],
    first_fits: Callable[[np.ndarray, np.ndarray], bool],
) -> str:
    """A sentence: the likeliest wrong law of whole blocks, or of the first position of one.

    `fits` tells whether laws of all blocks agree with what was seen, `first_right` whether the law
    seen of a first token may be the right one, and `first_fits` whether it may be another one.
    """
    wrong = wrong_blocks(blocks, reported=reported)
    far = {name: sum(map(_kl, seen, laws)) for name, laws in wrong.items()}
    ranked = sorted((value, name) for name, value in far.items() if value < inf)
    if ranked and fits(wrong[ranked[0][1]]):
        value, best = ranked[0]
        twins = [name for name in wrong if max(map(distance, wrong[name], wrong[best])) <= _SAME]
        return f"it matches {' or '.join(twins)} (KL {value:.2g} nats)"
    for at, block in enumerate(blocks):
        first = first_tokens(seen[at], block.target.shape[1])
        if block.positions and first.sum() > 0 and not first_right(block, first):
            words = looks_like(
                first / first.sum(),
                block.positions[0],
                samples=samples,
                fits=lambda law, first=first: first_fits(law, first),
            )
            return f"the first token of row {at} is wrong by itself: {words}"
    if not ranked:
        return "it resembles nothing in the catalogue of blocks"
    return f"nothing in the catalogue of blocks fits; the nearest is {ranked[0][1]}"


def _kl(seen: BlockLaw, law: BlockLaw) -> float:
    if any(key not in law for key in seen):
        return inf
    return sum(chance * log(chance / law[key]) for key, chance in seen.items() if chance > 0)


def first_tokens(law: BlockLaw, size: int) -> np.ndarray:
    """Law of the first token emitted; less than 1 in all where blocks are empty."""
    first = np.zeros(size)
    for (emitted, _), chance in law.items():
        if emitted:
            first[emitted[0]] += chance
    return first


def first_law(block: Block) -> np.ndarray:
    """Right law of the first token emitted."""
    return first_tokens(law_of_block(block), block.target.shape[1])
