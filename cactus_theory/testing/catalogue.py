"""Usual mistakes of samplers, as laws: what a wrong implementation emits instead.

Knows the emitted law of each mistake, and how to fit the ones that have a parameter. Knows nothing
of tests and tolerances. It holds the recovery law of every drafted token, so its cost grows with
the square of the vocabulary: it is meant for test laws of at most a few thousand tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory.rules import (
    Cactus,
    CactusExact,
    Lenience,
    Mixture,
    Rule,
    TopKAcceptance,
    TypicalAcceptance,
)
from cactus_theory.testing._mistakes import Mistake as Mistake
from cactus_theory.testing._mistakes import Position as Position
from cactus_theory.testing._mistakes import (
    drafted_at,
    kl,
    law_of,
    normalised,
    residual_argmax,
    swapped,
    top_of_target,
    unrescaled,
    without_draft,
)
from cactus_theory.testing._mistakes import tempered as tempered

_SAME = 1e-9  # total variation below which two laws are one
_ALIKE = 1e-3  # and below which a second name says nothing new


_WEIGHTS = tuple(np.linspace(0.0, 1.0, 21))
_LENIENCES = tuple(np.linspace(0.04, 1.0, 25))
_TEMPERATURES = tuple(np.geomspace(0.05, 8.0, 31))
_BUDGETS = tuple(np.geomspace(1e-4, 20.0, 37))
_COUNTS = tuple(map(float, range(1, 65)))

CATALOGUE: tuple[Mistake, ...] = (
    Mistake("the target itself (no boost)", lambda at, _: at.target),
    Mistake("the draft itself (everything accepted)", lambda at, _: at.draft),
    Mistake("residual not rescaled", unrescaled),
    Mistake("recovery from the target", lambda at, _: at.law(recovery=at.target)),
    Mistake("recovery of the residual's argmax", residual_argmax),
    Mistake(
        "recovery of the target's argmax",
        lambda at, _: at.law(recovery=tempered(at.target, 0.0)),
    ),
    Mistake("acceptance without the draft's probability", without_draft),
    Mistake("draft and target exchanged", swapped),
    Mistake("greedy draft, judged by the sampled draft's law", lambda at, _: drafted_at(at, 0.0)),
    Mistake("typical acceptance", lambda at, _: law_of(TypicalAcceptance(), at)),
    Mistake("mixture w = {:.3g}", lambda at, w: law_of(Mixture(w), at), _WEIGHTS, (0.5,)),
    Mistake("lenience l = {:.3g}", lambda at, x: law_of(Lenience(x), at), _LENIENCES, (0.5,)),
    Mistake("draft temperature {:.3g}", drafted_at, _TEMPERATURES, (0.5, 0.7, 1.5)),
    Mistake("Cactus, delta = {:.3g}", lambda at, x: law_of(Cactus(x), at), _BUDGETS, (0.5, 1.0)),
    Mistake(
        "CactusExact, delta = {:.3g}",
        lambda at, x: law_of(CactusExact(x), at),
        _BUDGETS,
        (0.5, 1.0),
    ),
    Mistake("the target's top {:.0f}", top_of_target, _COUNTS, (1.0,), between=False),
    Mistake(
        "top-k acceptance, k = {:.0f}",
        lambda at, k: law_of(TopKAcceptance(int(k)), at),
        _COUNTS,
        (1.0,),
        between=False,
    ),
)


def wrong_laws(rule: Rule, *, draft: Any, target: Any) -> dict[str, np.ndarray]:
    """The laws of the catalogue at their usual parameters, without those that are the right one.

    Parameters
    ----------
    rule : Rule
    draft, target : array_like, shape (V,)

    Returns
    -------
    dict of str to float64 array, shape (V,)

    Raises
    ------
    ValueError
        If either is not a law over one vocabulary.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> laws = wrong_laws(SpeculativeSampling(), draft=[0.75, 0.25], target=[0.5, 0.5])
    >>> laws["mixture w = 0.5"]
    array([0.625, 0.375])
    >>> "the target itself (no boost)" in laws
    False
    """
    position = Position.of(rule, draft=draft, target=target)
    right = law_of(rule, position)
    laws = {}
    for mistake in CATALOGUE:
        values = mistake.usual if mistake.grid else (0.0,)
        for value in values:
            if not mistake.between and value >= right.size:
                continue
            law = mistake.law(position, value)
            if abs(law - right).sum() / 2 > _SAME:
                laws[mistake.name.format(value)] = law
    return laws


def diagnose(observed: Any, rule: Rule, *, draft: Any, target: Any) -> list[tuple[str, float]]:
    """Which laws the observed one looks like, the likeliest first.

    The distance is KL(observed || law) in nats: G / 2n for n counts. A family's parameter is
    fitted first, and pays for itself by log(n) / 2n as in Schwarz's criterion (a law counts as
    n = 1e6), so that a law without parameters comes before a family that also holds it.

    Parameters
    ----------
    observed : array_like, shape (V,)
        Counts of emitted tokens (integers), or the law itself.
    rule : Rule
        The rule that was meant.
    draft, target : array_like, shape (V,)

    Returns
    -------
    list of (str, float)
        Descriptions and distances; the rule's own law is among them.

    Raises
    ------
    ValueError
        If a law is not one, or the shapes differ.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> diagnose([0.5, 0.25, 0.25], Cactus(0.5), draft=[0.8, 0.1, 0.1], target=[0.2, 0.4, 0.4])[0]
    ('mixture w = 0.5', 0.0)
    """
    observed = np.asarray(observed)
    samples = int(observed.sum()) if np.issubdtype(observed.dtype, np.integer) else 1_000_000
    position = Position.of(rule, draft=draft, target=target)
    if observed.shape != position.draft.shape or not observed.sum() > 0 or observed.min() < 0:
        raise ValueError(f"observed must be counts or a law of shape {position.draft.shape}")
    found = ranked(normalised(observed.astype(np.float64)), position, samples=samples)
    return [(match.name, match.distance) for match in found]


@dataclass(frozen=True)
class Match:
    """A law of the catalogue beside an observed one: `distance` is KL(observed || law)."""

    name: str
    distance: float
    law: np.ndarray
    cost: float


def ranked(observed: np.ndarray, position: Position, *, samples: float) -> list[Match]:
    """`diagnose` for a law known as well as `samples` draws would tell it."""
    right = law_of(position.rule, position)
    price = np.log(max(samples, 2)) / (2 * max(samples, 1))
    distance = kl(observed, right)
    found = [Match(_right_name(position), distance, right, distance)]
    for mistake in CATALOGUE:
        value, distance = mistake.fit(observed, position)
        if not np.isfinite(distance):
            continue
        law = mistake.law(position, value)
        if abs(law - right).sum() / 2 > _SAME:
            cost = distance + price * bool(mistake.grid)
            found.append(Match(mistake.name.format(value), distance, law, cost))
    return sorted(found, key=lambda match: round(match.cost, 12))


def looks_like(
    observed: np.ndarray,
    position: Position,
    *,
    samples: float,
    fits: Callable[[np.ndarray], bool],
) -> str:
    """A sentence: the likeliest wrong law, and whether it `fits` what was seen."""
    right = _right_name(position)
    found = [match for match in ranked(observed, position, samples=samples) if match.name != right]
    if not found:
        return "it resembles nothing in the catalogue"
    first = found[0]
    far = [abs(match.law - first.law).sum() / 2 for match in found]
    twins = [match.name for match, off in zip(found, far, strict=True) if off <= _SAME]
    rest = [match for match, off in zip(found, far, strict=True) if off > _ALIKE][:1]
    verb = "it matches" if fits(first.law) else "nothing in the catalogue fits; the nearest is"
    then = "".join(f", before {match.name} ({match.distance:.2g})" for match in rest)
    return f"{verb} {' or '.join(twins)} (KL {first.distance:.2g} nats){then}"


def _right_name(position: Position) -> str:
    return f"the law of {position.rule!r}"
