"""The exact law of a verified block, and of blocks made with a part replaced.

A block has k >= 0 drafted tokens, each from its own law whatever the others were, as in a test. An
**outcome** is (emitted tokens, accepted tokens reported). Its cost grows with V^(k+1): it is meant
for a few tokens of a small vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.rules import Rule
from cactus_theory.testing._mistakes import Position

Tokens = tuple[int, ...]
Kept = tuple[bool, ...]
Outcome = tuple[Tokens, int]
BlockLaw = dict[Outcome, float]

_MOST_OUTCOMES = 20_000


@dataclass(frozen=True)
class Block:
    """The laws of one row: those its tokens are drafted from, and one more of the target.

    Attributes
    ----------
    rule : Rule
    draft : array, shape (k, V)
    target : array, shape (k + 1, V)
    positions : tuple of k Position
        What the rule accepts and recovers at each.
    """

    rule: Rule
    draft: np.ndarray
    target: np.ndarray
    positions: tuple[Position, ...]

    @classmethod
    def of(cls, rule: Rule, *, draft: Any, target: Any) -> Block:
        """Solve the rule at every position.

        Raises
        ------
        ValueError
            If a law is not one, the shapes do not fit, or there are too many outcomes to list.
        """
        target = _validate.law("target", target)
        if target.ndim != 2:
            raise ValueError(f"target must have shape (k + 1, V), got {target.shape}")
        length, size = target.shape[0] - 1, target.shape[1]
        draft = np.asarray(draft, dtype=np.float64)
        if draft.size == 0 and length == 0:
            draft = np.empty((0, size))
        if draft.shape != (length, size):
            raise ValueError(
                f"draft must have shape (k, V) = {(length, size)}, one row less than target, got "
                f"{draft.shape}"
            )
        if size ** (length + 1) > _MOST_OUTCOMES:
            raise ValueError(
                f"a block of {length} drafts over {size} tokens has {size ** (length + 1)} outcomes"
                f", more than {_MOST_OUTCOMES}: use fewer drafts or a smaller vocabulary"
            )
        pairs = zip(draft, target[:-1], strict=True)
        positions = tuple(Position.of(rule, draft=p, target=q) for p, q in pairs)
        return cls(rule, draft, target, positions)

    def drafts(self) -> Iterator[tuple[Tokens, float]]:
        """All drafted blocks, with their probabilities."""
        for tokens in product(*(at.drafted.tolist() for at in self.positions)):
            yield tokens, prod(float(p[x]) for p, x in zip(self.draft, tokens, strict=True))

    def chances(self, tokens: Tokens) -> list[float]:
        """Chance of acceptance of each drafted token."""
        pairs = zip(self.positions, tokens, strict=True)
        return [min(float(at.accepted[x]), 1.0) for at, x in pairs]

    def last(self, tokens: Tokens, kept: int) -> np.ndarray:
        """Law of the token emitted after `kept` accepted ones: recovered, or the bonus."""
        if kept == len(tokens):
            return self.target[-1]
        at = self.positions[kept]
        return at.recovery[np.searchsorted(at.drafted, tokens[kept])]


def independent(chances: Sequence[float]) -> Iterator[tuple[Kept, float]]:
    """Which tokens would pass, each by its own uniform, with probabilities."""
    for kept in product((True, False), repeat=len(chances)):
        yield kept, prod(a if passes else 1 - a for a, passes in zip(chances, kept, strict=True))


def cut(tokens: Tokens, kept: Kept, last: int) -> Outcome:
    """What is right: the tokens before the first rejection, then one more."""
    count = accepted(kept)
    return (*tokens[:count], last), count


def accepted(kept: Kept) -> int:
    """Tokens before the first rejection."""
    return kept.index(False) if False in kept else len(kept)


def law_of_block(
    block: Block,
    *,
    passes: Callable[[Sequence[float]], Iterator[tuple[Kept, float]]] = independent,
    last: Callable[[Block, Tokens, int], np.ndarray] = Block.last,
    shown: Callable[[Tokens, Kept, int], Outcome] = cut,
) -> BlockLaw:
    """Law of the outcome, with who passes, the law of the last token or what is shown replaced."""
    law: BlockLaw = {}
    for tokens, drawn in block.drafts():
        for kept, chance in passes(block.chances(tokens)):
            if chance <= 0:
                continue
            for token, share in enumerate(last(block, tokens, accepted(kept)).tolist()):
                if share > 0:
                    outcome = shown(tokens, kept, token)
                    law[outcome] = law.get(outcome, 0.0) + drawn * chance * share
    return law


def block_law(rule: Rule, *, draft: Any, target: Any) -> BlockLaw:
    """Exact joint law of the tokens a verified block emits and of the number it accepts.

    Parameters
    ----------
    rule : Rule
    draft : array_like, shape (k, V)
        Laws the tokens are drafted from, each whatever the others were; k may be 0.
    target : array_like, shape (k + 1, V)

    Returns
    -------
    dict of (tuple of int, int) to float
        Probability of (emitted tokens, accepted tokens); impossible outcomes are left out.

    Raises
    ------
    ValueError
        If a law is not one, the shapes do not fit, or there are more than 20,000 outcomes.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> law = block_law(
    ...     SpeculativeSampling(), draft=[[0.5, 0.5]], target=[[0.25, 0.75], [1.0, 0.0]])
    >>> law == {((0, 0), 1): 0.25, ((1,), 0): 0.25, ((1, 0), 1): 0.5}
    True
    """
    return law_of_block(Block.of(rule, draft=draft, target=target))


def tolerances(block: Block, *, cells: int, rounding: float) -> BlockLaw:
    """By how much the midpoints of a grid may misjudge each outcome of a right sampler.

    Given the drafted tokens an outcome is a box of uniforms. An accepted or rejected side has one
    end inside [0, 1), which c cells measure to the distance of its length from a multiple of 1/c;
    the side of the last token has two, measured to 1/c, or exactly if all its probabilities are
    multiples of 1/c. The sides' errors compound to prod(length + error) - prod(length).
    """
    slack: BlockLaw = {}
    for tokens, drawn in block.drafts():
        chances = block.chances(tokens)
        for count in range(len(tokens) + 1):
            lengths = chances[:count] + [1 - a for a in chances[count : count + 1]]
            if prod(lengths) == 0:
                continue
            sides = [(length, _off_grid(length, cells) + rounding) for length in lengths]
            law = block.last(tokens, count)
            coarse = max(_off_grid(share, cells) for share in law.tolist()) > rounding
            for token in np.flatnonzero(law).tolist():
                share = float(law[token])
                error = rounding + (1 / cells if coarse and share < 1 else 0.0)
                box = [*sides, (share, error)]
                exact = prod(length for length, _ in box)
                outer = prod(length + e for length, e in box)
                outcome = cut(tokens, (True,) * count + (False,) * (len(tokens) - count), token)
                slack[outcome] = slack.get(outcome, 0.0) + drawn * (outer - exact)
    return slack


def _off_grid(length: float, cells: int) -> float:
    return abs(round(length * cells) / cells - length)
