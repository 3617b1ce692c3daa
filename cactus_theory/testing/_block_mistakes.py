"""Mistakes with whole blocks: in what is returned, and in which position is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import prod

import numpy as np

from cactus_theory.testing._block import Block, normalised, recovery_of
from cactus_theory.testing._mistakes import Wrong
from cactus_theory.testing._outcomes import Distribution, Outcome, Tokens

Kept = tuple[bool, ...]


def targeting(target: Callable[[np.ndarray, float], np.ndarray]) -> Wrong:
    """Replace the rows of the target."""
    return lambda block, x: Block.of(
        block.rule, draft=block.draft, target=target(block.target, x)
    ).distribution()


def ending(bonus: Callable[[Block], np.ndarray]) -> Wrong:
    """Draw the bonus token from another distribution, where anything was drafted."""

    def wrong(block: Block, _: float) -> Distribution:
        if not block.positions:
            return block.distribution()
        return replace(block, target=np.stack([*block.target[:-1], bonus(block)])).distribution()

    return wrong


def recovering_at(shift: Callable[[int, int], int]) -> Wrong:
    """Recover with the distributions of another position, a function of the place and k."""

    def wrong(block: Block, _: float) -> Distribution:
        changed = []
        for place, position in enumerate(block.positions):
            other = block.positions[shift(place, len(block.positions))]
            rows = [
                recovery_of(block.rule, x, other.draft, other.target)
                for x in position.drafted.tolist()
            ]
            changed.append(replace(position, recovery=np.array(rows)))
        return replace(block, positions=tuple(changed)).distribution()

    return wrong


def last_residual(block: Block) -> np.ndarray:
    weights = np.maximum(block.target[-1] - block.draft[-1], 0.0)
    return normalised(weights if weights.sum() > 0 else block.target[-1])


def independent(chances: Sequence[float]) -> Iterator[tuple[Kept, float]]:
    """Which tokens would pass, each with its own uniform, with probabilities."""
    for kept in product((True, False), repeat=len(chances)):
        yield kept, prod(a if passes else 1 - a for a, passes in zip(chances, kept, strict=True))


def by_one_uniform(chances: Sequence[float]) -> Iterator[tuple[Kept, float]]:
    for low, high in pairwise(sorted({0.0, *chances, 1.0})):
        yield tuple(a > low for a in chances), high - low


def cut(tokens: Tokens, kept: Kept, last: int) -> Outcome:
    """The correct outcome: the tokens before the first rejection, then one more."""
    count = accepted(kept)
    return (*tokens[:count], last), count


def accepted(kept: Kept) -> int:
    """Tokens before the first rejection."""
    return kept.index(False) if False in kept else len(kept)


def replayed(
    block: Block,
    *,
    passes: Callable[[Sequence[float]], Iterator[tuple[Kept, float]]] = independent,
    shown: Callable[[Tokens, Kept, int], Outcome] = cut,
) -> Distribution:
    """Distribution of the outcome, with the decisions or the returned tokens replaced."""
    found: Distribution = {}
    for tokens, drawn in block.drafts():
        for kept, chance in passes(block.chances(tokens)):
            if chance <= 0:
                continue
            for token, share in enumerate(block.last(tokens, accepted(kept)).tolist()):
                if share > 0:
                    outcome = shown(tokens, kept, token)
                    found[outcome] = found.get(outcome, 0.0) + drawn * chance * share
    return found


def showing(shown: Callable[[Tokens, Kept, int], Outcome]) -> Wrong:
    """Correct tokens and decisions, returned wrongly."""
    return lambda block, _: replayed(block, shown=shown)


def counting(change: Callable[[Kept], int]) -> Wrong:
    """Correct tokens, with a wrong number of accepted ones reported."""
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


def verified_on(block: Block, _: float) -> Distribution:
    """Each position emits its token or its recovered one, also after a rejection."""
    found: Distribution = {((), 0): 1.0}
    for position in block.positions:
        step = [(x, 1, m) for x, m in enumerate(position.kept.tolist()) if m > 0]
        step += [(x, 0, m) for x, m in enumerate(position.recovered.tolist()) if m > 0]
        found = _extended(found, step)
    full = {key: found.pop(key) for key in list(found) if key[1] == len(block.positions)}
    bonus = [(x, 0, m) for x, m in enumerate(block.target[-1].tolist()) if m > 0]
    return found | _extended(full, bonus)


def _extended(found: Distribution, step: Sequence[tuple[int, int, float]]) -> Distribution:
    longer: Distribution = {}
    for (tokens, count), chance in found.items():
        for token, kept, mass in step:
            outcome = (*tokens, token), count + kept
            longer[outcome] = longer.get(outcome, 0.0) + chance * mass
    return longer
