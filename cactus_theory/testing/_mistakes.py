"""Mistakes in how tokens are drafted or how one position is judged, made at every position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cactus_theory.rules import Rule
from cactus_theory.testing._block import Block, Position, normalised, recovery_of
from cactus_theory.testing._outcomes import Distribution

Wrong = Callable[[Block, float], Distribution]


@dataclass(frozen=True)
class Mistake:
    """A named wrong distribution of blocks, or a family of them.

    Attributes
    ----------
    name : str
        With a placeholder for the parameter, if there is one: ``"mixture w = {:.3g}"``.
    distribution : callable (Block, float) -> dict of (tuple of int, int) to float
        Probability of each (emitted tokens, accepted tokens).
    scope : {"drafting", "position", "block"}
        Where the mistake is made.
    grid : tuple of float
        Starting points of the fit, ascending; empty without a parameter.
    usual : tuple of float
        Values of the parameter that a test should be able to detect.
    between : bool
        Whether values between those of the grid are meaningful.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> from cactus_theory.testing import CATALOGUE
    >>> block = Block.of(
    ...     SpeculativeSampling(), draft=[[0.5, 0.5]], target=[[0.25, 0.75], [1.0, 0.0]])
    >>> [mistake.distribution(block, 0.0) for mistake in CATALOGUE
    ...  if mistake.name == "no bonus token"]
    [{((0,), 1): 0.25, ((1,), 0): 0.25, ((1,), 1): 0.5}]
    """

    name: str
    distribution: Wrong
    scope: str = "position"
    grid: tuple[float, ...] = ()
    usual: tuple[float, ...] = (0.0,)
    between: bool = True

    def values(self, block: Block, among: Sequence[float]) -> list[float]:
        """Values of the parameter that are meaningful for this vocabulary."""
        return [x for x in among if self.between or x < block.size]


def tempered(distribution: Any, temperature: float) -> np.ndarray:
    """The distribution^(1/T), normalised; T = 0 is one-hot at the first maximum.

    Parameters
    ----------
    distribution : array_like, shape (V,)
    temperature : float
        T >= 0.

    Returns
    -------
    float64 array, shape (V,)

    Examples
    --------
    >>> tempered(np.array([0.8, 0.2]), 0.5).round(4)
    array([0.9412, 0.0588])
    >>> tempered(np.array([0.8, 0.2]), 0)
    array([1., 0.])
    """
    weights = np.asarray(distribution, dtype=np.float64)
    if temperature == 0:
        return np.eye(weights.size)[int(np.argmax(weights))]
    positive = weights > 0
    logs = np.log(np.where(positive, weights, 1.0)) / temperature
    return normalised(np.where(positive, np.exp(logs - logs[positive].max()), 0.0))


def at(change: Callable[[Position, float], Position]) -> Wrong:
    return lambda block, x: block.changed(lambda position: change(position, x)).distribution()


def recovering(recovery: Callable[[Position], np.ndarray]) -> Wrong:
    """Recover from another distribution: one for all rejected tokens, or a row for each."""

    def change(position: Position, _: float) -> Position:
        rows = np.broadcast_to(recovery(position), position.recovery.shape)
        return replace(position, recovery=rows)

    return at(change)


def judging(rule: Callable[[float], Rule]) -> Wrong:
    return lambda block, x: block.under(rule(x)).distribution()


def unrescaled(position: Position) -> np.ndarray:
    weights = np.maximum(position.target - position.draft, 0.0)
    return normalised(weights if weights.sum() > 0 else position.target)


def residual_argmax(position: Position) -> np.ndarray:
    return np.eye(position.target.size)[position.recovery.argmax(axis=-1)]


def all_accepted(position: Position, _: float) -> Position:
    return replace(position, accepted=np.where(position.draft > 0, 1.0, 0.0))


def without_draft(position: Position, _: float) -> Position:
    accepted = np.zeros_like(position.accepted)
    for token in position.drafted.tolist():
        limit = position.rule.threshold(token, position.draft, position.target)
        accepted[token] = min(limit, 1.0)
    return replace(position, accepted=accepted)


def drafted_at(position: Position, temperature: float) -> Position:
    return replace(position, proposal=tempered(position.draft, temperature))


def judged_as(position: Position, draft: np.ndarray, target: np.ndarray) -> Position:
    """Tokens drawn from the draft but judged with other distributions."""
    other = Position.of(position.rule, draft, target)
    unexpected = (position.draft > 0) & (draft == 0)  # u * 0 is below any threshold above 0
    chances = np.where(unexpected & (target > 0), 1.0, other.accepted)
    rows = [recovery_of(position.rule, int(x), draft, target) for x in position.drafted]
    return replace(position, accepted=chances, recovery=np.array(rows))


def by_the_same_uniform(position: Position) -> np.ndarray:
    """The inverse distribution function at the same uniform that failed the acceptance test."""
    rows = []
    for token, usual in zip(position.drafted.tolist(), position.recovery, strict=True):
        edges = np.maximum(np.append(0.0, np.cumsum(usual)), position.accepted[token])
        left = np.diff(edges)
        rows.append(normalised(left) if left.sum() > 0 else usual)
    return np.array(rows)


def top_of(target: np.ndarray, k: float) -> np.ndarray:
    """Each row restricted to its k most probable tokens."""
    order = np.argsort(-target, axis=-1, kind="stable")[:, : int(k)]
    cut = np.zeros_like(target)
    np.put_along_axis(cut, order, np.take_along_axis(target, order, axis=-1), axis=-1)
    return cut / cut.sum(axis=-1, keepdims=True)
