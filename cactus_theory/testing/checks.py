"""Checks of other people's samplers: by enumeration where uniforms can be injected, else by counts.

A **verifier** decides one drafted position: ``verifier(token, draft, target, accept_uniform,
recover_uniform)`` returns the emitted token and whether the drafted one was accepted. A **sampler**
drafts by itself: ``sampler(draft, target, count, seed)`` returns counts of emitted tokens. Which of
them is right is not known here: the law comes from the rule, the names from the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from cactus_theory.emitted import output_distribution
from cactus_theory.rules import Rule, SpeculativeSampling
from cactus_theory.specification import verify
from cactus_theory.testing._edges import check_edges as check_edges
from cactus_theory.testing._errors import ConformanceError as ConformanceError
from cactus_theory.testing._errors import Verifier as Verifier
from cactus_theory.testing._errors import called
from cactus_theory.testing._sampling import SamplingReport as SamplingReport
from cactus_theory.testing._sampling import check_by_sampling as check_by_sampling
from cactus_theory.testing._sampling import samples_needed as samples_needed
from cactus_theory.testing.catalogue import Position, looks_like, wrong_laws


@dataclass(frozen=True)
class Enumeration:
    """What an enumeration found.

    Attributes
    ----------
    law, accepted_mass : array, shape (V,)
        Of the sampler; Fractions if the comparison was exact.
    tolerance : array, shape (V,)
        By which the emitted law may be off; zeros if the comparison was exact.
    unresolved : tuple of str
        Wrong laws of the catalogue that this grid could not tell from the right one here.

    Examples
    --------
    >>> rule = SpeculativeSampling()
    >>> found = check_by_enumeration(
    ...     specification_verifier(rule), rule, draft=[0.75, 0.25], target=[0.5, 0.5])
    >>> bool((abs(found.law - [0.5, 0.5]) <= found.tolerance).all())
    True
    """

    law: Any
    accepted_mass: Any
    tolerance: np.ndarray
    unresolved: tuple[str, ...]


def specification_verifier(rule: Rule) -> Verifier:
    """The package's own verifier of one position, in the form the checks take.

    Parameters
    ----------
    rule : Rule

    Returns
    -------
    callable (token, draft, target, accept_uniform, recover_uniform) -> (int, bool)

    Examples
    --------
    >>> verifier = specification_verifier(SpeculativeSampling())
    >>> verifier(0, np.array([1.0, 0.0]), np.array([0.5, 0.5]), 0.7, 0.2)
    (1, False)
    """

    def verifier(
        token: int, draft: Any, target: Any, accept: Any, recover: Any
    ) -> tuple[int, bool]:
        emitted, accepted = verify(
            rule,
            [token],
            draft=[draft],
            target=[target, target],
            accept_uniforms=[accept],
            recover_uniform=recover,
        )
        return emitted[0], accepted == 1

    return verifier


def check_by_enumeration(
    sampler: Verifier,
    rule: Rule,
    *,
    draft: Any,
    target: Any,
    cells: int = 64,
    rounding: float = 1e-6,
) -> Enumeration:
    """Enumerate the law a verifier emits, and compare it with `output_distribution`.

    Both uniforms run over the midpoints of a grid of c cells, every drafted token is weighted by
    its probability p. The sampler may use its uniforms in any way that gives each outcome an
    interval: the accepted values of u are then an interval with one end inside [0, 1), which
    midpoints measure to half a cell, and the recovered values for each token an interval with two,
    measured to one cell. So

        |law(x) - out(x)| <= (p(x) + sum over n of p(n) r_n(x)) / 2c + (mass lost to x) / c,

    sums and masses running over what is neither certain nor impossible, and the accepted mass of
    each drafted token is right to p / 2c. If both laws are Fractions, the rule is plain
    speculative sampling, and its thresholds are multiples of 1/c' for some c' <= `cells`, then
    a multiple of that grid is used and the law must equal the target, ``==``.

    Parameters
    ----------
    sampler : callable (token, draft, target, accept_uniform, recover_uniform) -> (int, bool)
        Called about V * cells**2 times.
    rule : Rule
        What it is meant to follow.
    draft, target : array_like, shape (V,)
        Laws p and q; object arrays of Fractions for an exact comparison.
    cells : int
    rounding : float
        Error of a threshold in the sampler's arithmetic; the default allows float32.

    Returns
    -------
    Enumeration

    Raises
    ------
    ConformanceError
        If the emitted law or the accepted mass is off, or a result is no token.
    ValueError
        If a law is not one, or `cells` < 2.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> from cactus_theory.testing import check_by_enumeration, specification_verifier
    >>> p, q = [0.6, 0.36, 0.04], [0.2, 0.4, 0.4]
    >>> found = check_by_enumeration(
    ...     specification_verifier(Cactus(0.1)), Cactus(0.1), draft=p, target=q)
    >>> bool(abs(found.law.sum() - 1) < 1e-12), "residual not rescaled" in found.unresolved
    (True, False)
    >>> plain = specification_verifier(SpeculativeSampling())
    >>> check_by_enumeration(plain, Cactus(0.1), draft=p, target=q)
    Traceback (most recent call last):
    ...
    cactus_theory.testing.ConformanceError: ... it matches the target itself (no boost)...
    """
    if cells < 2:
        raise ValueError(f"cells must be at least 2, got {cells!r}")
    exact = _exact_grid(rule, draft, target, cells)
    given = np.asarray(draft), np.asarray(target)
    draft, target = _floats(draft), _floats(target)
    position = Position.of(rule, draft=draft, target=target)
    if exact:
        law, mass = _enumerate(sampler, *given, *exact)
        expected_law, expected_mass = given[1], np.minimum(*given)
        tolerance = slack = np.zeros(draft.size)
    else:
        points = [(i + 0.5) / cells for i in range(cells)]
        law, mass = _enumerate(sampler, draft, target, points, points)
        expected_law, expected_mass = (
            output_distribution(rule, draft=draft, target=target),
            position.kept,
        )
        tolerance, slack = position_tolerances(position, cells, rounding)
    off, misjudged = abs(law - expected_law), abs(mass - expected_mass)
    any_rule = 1.5 / cells  # the tolerance of whatever rule the sampler may follow
    if (misjudged > slack).any() and (off <= any_rule).all():
        token = int(np.argmax(_floats(misjudged) - _floats(slack)))
        raise ConformanceError(
            f"the emitted law is that of {rule!r}, but drafted token {token} is accepted with mass "
            f"{float(mass[token]):.6g} instead of {float(expected_mass[token]):.6g}"
        )
    if (off > tolerance).any():
        floats, right = _floats(law), _floats(expected_law)
        looks = looks_like(
            floats,
            position,
            samples=cells**2,
            fits=lambda other: bool((abs(floats - other) <= any_rule).all()),
        )
        raise ConformanceError(
            f"emitted law {_short(floats)} instead of {_short(right)} under {rule!r}, "
            f"{_floats(off).max():.3g} off where {_floats(tolerance).max():.3g} is allowed, "
            f"acceptance {float(mass.sum()):.4g} instead of {float(expected_mass.sum()):.4g}: "
            f"{looks}"
        )
    right = output_distribution(rule, draft=draft, target=target)
    wrong = wrong_laws(rule, draft=draft, target=target)
    near = tuple(name for name, other in wrong.items() if (abs(other - right) <= tolerance).all())
    return Enumeration(law, mass, _floats(tolerance), near)


def _exact_grid(rule: Rule, draft: Any, target: Any, cells: int) -> Any:
    """Grids of Fractions on whose borders all thresholds lie, or None."""
    draft, target = list(draft), list(target)
    rational = all(isinstance(x, (Fraction, int)) for x in draft + target)
    if not rational or not isinstance(rule, SpeculativeSampling):
        return None
    accept = lcm(*(Fraction(q, p).denominator for p, q in zip(draft, target, strict=True) if p > q))
    residual = [max(q - p, 0) for p, q in zip(draft, target, strict=True)]
    total = sum(residual) or 1
    sums = [Fraction(sum(residual[: i + 1]), total) for i in range(len(residual))]
    recover = lcm(*(share.denominator for share in sums))
    if max(accept, recover) > cells:
        return None
    sizes = (cells // n * n for n in (accept, recover))
    return tuple([Fraction(2 * i + 1, 2 * n) for i in range(n)] for n in sizes)


def _enumerate(sampler: Verifier, draft: Any, target: Any, accepts: Any, recovers: Any) -> Any:
    size = len(draft)
    law = np.zeros(size, dtype=draft.dtype)
    mass = np.zeros(size, dtype=draft.dtype)
    for token in range(size):
        if not draft[token] > 0:
            continue
        counts, kept = [0] * size, 0
        for accept in accepts:
            for recover in recovers:
                emitted, accepted = called(sampler, token, draft, target, accept, recover)
                counts[emitted] += 1
                kept += accepted
        calls = len(accepts) * len(recovers)
        for x in range(size):
            law[x] = law[x] + draft[token] * counts[x] / calls
        mass[token] = draft[token] * kept / calls
    return law, mass


def position_tolerances(
    position: Position, cells: int, rounding: float
) -> tuple[np.ndarray, np.ndarray]:
    """By how much midpoints may misjudge the emitted law and the accepted mass, token by token."""
    draft, accepted = position.draft, position.accepted
    uncertain = np.where((accepted > 0) & (accepted < 1), draft, 0.0)
    lost = np.where(accepted < 1, draft - position.kept, 0.0)[position.drafted]
    reached = np.where((position.recovery > 0) & (position.recovery < 1), 1.0, 0.0)
    spoken = np.minimum(position.recovery + reached / cells, 1.0)
    half = 0.5 * (uncertain + uncertain[position.drafted] @ spoken)
    whole = lost @ reached
    return (half + whole) / cells + 2 * rounding, uncertain / (2 * cells) + rounding * draft + 1e-12


def _floats(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def _short(law: Any) -> str:
    shown = ", ".join(f"{x:.4g}" for x in law[:8])
    return f"[{shown}{', ...' if len(law) > 8 else ''}]"
