"""Usual mistakes in the verification of whole blocks, as joint laws of what is emitted.

Each replaces one part of the right block: who passes, the law of the last token, what is shown, or
the laws that one position is judged by. Mistakes within one position are in `catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cactus_theory.rules import SpeculativeSampling
from cactus_theory.testing._blocks import (
    Block,
    BlockLaw,
    Kept,
    Outcome,
    Tokens,
    accepted,
    cut,
    law_of_block,
)
from cactus_theory.testing._mistakes import Position, normalised

_SAME = 1e-9  # total variation below which two laws are one


@dataclass(frozen=True)
class BlockMistake:
    """A named wrong law of blocks.

    Attributes
    ----------
    name : str
    law : callable (Block) -> dict of (tuple of int, int) to float
        Probability of each (emitted tokens, accepted tokens).

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> block = Block.of(
    ...     SpeculativeSampling(), draft=[[0.5, 0.5]], target=[[0.25, 0.75], [1.0, 0.0]])
    >>> [law for name, law in ((m.name, m.law(block)) for m in BLOCK_CATALOGUE)
    ...  if name == "no bonus token"]
    [{((0,), 1): 0.25, ((1,), 0): 0.25, ((1,), 1): 0.5}]
    """

    name: str
    law: Callable[[Block], BlockLaw]


def showing(shown: Callable[[Tokens, Kept, int], Outcome]) -> Callable[[Block], BlockLaw]:
    """The right tokens and decisions, shown otherwise."""
    return lambda block: law_of_block(block, shown=shown)


def ending(
    *,
    bonus: Callable[[Block], np.ndarray] | None = None,
    recovery: Callable[[Block, int, int], np.ndarray] | None = None,
) -> Callable[[Block], BlockLaw]:
    """The last token drawn from another law: the bonus, or what place and token recover."""

    def last(block: Block, tokens: Tokens, kept: int) -> np.ndarray:
        if kept == len(tokens):
            return block.last(tokens, kept) if bonus is None or not tokens else bonus(block)
        if recovery is None:
            return block.last(tokens, kept)
        return recovery(block, kept, tokens[kept])

    return lambda block: law_of_block(block, last=last)


def judged_by(target: Callable[[np.ndarray], np.ndarray]) -> Callable[[Block], BlockLaw]:
    """The rows of the target in another order."""
    return lambda block: law_of_block(
        Block.of(block.rule, draft=block.draft, target=target(block.target))
    )


def boundless(block: Block) -> BlockLaw:
    """Everything is accepted."""
    return law_of_block(block, passes=lambda chances: iter([((True,) * len(chances), 1.0)]))


def unboosted(block: Block) -> BlockLaw:
    return law_of_block(Block.of(SpeculativeSampling(), draft=block.draft, target=block.target))


def recovered_at(shift: Callable[[int, int], int]) -> Callable[[Block, int, int], np.ndarray]:
    """Recovery by the laws of another position, which is a function of the place and k."""

    def recovery(block: Block, place: int, token: int) -> np.ndarray:
        at = block.positions[shift(place, len(block.positions))]
        weights = block.rule.recovery_weights(token, at.draft, at.target)
        return normalised(weights if weights.sum() > 0 else at.target)

    return recovery


def residual_of_the_last(block: Block) -> np.ndarray:
    weights = np.maximum(block.target[-1] - block.draft[-1], 0.0)
    return normalised(weights if weights.sum() > 0 else block.target[-1])


def by_one_uniform(chances: Sequence[float]) -> Iterator[tuple[Kept, float]]:
    """Who passes where the whole block is judged by one uniform."""
    edges = sorted({0.0, *chances, 1.0})
    for low, high in pairwise(edges):
        yield tuple(a > low for a in chances), high - low


def recovered_by_the_same_uniform(block: Block, tokens: Tokens, kept: int) -> np.ndarray:
    """The inverse distribution function at the very uniform that failed the acceptance test."""
    law = block.last(tokens, kept)
    if kept == len(tokens):
        return law
    chance = block.chances(tokens)[kept]
    edges = np.maximum(np.append(0.0, np.cumsum(law)), chance)
    return normalised(np.diff(edges))


def verified_on(block: Block) -> BlockLaw:
    """Each position emits its token or its recovered one, also after a rejection."""
    law: BlockLaw = {((), 0): 1.0}
    for at in block.positions:
        law = _extended(law, _shown_at(at))
    whole = {shown: p for shown, p in law.items() if shown[1] == len(block.positions)}
    bonus = {(int(x), False): float(block.target[-1, x]) for x in np.flatnonzero(block.target[-1])}
    return {shown: p for shown, p in law.items() if shown not in whole} | _extended(whole, bonus)


def _shown_at(at: Position) -> dict[tuple[int, bool], float]:
    shown = {(int(x), True): float(at.kept[x]) for x in at.drafted if at.kept[x] > 0}
    lost = (at.draft - at.kept)[at.drafted] @ at.recovery
    return shown | {(int(x), False): float(lost[x]) for x in np.flatnonzero(lost > 0)}


def _extended(law: BlockLaw, step: dict[tuple[int, bool], float]) -> BlockLaw:
    longer: BlockLaw = {}
    for (tokens, count), chance in law.items():
        for (token, kept), share in step.items():
            outcome = (*tokens, token), count + kept
            longer[outcome] = longer.get(outcome, 0.0) + chance * share
    return longer


def counted(change: Callable[[Kept], int]) -> Callable[[Block], BlockLaw]:
    """The right tokens, and another number of accepted ones reported."""
    return showing(lambda tokens, kept, last: (cut(tokens, kept, last)[0], change(kept)))


def not_cut(tokens: Tokens, kept: Kept, last: int) -> Outcome:
    right, count = cut(tokens, kept, last)
    return (*right, *tokens[count + 1 :]), count


def rejected_too(tokens: Tokens, kept: Kept, last: int) -> Outcome:
    right, count = cut(tokens, kept, last)
    return (*right[:-1], *tokens[count : count + 1], last), count


def one_lost(tokens: Tokens, kept: Kept, last: int) -> Outcome:
    right, count = cut(tokens, kept, last)
    return (*right[: max(count - 1, 0)], last), count


def without_bonus(tokens: Tokens, kept: Kept, last: int) -> Outcome:
    right, count = cut(tokens, kept, last)
    return (right[:-1] if count == len(tokens) > 0 else right), count


def without_recovered(tokens: Tokens, kept: Kept, last: int) -> Outcome:
    right, count = cut(tokens, kept, last)
    return (right if count == len(tokens) else right[:-1]), count


def greedy(law: np.ndarray) -> np.ndarray:
    return np.eye(law.size)[int(np.argmax(law))]


def shifted_back(target: np.ndarray) -> np.ndarray:
    """Row i - 1 in place of row i, the first one twice."""
    return np.concatenate([target[:1], target[:-1]])


def shifted_on(target: np.ndarray) -> np.ndarray:
    """Row i + 1 in place of row i, the last one twice."""
    return np.concatenate([target[1:], target[-1:]])


BLOCK_CATALOGUE: tuple[BlockMistake, ...] = (
    BlockMistake(
        "the count includes the recovered or bonus token", counted(lambda kept: accepted(kept) + 1)
    ),
    BlockMistake("the count is one too small", counted(lambda kept: max(accepted(kept) - 1, 0))),
    BlockMistake("the count goes on after the first rejection", counted(sum)),
    BlockMistake("drafted tokens after the rejection are not cut", showing(not_cut)),
    BlockMistake("positions after the rejection are verified on", verified_on),
    BlockMistake("off by one: the rejected token is kept", showing(rejected_too)),
    BlockMistake("off by one: the last accepted token is lost", showing(one_lost)),
    BlockMistake("no bonus token", showing(without_bonus)),
    BlockMistake("no token after a rejection", showing(without_recovered)),
    BlockMistake(
        "bonus drawn from the draft at the last position",
        ending(bonus=lambda block: block.draft[-1]),
    ),
    BlockMistake(
        "bonus drawn from the target one position early",
        ending(bonus=lambda block: block.target[-2]),
    ),
    BlockMistake("bonus drawn from a residual", ending(bonus=residual_of_the_last)),
    BlockMistake(
        "bonus is the target's argmax", ending(bonus=lambda block: greedy(block.target[-1]))
    ),
    BlockMistake(
        "residual of the first position", ending(recovery=recovered_at(lambda place, k: 0))
    ),
    BlockMistake(
        "residual of the last position", ending(recovery=recovered_at(lambda place, k: k - 1))
    ),
    BlockMistake(
        "residual of the next position",
        ending(recovery=recovered_at(lambda place, k: min(place + 1, k - 1))),
    ),
    BlockMistake(
        "residual of the position before",
        ending(recovery=recovered_at(lambda place, k: max(place - 1, 0))),
    ),
    BlockMistake("target one position late", judged_by(shifted_back)),
    BlockMistake("target one position early", judged_by(shifted_on)),
    BlockMistake(
        "one uniform for the whole block", lambda block: law_of_block(block, passes=by_one_uniform)
    ),
    BlockMistake(
        "the uniform that rejected also draws the recovered token",
        lambda block: law_of_block(block, last=recovered_by_the_same_uniform),
    ),
    BlockMistake(
        "recovery from the target",
        ending(recovery=lambda block, place, _: block.target[place]),
    ),
    BlockMistake("everything is accepted", boundless),
    BlockMistake("plain speculative sampling (no boost)", unboosted),
)


def without_count(law: BlockLaw) -> BlockLaw:
    """The law of the tokens alone, for samplers that report no count: it is taken as right."""
    tokens: BlockLaw = {}
    for (emitted, _), chance in law.items():
        outcome = emitted, len(emitted) - 1
        tokens[outcome] = tokens.get(outcome, 0.0) + chance
    return tokens
