"""The exact distribution of a verified block, and of what can be observed of it.

A block has k >= 0 drafted tokens, each drawn from its own draft distribution, independently of the
others. One position is a block of one draft with a fixed bonus token. An **outcome** is (emitted
tokens, accepted tokens). Costs grow with V^(k+1): this is for a few tokens of a small vocabulary,
or for one position of a few thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod
from numbers import Rational
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.rules import Rule, SharedRecoveryRule, SpeculativeSampling
from cactus_theory.testing._outcomes import Distribution, Tokens

_MOST_OUTCOMES = 20_000


@dataclass(frozen=True)
class Position:
    """What a rule accepts and recovers at one position.

    Attributes
    ----------
    rule : Rule
    draft, target : array, shape (V,)
    proposal : array, shape (V,)
        The distribution that tokens are drawn from: the draft, if nothing is wrong.
    accepted : array, shape (V,)
        Chance of acceptance of each token; 0 where nothing is drafted.
    drafted : array of int, shape (R,)
        Tokens that can be drafted.
    recovery : array, shape (R, V)
        Distribution of the token recovered after each; the target where its weights are empty.
    """

    rule: Rule
    draft: np.ndarray
    target: np.ndarray
    proposal: np.ndarray
    accepted: np.ndarray
    drafted: np.ndarray
    recovery: np.ndarray

    @classmethod
    def of(cls, rule: Rule, draft: np.ndarray, target: np.ndarray) -> Position:
        drafted = np.flatnonzero(draft > 0)
        accepted, recovery = np.zeros_like(draft), np.zeros((drafted.size, draft.size), draft.dtype)
        accepted[drafted] = np.asarray(rule.accepted_mass(draft, target))[drafted] / draft[drafted]
        for row, token in enumerate(drafted.tolist()):
            if row and isinstance(rule, SharedRecoveryRule):
                recovery[row] = recovery[0]
            else:
                recovery[row] = recovery_of(rule, token, draft, target)
        return cls(rule, draft, target, draft, np.minimum(accepted, 1), drafted, recovery)

    @property
    def kept(self) -> np.ndarray:
        """Mass accepted, token by token."""
        return self.proposal * self.accepted

    @property
    def recovered(self) -> np.ndarray:
        """Mass recovered, token by token."""
        return (self.proposal * (1 - self.accepted))[self.drafted] @ self.recovery


def recovery_of(rule: Rule, token: int, draft: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Distribution of the token recovered after `token`; the target if its weights are empty."""
    weights = rule.recovery_weights(token, draft, target)
    return normalised(weights if weights.sum() > 0 else target)


def normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()


@dataclass(frozen=True)
class Block:
    """Positions of a block, and the distribution of its bonus token.

    Attributes
    ----------
    rule : Rule
    draft : array, shape (k, V)
    target : array, shape (k + 1, V)
        Floats, or Fractions where the comparison is to be exact.
    positions : tuple of k Position
    single : bool
        Whether this is a single position, without a bonus token.
    """

    rule: Rule
    draft: np.ndarray
    target: np.ndarray
    positions: tuple[Position, ...]
    single: bool = False

    @classmethod
    def of(cls, rule: Rule, *, draft: Any, target: Any) -> Block:
        """Solve the rule at every position; 1-D distributions mean one position.

        Raises
        ------
        ValueError
            If an argument is not a distribution, the shapes do not fit, or there are too many
            outcomes.
        """
        exact = _rational(draft, target) and isinstance(rule, SpeculativeSampling)
        given = np.asarray(draft, dtype=object), np.asarray(target, dtype=object)
        p, q = (_floats(name, x) for name, x in (("draft", draft), ("target", target)))
        single = p.ndim == q.ndim == 1 and p.size > 0
        if single:
            if p.size != q.size:
                raise ValueError(
                    f"draft and target must share a vocabulary, got sizes {p.size} and {q.size}"
                )
            p, q = p[None], np.stack([q, np.eye(q.size)[0]])
            given = given[0][None], np.stack([given[1], np.eye(q.shape[1], dtype=object)[0]])
        if q.ndim != 2:
            raise ValueError(f"target must have shape (k + 1, V), got {q.shape}")
        shape = q.shape[0] - 1, q.shape[1]
        if p.size == 0 and shape[0] == 0:
            p = np.empty((0, shape[1]))
        elif p.shape != shape:
            raise ValueError(
                f"draft must have shape (k, V) = {shape}, one row less than target, got {p.shape}"
            )
        outcomes = prod(int((row > 0).sum()) for row in [*p, q[-1]])
        if outcomes > _MOST_OUTCOMES:
            raise ValueError(
                f"a block of {shape[0]} drafts over {shape[1]} tokens has {outcomes} outcomes, "
                f"more than {_MOST_OUTCOMES}: use fewer drafts or a smaller vocabulary"
            )
        for name, rows in (("draft", p), ("target", q)):
            if len(rows):
                _validate.law(name, rows)
        if exact:
            p, q = (given[0] if len(p) else p), given[1]
        pairs = zip(p, q, strict=False)
        return cls(rule, p, q, tuple(Position.of(rule, *pair) for pair in pairs), single)

    @property
    def size(self) -> int:
        return self.target.shape[1]

    @property
    def exact(self) -> bool:
        return self.target.dtype == object

    def in_floats(self) -> Block:
        if not self.exact:
            return self
        p, q = self.draft.astype(float), self.target.astype(float)
        return replace(Block.of(self.rule, draft=p, target=q), single=self.single)

    def under(self, rule: Rule) -> Block:
        """The same distributions judged by another rule."""
        return Block.of(rule, draft=self.draft, target=self.target)

    def changed(self, change: Callable[[Position], Position]) -> Block:
        """The block with each position replaced."""
        return replace(self, positions=tuple(map(change, self.positions)))

    def drafts(self) -> Iterator[tuple[Tokens, Any]]:
        """All drafted blocks, with their probabilities."""
        rows = self.draft.tolist()
        for tokens in product(*(at.drafted.tolist() for at in self.positions)):
            yield tokens, prod(p[x] for p, x in zip(rows, tokens, strict=True))

    def chances(self, tokens: Tokens) -> list[Any]:
        """Chance of acceptance of each drafted token."""
        pairs = zip(self.positions, tokens, strict=True)
        return [at.accepted[x : x + 1].tolist()[0] for at, x in pairs]  # a float or a Fraction

    def last(self, tokens: Tokens, kept: int) -> np.ndarray:
        """Distribution of the token emitted after `kept` accepted ones: recovered, or the bonus."""
        if kept == len(tokens):
            return self.target[-1]
        at = self.positions[kept]
        return at.recovery[np.searchsorted(at.drafted, tokens[kept])]

    def distribution(self) -> Distribution:
        """Probability of each possible outcome."""
        found: Distribution = {}
        prefixes: dict[Tokens, Any] = {(): 1}
        for place, at in enumerate(self.positions):
            kept, recovered = at.kept, at.recovered
            found |= {(x, place): chance for x, chance in _longer(prefixes, recovered).items()}
            prefixes = _longer(prefixes, kept)
        bonus = _longer(prefixes, self.target[-1])
        return found | {(x, len(self.positions)): chance for x, chance in bonus.items()}


