"""Decoders small enough to follow every draft, by the definitions and in any arithmetic.

A tree gives the rows (p, q) after every prefix. `decode` drafts whole blocks, verifies them and
commits what is emitted, as the runtime does, and returns the chance of every path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cactus_theory import (
    Cactus,
    CactusExact,
    CandidateRule,
    Clamp,
    Lenience,
    Mixture,
    OneLevelRecovery,
    Rule,
    SpeculativeSampling,
    TopKAcceptance,
    TypicalAcceptance,
)

Text = tuple[int, ...]
RULES = [
    SpeculativeSampling(),
    Cactus(0.2),
    CactusExact(0.3),
    Clamp(0.1),
    OneLevelRecovery(Cactus(0.2)),
    Lenience(0.5),
    Mixture(0.4),
    TypicalAcceptance(0.3),
    TopKAcceptance(2),
]
ORDERED = [
    SpeculativeSampling(),
    Cactus(0.02),
    CactusExact(0.02),
    Clamp(0.02),
    OneLevelRecovery(Cactus(0.02)),
    Lenience(0.7),
    Mixture(0.6),
]


class Bent(CandidateRule):
    """g = q + q (1 - q) / 2: rational, and 0 and 1 stay where they are."""

    def __repr__(self):  # names the tests alike in every process
        return "Bent()"

    def boost(self, target_prob, *, xp=np):
        return target_prob * (3 - target_prob) / 2

    def shrink(self, target_prob, *, xp=np):
        return 1 - target_prob / 2


class Node(NamedTuple):
    """One position: rows, mass kept of each token, and what is drawn after each rejection."""

    draft: np.ndarray
    target: np.ndarray
    kept: np.ndarray
    recovered: np.ndarray
    emitted: np.ndarray


class Path(NamedTuple):
    """A text, and which of its tokens were verified."""

    text: Text
    verified: tuple[bool, ...]


def node(rule: Rule, p: np.ndarray, q: np.ndarray) -> Node:
    kept = rule.accepted_mass(p, q)
    recovered = np.array([q * 0 for _ in q])
    for n in range(len(q)):
        weights = rule.recovery_weights(n, p, q)
        if p[n] > kept[n]:
            recovered[n] = weights / weights.sum() if weights.sum() > 0 else q
    return Node(p, q, kept, recovered, kept + ((p - kept)[:, None] * recovered).sum(axis=0))


def prefixes(size: int, length: int) -> Iterator[Text]:
    for n in range(length):
        yield from product(range(size), repeat=n)


def rational_rows(rng: np.random.Generator, size: int, *, least: int = 0) -> np.ndarray:
    weights = [0]
    while not sum(weights):
        weights = rng.integers(least, 6, size=size).tolist()
    return np.array([Fraction(weight, sum(weights)) for weight in weights], dtype=object)


def rows(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """A draft's row and a target's, alike as those of two models are."""
    q = rng.dirichlet(np.full(size, 0.7))
    return (q + rng.dirichlet(np.full(size, 0.7))) / 2, q


def rational_tree(rng, rule: Rule, size: int, length: int, *, least: int = 0) -> dict[Text, Node]:
    pair = lambda: [rational_rows(rng, size, least=least) for _ in range(2)]  # noqa: E731
    return {prefix: node(rule, *pair()) for prefix in prefixes(size, length)}


def tree(rng: np.random.Generator, rule: Rule, size: int, length: int) -> dict[Text, Node]:
    return {prefix: node(rule, *rows(rng, size)) for prefix in prefixes(size, length)}


def along(nodes: dict[Text, Node], text: Text, column: str) -> np.ndarray:
    """Rows of a column along a text."""
    return np.array([getattr(nodes[text[:i]], column) for i in range(len(text))])


def of_tokens(nodes: dict[Text, Node], text: Text, column: str) -> np.ndarray:
    """What a column gives the text's own tokens."""
    return np.array([getattr(nodes[text[:i]], column)[x] for i, x in enumerate(text)])


def target_probability(nodes: dict[Text, Node], text: Text) -> Any:
    return prod(of_tokens(nodes, text, "target").tolist())


