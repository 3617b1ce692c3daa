"""Usual mistakes of samplers, each as the distribution of what a wrong implementation emits.

A mistake changes how tokens are drafted, how one position is judged, or what is made of a whole
block. Only a sampler that drafts by itself can make the first kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from cactus_theory.rules import (
    Cactus,
    CactusExact,
    Lenience,
    Mixture,
    Rule,
    SpeculativeSampling,
    TopKAcceptance,
    TypicalAcceptance,
)
from cactus_theory.testing._block import (
    Block,
    Distribution,
    Outcome,
    Position,
    Tokens,
    normalised,
    recovery_of,
)

Kept = tuple[bool, ...]
Wrong = Callable[[Block, float], Distribution]


@dataclass(frozen=True)
class Mistake:
    """A named wrong distribution of blocks, or a family of them.

    Attributes
    ----------
    name : str
        With a place for the parameter, if there is one: ``"mixture w = {:.3g}"``.
    distribution : callable (Block, float) -> dict of (tuple of int, int) to float
        Probability of each (emitted tokens, accepted tokens).
    scope : {"drafting", "position", "block"}
        Where the mistake is made.
    grid : tuple of float
        Empty without a parameter; else where the fit starts, ascending.
    usual : tuple of float
        Values of the parameter whose detection a test should be able to promise.
    between : bool
        Whether values between those of the grid mean anything.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
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
        """Values of the parameter that mean anything in this vocabulary."""
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


# Mistakes at one position, made at every position of a block.


def at(change: Callable[[Position, float], Position]) -> Wrong:
    return lambda block, x: block.changed(lambda position: change(position, x)).distribution()


def recovering(recovery: Callable[[Position], np.ndarray]) -> Wrong:
    """Recovery from another distribution: one for all rejected tokens, or a row for each."""

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
    """Tokens drawn from the draft and judged as if the distributions were others."""
    other = Position.of(position.rule, draft, target)
    unexpected = (position.draft > 0) & (draft == 0)  # u * 0 is below any threshold above 0
    chances = np.where(unexpected & (target > 0), 1.0, other.accepted)
    rows = [recovery_of(position.rule, int(x), draft, target) for x in position.drafted]
    return replace(position, accepted=chances, recovery=np.array(rows))


def by_the_same_uniform(position: Position) -> np.ndarray:
    """The inverse distribution function at the very uniform that failed the acceptance test."""
    rows = []
    for token, usual in zip(position.drafted.tolist(), position.recovery, strict=True):
        edges = np.maximum(np.append(0.0, np.cumsum(usual)), position.accepted[token])
        left = np.diff(edges)
        rows.append(normalised(left) if left.sum() > 0 else usual)
    return np.array(rows)


def top_of(target: np.ndarray, k: float) -> np.ndarray:
    """Each row cut to its k likeliest tokens."""
    order = np.argsort(-target, axis=-1, kind="stable")[:, : int(k)]
    cut = np.zeros_like(target)
    np.put_along_axis(cut, order, np.take_along_axis(target, order, axis=-1), axis=-1)
    return cut / cut.sum(axis=-1, keepdims=True)


# Mistakes with whole blocks.


def targeting(target: Callable[[np.ndarray, float], np.ndarray]) -> Wrong:
    """The rows of the target replaced."""
    return lambda block, x: Block.of(
        block.rule, draft=block.draft, target=target(block.target, x)
    ).distribution()


def ending(bonus: Callable[[Block], np.ndarray]) -> Wrong:
    """The bonus token drawn from another distribution, where anything was drafted."""

    def wrong(block: Block, _: float) -> Distribution:
        if not block.positions:
            return block.distribution()
        return replace(block, target=np.stack([*block.target[:-1], bonus(block)])).distribution()

    return wrong


def recovering_at(shift: Callable[[int, int], int]) -> Wrong:
    """Recovery by the distributions of another position, a function of the place and k."""

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
    """Which tokens would pass, each by its own uniform, with probabilities."""
    for kept in product((True, False), repeat=len(chances)):
        yield kept, prod(a if passes else 1 - a for a, passes in zip(chances, kept, strict=True))


def by_one_uniform(chances: Sequence[float]) -> Iterator[tuple[Kept, float]]:
    for low, high in pairwise(sorted({0.0, *chances, 1.0})):
        yield tuple(a > low for a in chances), high - low


def cut(tokens: Tokens, kept: Kept, last: int) -> Outcome:
    """What is right: the tokens before the first rejection, then one more."""
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
    """Distribution of the outcome with who passes or what is shown replaced."""
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
    """The right tokens and decisions, shown otherwise."""
    return lambda block, _: replayed(block, shown=shown)