def _longer(prefixes: dict[Tokens, Any], last: np.ndarray) -> dict[Tokens, Any]:
    """Prefixes with one more token, of positive weight."""
    tokens = [(x, weight) for x, weight in enumerate(last.tolist()) if weight > 0]
    return {(*head, x): chance * w for head, chance in prefixes.items() for x, w in tokens}


def _rational(*given: Any) -> bool:
    """Whether all are rational numbers, and at least one is a Fraction."""
    values = [x for each in given for x in np.asarray(each, dtype=object).flat]
    fractions = any(isinstance(x, Fraction) for x in values)
    return fractions and all(isinstance(x, Rational) for x in values)


def _floats(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of probabilities, got {values!r}") from error


def block_distribution(rule: Rule, *, draft: Any, target: Any) -> Distribution:
    """Exact joint distribution of the emitted tokens and the number of accepted ones.

    Parameters
    ----------
    rule : Rule
    draft : array_like, shape (k, V)
        The distributions of the drafted tokens, which are independent; k may be 0.
    target : array_like, shape (k + 1, V)
        For plain speculative sampling both may hold Fractions; then the result is exact.

    Returns
    -------
    dict of (tuple of int, int) to float
        Probability of (emitted tokens, accepted tokens); impossible outcomes are left out.

    Raises
    ------
    ValueError
        If an argument is not a distribution, the shapes do not fit, or there are more than 20,000
        outcomes.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> found = block_distribution(
    ...     SpeculativeSampling(), draft=[[0.5, 0.5]], target=[[0.25, 0.75], [1.0, 0.0]])
    >>> found == {((0, 0), 1): 0.25, ((1,), 0): 0.25, ((1, 0), 1): 0.5}
    True
    """
    return Block.of(rule, draft=draft, target=target).distribution()


def tolerances(block: Block, *, cells: int, rounding: float) -> Distribution:
    """How far the midpoints of a grid may be off for each outcome of a correct verifier.

    Given the drafted tokens an outcome is a box of uniforms. An accepted or rejected side has one
    end inside [0, 1), which c cells measure to the distance of its length from a multiple of 1/c;
    the side of the last token has two, measured to 1/c, or exactly if all its probabilities are
    multiples of 1/c. The sides' errors compound to prod(length + error) - prod(length).
    """
    slack: Distribution = {}
    for tokens, drawn in block.drafts():
        chances = block.chances(tokens)
        for count in range(len(tokens) + 1):
            lengths = chances[:count] + [1 - a for a in chances[count : count + 1]]
            if prod(lengths) == 0:
                continue
            sides = [(length, _off_grid(length, cells) + rounding) for length in lengths]
            last = block.last(tokens, count)
            coarse = max(_off_grid(share, cells) for share in last.tolist()) > rounding
            for token in np.flatnonzero(last).tolist():
                share = float(last[token])
                error = rounding + (1 / cells if coarse and share < 1 else 0.0)
                box = [*sides, (share, error)]
                exact = prod(length for length, _ in box)
                outer = prod(length + e for length, e in box)
                outcome = (*tokens[:count], token), count
                slack[outcome] = slack.get(outcome, 0.0) + drawn * (outer - exact)
    return slack


def _off_grid(length: float, cells: int) -> float:
    return abs(round(length * cells) / cells - length)
