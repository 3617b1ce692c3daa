"""Which mistake of the catalogue an observed distribution looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from cactus_theory.rules import Rule
from cactus_theory.testing._block import Block
from cactus_theory.testing._catalogue import CATALOGUE
from cactus_theory.testing._mistakes import Mistake
from cactus_theory.testing._outcomes import (
    Distribution,
    View,
    apart,
    as_array,
    first_decision,
    first_token,
    seen,
    whole,
)

_SAME = 1e-9  # total variation below which two distributions count as equal
_ALIKE = 1e-3  # and below which a second name adds nothing

HANDED = ("position", "block")  # mistakes of a verifier that is given its drafts
OF_TOKENS = ("drafting", "position")  # mistakes of a sampler that drafts each token itself

Rows = Sequence[Distribution]


@dataclass(frozen=True)
class Tested:
    """The blocks that a sampler is tried on, the mistakes it can make, and what is observed."""

    blocks: Sequence[Block]
    scopes: Sequence[str] = HANDED
    view: View = whole

    def right(self) -> list[Distribution]:
        return [seen(self.view, block.distribution()) for block in self.blocks]

    def made(self, mistake: Mistake, value: float) -> list[Distribution]:
        return [seen(self.view, mistake.distribution(block, value)) for block in self.blocks]

    def catalogue(self) -> Iterator[Mistake]:
        return (mistake for mistake in CATALOGUE if mistake.scope in self.scopes)

    def wrong(self) -> dict[str, list[Distribution]]:
        """The catalogue at its usual parameters, without mistakes that cannot be distinguished."""
        right, found = self.right(), {}
        for mistake in self.catalogue():
            for value in mistake.values(self.blocks[0], mistake.usual):
                rows = self.made(mistake, value)
                if farthest_apart(rows, right) > _SAME:
                    found[mistake.name.format(value)] = rows
        return found


def farthest_apart(rows: Rows, others: Rows) -> float:
    """The largest total variation of a row."""
    return max(map(apart, rows, others))


def wrong_distributions(rule: Rule, *, draft: Any, target: Any) -> dict[str, np.ndarray]:
    """What the catalogue's mistakes emit at one position, at their usual parameters.

    Mistakes that do not change the distribution of the emitted token are left out.

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
        If draft and target are not distributions over one vocabulary.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> found = wrong_distributions(SpeculativeSampling(), draft=[0.75, 0.25], target=[0.5, 0.5])
    >>> found["mixture w = 0.5"]
    array([0.625, 0.375])
    >>> "plain speculative sampling (no boost)" in found
    False
    """
    tested = one_token(rule, draft, target)
    size = tested.blocks[0].size
    return {name: as_array(rows[0], size) for name, rows in tested.wrong().items()}


def one_token(rule: Rule, draft: Any, target: Any) -> Tested:
    """A sampler that drafts and verifies single tokens."""
    block = Block.of(rule, draft=draft, target=target).in_floats()
    if not block.single:
        raise ValueError(
            f"draft and target must have shape (V,), got {np.shape(draft)} and {np.shape(target)}"
        )
    return Tested([block], OF_TOKENS, first_token)


def diagnose(observed: Any, rule: Rule, *, draft: Any, target: Any) -> list[tuple[str, float]]:
    """The distributions that the observed one resembles, the most likely first.

    The distance is KL(observed || distribution) in nats: G / 2n for n counts. A family's parameter
    is fitted first, which adds a penalty of log(n) / 2n as in Schwarz's criterion (probabilities
    count as n = 1e6). So a mistake without parameters comes before a family that contains it.

    Parameters
    ----------
    observed : array_like, shape (V,)
        Counts of emitted tokens (integers), or their probabilities.
    rule : Rule
        The rule that the sampler should follow.
    draft, target : array_like, shape (V,)

    Returns
    -------
    list of (str, float)
        Descriptions and distances, including those of the rule itself.

    Raises
    ------
    ValueError
        If an argument is not a distribution, or the shapes differ.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> diagnose([0.5, 0.25, 0.25], Cactus(0.5), draft=[0.8, 0.1, 0.1], target=[0.2, 0.4, 0.4])[0]
    ('mixture w = 0.5', 0.0)
    """
    tested = one_token(rule, draft, target)
    observed = np.asarray(observed)
    size = tested.blocks[0].size
    if observed.shape != (size,) or not observed.sum() > 0 or observed.min() < 0:
        raise ValueError(f"observed must be counts or probabilities of shape ({size},)")
    samples = int(observed.sum()) if np.issubdtype(observed.dtype, np.integer) else 1_000_000
    found = ranked([as_distribution(observed)], tested, samples=samples)
    return [(match.name, match.distance) for match in found]


def as_distribution(first: Any) -> Distribution:
    """Counts or probabilities of single tokens, in the form of `first_token`'s view."""
    return {((token,), 0): weight for token, weight in enumerate(np.asarray(first).tolist())}