def token_outcomes(block: list[Node], drafts: Text) -> Iterator[tuple[int, np.ndarray]]:
    """(kept, chance of it times the distribution of the token after) of k drafts, one by one."""
    alive: Any = 1
    for i, x in enumerate(drafts):
        rejected = 1 - block[i].kept[x] / block[i].draft[x]
        yield i, alive * rejected * block[i].recovered[x]
        alive = alive * (1 - rejected)
    yield len(drafts), alive * block[-1].target


def block_outcomes(block: list[Node], drafts: Text) -> Iterator[tuple[int, np.ndarray]]:
    """The same by block verification, as Sun et al. write it, with `emitted` for the target."""
    k, survival = len(drafts), [1]
    for i, x in enumerate(drafts):
        ratio = block[i].emitted[x] / block[i].draft[x]
        survival.append(min(survival[-1] * ratio, 1))
    missing = [np.maximum(s * b.emitted - b.draft, 0) for s, b in zip(survival, block, strict=True)]
    alive: Any = 1
    for i in range(k, 0, -1):
        if i == k:
            kept: Any = survival[k]
        else:
            room = missing[i].sum() + 1 - survival[i]
            kept = missing[i].sum() / room if room > 0 else 1
        after = block[k].target if i == k else _normalised(missing[i], block[i].emitted)
        yield i, alive * kept * after
        alive = alive * (1 - kept)
    yield 0, alive * (_normalised(missing[0], block[0].emitted) if k else block[0].target)


def _normalised(weights: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    return weights / weights.sum() if weights.sum() > 0 else otherwise


def decode(
    nodes: dict[Text, Node],
    length: int,
    *,
    num_drafts: Callable[[Text], int],
    outcomes: Callable[[list[Node], Text], Iterator[tuple[int, np.ndarray]]] = token_outcomes,
    eos: int | None = None,
    block_of: Callable[[Path, list[Node]], list[Node]] = lambda path, block: block,
) -> dict[Path, Any]:
    """Chance of every path of a decoder that stops at `eos` or after `length` tokens."""
    size = len(nodes[()].target)
    done: dict[Path, Any] = {}
    under_way: dict[Path, Any] = {Path((), ()): 1}
    while under_way:
        path, chance = under_way.popitem()
        limit = min(num_drafts(path.text), length - len(path.text) - 1)
        for drafts in product(range(size), repeat=limit):
            block = [nodes[path.text + drafts[:i]] for i in range(limit + 1)]
            drawn = chance * prod(b.draft[x] for b, x in zip(block, drafts, strict=False))
            if not drawn > 0:
                continue
            for kept, after in outcomes(block_of(path, block), drafts):
                for last in range(size):
                    if after[last] > 0:
                        tokens = (*drafts[:kept], last)
                        flags = tuple(i < limit for i in range(kept + 1))
                        committed = _committed(path, tokens, flags, eos)
                        ended = len(committed.text) == length or committed.text[-1] == eos
                        place = done if ended else under_way
                        place[committed] = place.get(committed, 0) + drawn * after[last]
    return done


def _committed(path: Path, tokens: Text, flags: tuple[bool, ...], eos: int | None) -> Path:
    count = tokens.index(eos) + 1 if eos in tokens else len(tokens)
    return Path(path.text + tokens[:count], path.verified + flags[:count])


def by_text(paths: dict[Path, Any]) -> dict[Text, Any]:
    found: dict[Text, Any] = {}
    for path, chance in paths.items():
        found[path.text] = found.get(path.text, 0) + chance
    return found


OUTCOMES = {"token": token_outcomes, "block": block_outcomes}


def by_definition(nodes, k, outcomes):
    """Chance of every (emitted, accepted) of one block, every draft followed."""
    found: dict = {}
    for drafts in product(range(len(nodes[()].draft)), repeat=k):
        block = [nodes[drafts[:i]] for i in range(k + 1)]
        drawn = prod(b.draft[x] for b, x in zip(block, drafts, strict=False))
        if not drawn > 0:
            continue
        for kept, after in outcomes(block, drafts):
            for last, chance in enumerate(after):
                outcome = ((*drafts[:kept], last), kept)
                found[outcome] = found.get(outcome, 0) + drawn * chance
    return {outcome: chance for outcome, chance in found.items() if chance > 0}
