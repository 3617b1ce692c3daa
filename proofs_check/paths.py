"""Block decoders on two-token chains, every draft followed, in exact rationals.

A path is a text with the positions that were verified; the others are bonus or plain tokens.
Written from the definitions, and shares no code with `cactus_theory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import NamedTuple

from proofs_check.rational import Distribution, candidate, emitted, stretched
from proofs_check.sequence import Chain, chains

LENGTH = 4
Text = tuple[int, ...]
Path = tuple[Text, tuple[bool, ...]]


class Position(NamedTuple):
    """Rows p, q and out of one position, and what is granted to each token."""

    draft: Distribution
    target: Distribution
    boosts: Distribution
    out: Distribution


def position(chain: Chain, text: Text, *, lossy: bool = True) -> Position:
    draft, target = chain.pair(text)
    boosts = stretched(target, chain.share) if lossy else target
    return Position(draft, target, boosts, emitted(draft, target, boosts))


def chance_of(block: Sequence[Position], drafts: Text) -> Fraction:
    """That these tokens are drafted."""
    return prod((at.draft[x] for at, x in zip(block, drafts, strict=False)), start=Fraction(1))


def token_by_token(block: list[Position], drafts: Text) -> Iterator[tuple[int, list[Fraction]]]:
    """(kept, chance of it times the distribution of the next token), one draft after the other."""
    alive = Fraction(1)
    for i, x in enumerate(drafts):
        p, q, g, _ = block[i]
        passed = min(g[x] / p[x], Fraction(1))
        if passed < 1:
            weights = [
                max(u - v, Fraction(0)) for u, v in zip(candidate(q, x, g[x]), p, strict=True)
            ]
            yield i, [alive * (1 - passed) * w / sum(weights) for w in weights]
        alive *= passed
    yield len(drafts), [alive * w for w in block[-1].target]


def as_a_block(block: list[Position], drafts: Text) -> Iterator[tuple[int, list[Fraction]]]:
    """The same by block verification, as Sun et al. write it, with out for the target."""
    k, survivals = len(drafts), [Fraction(1)]
    for i, x in enumerate(drafts):
        survivals.append(min(survivals[-1] * block[i].out[x] / block[i].draft[x], Fraction(1)))
    alive = Fraction(1)
    for i in range(k, -1, -1):
        weights = block[k].target if i == k else _residual(survivals[i], block[i])
        total = sum(weights)
        chance = survivals[k] if i == k else Fraction(1)
        if 0 < i < k:
            room = total + 1 - survivals[i]
            chance = total / room if room else Fraction(1)
        if chance and total:
            yield i, [alive * chance * w / total for w in weights]
        alive *= 1 - chance


def _residual(survival: Fraction, at: Position) -> list[Fraction]:
    return [max(survival * o - p, Fraction(0)) for o, p in zip(at.out, at.draft, strict=True)]


VERIFIERS: dict[str, Callable[..., Iterator[tuple[int, list[Fraction]]]]] = {
    "token": token_by_token,
    "block": as_a_block,
}


def paths(chain: Chain, verification: str) -> dict[Path, Fraction]:
    """Chance of every path to a text of `LENGTH` tokens; the last blocks are shortened."""
    done: dict[Path, Fraction] = {}
    under_way: dict[Path, Fraction] = {((), ()): Fraction(1)}
    while under_way:
        (text, flags), chance = under_way.popitem()
        limit = min(chain.drafted, LENGTH - len(text) - 1)
        for drafts in product(range(2), repeat=limit):
            block = [position(chain, text + drafts[:i]) for i in range(limit + 1)]
            drawn = chance * chance_of(block, drafts)
            for kept, after in VERIFIERS[verification](block, drafts):
                for last, weight in enumerate(after):
                    path = (
                        (*text, *drafts[:kept], last),
                        (*flags, *(i < limit for i in range(kept + 1))),
                    )
                    place = done if len(path[0]) == LENGTH else under_way
                    if weight:
                        place[path] = place.get(path, Fraction(0)) + drawn * weight
    return done


def column(chain: Chain, text: Text, name: str) -> list[Fraction]:
    """What p, q or out gives the tokens of a text."""
    return [getattr(position(chain, text[:i]), name)[x] for i, x in enumerate(text)]


def texts() -> list[Text]:
    return list(product(range(2), repeat=LENGTH))


def some_chains() -> list[Chain]:
    """Every third of the 256 chains of `sequence`."""
    return list(chains())[::3]