@dataclass(frozen=True)
class Match:
    """A possible mistake; `distance` is KL(observed || rows), summed over the rows."""

    name: str
    distance: float
    rows: Rows
    cost: float


def ranked(observed: Rows, tested: Tested, *, samples: float) -> list[Match]:
    """All possible explanations, the most likely first, including the correct distribution."""
    observed, right = [_normalised(row) for row in observed], tested.right()
    price = log(max(samples, 2)) / (2 * max(samples, 1))
    distance = _kl(observed, right)
    found = [Match(_right_name(tested), distance, right, distance)]
    for mistake in tested.catalogue():
        value, distance = _fitted(mistake, observed, tested)
        if distance < inf:
            rows = tested.made(mistake, value)
            if farthest_apart(rows, right) > _SAME:
                cost = distance + price * bool(mistake.grid)
                found.append(Match(mistake.name.format(value), distance, rows, cost))
    return sorted(found, key=lambda match: round(match.cost, 12))


def _fitted(mistake: Mistake, observed: Rows, tested: Tested) -> tuple[float, float]:
    """Parameter and distance of the member closest to what was observed."""

    def far(value: float) -> float:
        return _kl(observed, tested.made(mistake, value))

    grid = mistake.values(tested.blocks[0], mistake.grid)
    if not grid:
        return 0.0, inf if mistake.grid else far(0.0)
    distances = [far(value) for value in grid]
    best = int(np.argmin(distances))
    if mistake.between and distances[best] < inf:
        refined = minimize_scalar(
            lambda value: min(far(value), 1e9),
            bounds=(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]),
            method="bounded",
            options={"xatol": 1e-6 * grid[best] + 1e-9},
        )
        if refined.fun < distances[best]:
            return float(refined.x), float(refined.fun)
    return grid[best], distances[best]


def _normalised(row: Distribution) -> Distribution:
    total = sum(row.values())
    return {key: float(weight / total) for key, weight in row.items()}


def _kl(observed: Rows, rows: Rows) -> float:
    far = 0.0
    for one, other in zip(observed, rows, strict=True):
        for key, chance in one.items():
            if chance > 0:
                given = other.get(key, 0.0)
                if given <= 0:
                    return inf
                far += chance * log(chance / given)
    return max(far, 0.0)


def _right_name(tested: Tested) -> str:
    return f"the distribution of {tested.blocks[0].rule!r}"


def looks_like(
    observed: Rows,
    tested: Tested,
    *,
    samples: float,
    fits: Callable[[Rows, Rows], bool],
    right: Callable[[int, View, Rows], bool],
) -> str:
    """A sentence: the most likely mistake, in whole blocks or in the first token of one.

    `fits` says whether distributions agree with the observations, and `right` whether the
    observations of one row, under a view, may be correct.
    """
    words, matches = _likeliest(observed, tested, samples, fits)
    if matches or tested.view is first_token:
        return words
    for at, block in enumerate(tested.blocks):
        first = [seen(first_token, observed[at])]
        if block.positions and not right(at, first_token, first):
            alone = Tested([block], ("position",), first_token)
            words, _ = _likeliest(first, alone, samples, fits)
            return f"the first token of row {at} is wrong by itself: {words}"
    for at, block in enumerate(tested.blocks):
        decided = seen(first_decision, _normalised(observed[at]))
        if block.positions and not right(at, first_decision, [seen(first_decision, observed[at])]):
            kept = block.positions[0].kept
            mass = [decided.get(((token,), 1), 0.0) for token in range(block.size)]
            token = int(np.argmax(abs(mass - kept)))
            return (
                f"the first token of row {at} is right by itself, but drafted token {token} is "
                f"accepted with mass {mass[token]:.6g} instead of {kept[token]:.6g}; {words}"
            )
    return words


def _likeliest(
    observed: Rows, tested: Tested, samples: float, fits: Callable[[Rows, Rows], bool]
) -> tuple[str, bool]:
    """A sentence, and whether a mistake fits."""
    name = _right_name(tested)
    found = [m for m in ranked(observed, tested, samples=samples) if m.name != name]
    if not found:
        return "it resembles nothing in the catalogue", False
    best = found[0]
    matches = fits(observed, best.rows)
    off = [farthest_apart(match.rows, best.rows) for match in found]
    twins = [
        match.name
        for match, far in zip(found, off, strict=True)
        if far <= _SAME and match.cost <= best.cost + _SAME
    ]
    rest = [match for match, far in zip(found, off, strict=True) if far > _ALIKE][:1]
    verb = "it matches" if matches else "nothing in the catalogue fits; the nearest is"
    then = "".join(f", before {match.name} ({match.distance:.2g})" for match in rest)
    return f"{verb} {' or '.join(twins)} (KL {best.distance:.2g} nats){then}", matches