def counting(change: Callable[[Kept], int]) -> Wrong:
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


def _grid(values: Any) -> tuple[float, ...]:
    return tuple(float(x) for x in values)


_TEMPERATURES = _grid(np.geomspace(0.05, 8.0, 31))
_BUDGETS = _grid(np.geomspace(1e-4, 20.0, 37))
_COUNTS = _grid(range(1, 65))

CATALOGUE: tuple[Mistake, ...] = (
    Mistake("plain speculative sampling (no boost)", judging(lambda _: SpeculativeSampling())),
    Mistake("everything accepted (the draft itself)", at(all_accepted)),
    Mistake("residual not rescaled", recovering(unrescaled)),
    Mistake("recovery from the target", recovering(lambda p: p.target)),
    Mistake("recovery of the residual's argmax", recovering(residual_argmax)),
    Mistake("recovery of the target's argmax", recovering(lambda p: tempered(p.target, 0.0))),
    Mistake("acceptance without the draft's probability", at(without_draft)),
    Mistake(
        "judged with draft and target exchanged",
        at(lambda p, _: judged_as(p, p.target, p.draft)),
    ),
    Mistake(
        "the uniform that rejected also draws the recovered token",
        recovering(by_the_same_uniform),
    ),
    Mistake("typical acceptance", judging(lambda _: TypicalAcceptance())),
    Mistake(
        "mixture w = {:.3g}", judging(Mixture), grid=_grid(np.linspace(0.0, 1.0, 21)), usual=(0.5,)
    ),
    Mistake(
        "lenience l = {:.3g}",
        judging(Lenience),
        grid=_grid(np.linspace(0.04, 1.0, 25)),
        usual=(0.5,),
    ),
    Mistake(
        "judged by the draft at temperature {:.3g}",
        at(lambda p, t: judged_as(p, tempered(p.draft, t), p.target)),
        grid=_TEMPERATURES,
        usual=(0.5, 0.7, 1.5),
    ),
    Mistake(
        "draft and target exchanged",
        at(lambda p, _: Position.of(p.rule, p.target, p.draft)),
        "drafting",
    ),
    Mistake(
        "greedy draft, judged as if it were sampled",
        at(lambda p, _: drafted_at(p, 0.0)),
        "drafting",
    ),
    Mistake("draft temperature {:.3g}", at(drafted_at), "drafting", _TEMPERATURES, (0.5, 0.7, 1.5)),
    Mistake("Cactus, delta = {:.3g}", judging(Cactus), grid=_BUDGETS, usual=(0.5, 1.0)),
    Mistake("CactusExact, delta = {:.3g}", judging(CactusExact), grid=_BUDGETS, usual=(0.5, 1.0)),
    Mistake(
        "the target's top {:.0f}", targeting(top_of), grid=_COUNTS, usual=(1.0,), between=False
    ),
    Mistake(
        "top-k acceptance, k = {:.0f}",
        judging(lambda k: TopKAcceptance(int(k))),
        grid=_COUNTS,
        usual=(1.0,),
        between=False,
    ),
    *(
        Mistake(name, wrong, "block")
        for name, wrong in {
            "the count includes the recovered or bonus token": counting(
                lambda kept: accepted(kept) + 1
            ),
            "the count is one too small": counting(lambda kept: max(accepted(kept) - 1, 0)),
            "the count goes on after the first rejection": counting(sum),
            "drafted tokens after the rejection are not cut": showing(not_cut),
            "positions after the rejection are verified on": verified_on,
            "off by one: the rejected token is kept": showing(rejected_too),
            "off by one: the last accepted token is lost": showing(one_lost),
            "no bonus token": showing(without_bonus),
            "no token after a rejection": showing(without_recovered),
            "bonus drawn from the draft at the last position": ending(lambda b: b.draft[-1]),
            "bonus drawn from the target one position early": ending(lambda b: b.target[-2]),
            "bonus drawn from a residual": ending(last_residual),
            "bonus is the target's argmax": ending(lambda b: tempered(b.target[-1], 0.0)),
            "residual of the first position": recovering_at(lambda place, k: 0),
            "residual of the last position": recovering_at(lambda place, k: k - 1),
            "residual of the next position": recovering_at(lambda place, k: min(place + 1, k - 1)),
            "residual of the position before": recovering_at(lambda place, k: max(place - 1, 0)),
            "target one position late": targeting(lambda q, _: q[[0, *range(len(q) - 1)]]),
            "target one position early": targeting(lambda q, _: q[[*range(1, len(q)), -1]]),
            "one uniform for the whole block": lambda block, _: replayed(
                block, passes=by_one_uniform
            ),
        }.items()
    ),
)
