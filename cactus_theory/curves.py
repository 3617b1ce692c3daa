"""What a family of rules accepts, emits and costs against its budget, averaged over positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.divergences import kl, total_variation
from cactus_theory.emitted import accepted_and_emitted
from cactus_theory.rules import Rule


@dataclass(frozen=True)
class Curve:
    """Means over positions, for every budget.

    Attributes
    ----------
    deltas : float64 array, shape (D,)
        In nats.
    acceptance_rate, total_variation : float64 array, shape (D,)
        Chance that a drafted token passes, and TV(out, q).
    kl : float64 array, shape (D,)
        KL(out || q) of the emitted distribution, in nats; exact, and not bounded by delta.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> found = curve(Cactus, draft=[0.75, 0.25], target=[0.5, 0.5], deltas=[0.0, 0.02])
    >>> isinstance(found, Curve), found.acceptance_rate
    (True, array([0.75, 0.85]))
    """

    deltas: np.ndarray
    acceptance_rate: np.ndarray
    total_variation: np.ndarray
    kl: np.ndarray


def curve(family: Callable[[float], Rule], *, draft: Any, target: Any, deltas: Any) -> Curve:
    """Acceptance rate, and TV and KL of what ``family(delta)`` emits, for every delta.

    Parameters
    ----------
    family : callable
        From a budget to a rule, such as ``Cactus`` or ``RULES["lenience"].at``; see
        `cactus_theory.rules.registry`.
    draft, target : array_like, shape (..., V)
        Distributions p and q; means are taken over all positions.
    deltas : array_like, shape (D,)
        Budgets in nats.

    Returns
    -------
    Curve

    Raises
    ------
    ValueError
        If an argument is not a distribution, or `deltas` are not budgets of shape (D,), D >= 1.

    Examples
    --------
    >>> from cactus_theory import Clamp
    >>> found = curve(Clamp, draft=[0.75, 0.25], target=[0.5, 0.5], deltas=[0.01, 0.02])
    >>> found.kl.round(6)
    array([0.01, 0.02])
    """
    deltas = _validate.budgets("deltas", deltas)
    if deltas.ndim != 1 or deltas.size == 0:
        raise ValueError(f"deltas must have shape (D,), D >= 1, got shape {deltas.shape}")
    draft, target = _validate.law_pair(draft=draft, target=target)
    rules = [family(float(delta)) for delta in deltas]
    means = {rule: _means(rule, draft, target) for rule in dict.fromkeys(rules)}
    return Curve(deltas, *np.array([means[rule] for rule in rules]).T)


def _means(rule: Rule, draft: np.ndarray, target: np.ndarray) -> list[float]:
    kept, law = accepted_and_emitted(rule, *np.broadcast_arrays(draft, target))
    law = law / law.sum(axis=-1, keepdims=True)  # sums of many roundings
    figures = (kept.sum(axis=-1), total_variation(law, target), kl(law, target))
    return [float(np.mean(figure)) for figure in figures]
