"""What a sampler may emit instead of what it should: distributions of one position, by name.

Knows one position's distributions. Does not know tokens, or how evidence is gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cactus_theory.emitted import output_distribution
from cactus_theory.rules import Rule
from cactus_theory.rules.registry import RULES
from cactus_theory.testing._mistakes import tempered, top_of


@dataclass(frozen=True)
class Situation:
    """What is known of one position before its token is seen.

    Attributes
    ----------
    target : float64 array, shape (V,)
        q, after temperature and filters.
    draft : float64 array, shape (V,), or None
        p, after temperature and filters.
    others : mapping of str to float64 array, shape (V,)
        Other distributions that the sampler may have used: the target without its filters, say.

    Examples
    --------
    >>> Situation(target=np.array([0.5, 0.5])).draft is None
    True
    """

    target: np.ndarray
    draft: np.ndarray | None = None
    others: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Alternative:
    """A distribution that a sampler may emit by mistake, for every position.

    Attributes
    ----------
    family : str
        Its name, with a placeholder for the parameter if there is one: ``"mixture w = {:.3g}"``.
    distribution : callable (Situation) -> float64 array, shape (V,)
        Non-negative, with a sum of at most 1.
    value : float or None
        Its parameter.
    needs : {"target", "draft"} or str
        What of a situation it reads; any other word names one of the `others`.
    rule : Rule or None
        The rule whose emitted distribution it is. A block's last token follows the target then.

    Examples
    --------
    >>> hotter = next(a for a in ALTERNATIVES if a.name == "temperature, times 2")
    >>> hotter.distribution(Situation(np.array([0.8, 0.2]))).round(3)
    array([0.667, 0.333])
    """

    family: str
    distribution: Callable[[Situation], np.ndarray]
    value: float | None = None
    needs: str = "target"
    rule: Rule | None = None

    @property
    def name(self) -> str:
        """The family with its parameter filled in."""
        return self.family.format(self.value)

    def readable(self, situation: Situation) -> bool:
        """Whether the situation has what it reads."""
        return (
            self.needs == "target"
            or (self.needs == "draft" and situation.draft is not None)
            or self.needs in situation.others
        )


def other(name: str) -> Alternative:
    """One of a situation's other distributions, as an alternative.

    Parameters
    ----------
    name : str

    Returns
    -------
    Alternative

    Examples
    --------
    >>> found = other("filters not applied")
    >>> rows = {"filters not applied": np.array([0.5, 0.5])}
    >>> found.distribution(Situation(np.array([1.0, 0.0]), None, rows))
    array([0.5, 0.5])
    """
    return Alternative(name, lambda s: s.others[name], needs=name)


def _family(
    family: str, law: Callable[[Situation, float], np.ndarray], values: Any, needs: str = "target"
) -> list[Alternative]:
    def at(value: float) -> Callable[[Situation], np.ndarray]:
        return lambda situation: law(situation, value)

    return [Alternative(family, at(float(x)), float(x), needs) for x in values]


def of_rule(rule: Rule, family: str, value: float | None = None) -> Alternative:
    """What a rule emits at a verified position, as an alternative.

    Parameters
    ----------
    rule : Rule
    family : str
    value : float, optional

    Returns
    -------
    Alternative

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> found = of_rule(Cactus(0.02), "Cactus, delta = {:g}", 0.02)
    >>> found.name, found.distribution(Situation(np.array([0.5, 0.5]), np.array([0.75, 0.25])))
    ('Cactus, delta = 0.02', array([0.6, 0.4]))
    """

    def law(situation: Situation) -> np.ndarray:
        return output_distribution(rule, draft=situation.draft, target=situation.target)

    return Alternative(family, law, value, "draft", rule)


def _emitted() -> list[Alternative]:
    """Every rule of the registry; a parameter of its own is shown where it is not delta."""
    found = []
    for name, entry in RULES.items():
        if name == "speculative":
            continue
        if entry.at_budget is None:
            found.append(of_rule(entry.example(), entry.title))
            continue
        field = entry.parameters[0].name
        for delta in _BUDGETS if name == "cactus" else _BUDGETS[1::3]:
            rule = entry.at(delta)
            title = entry.title.removesuffix(" exp(-delta)")
            shown = getattr(rule, field, delta)
            value = float(shown) if isinstance(shown, (int, float)) else delta
            label = field if isinstance(shown, (int, float)) else "delta"
            found.append(of_rule(rule, f"{title}, {label} = {{:.3g}}", value))
    return found


def _nucleus(target: np.ndarray, mass: float) -> np.ndarray:
    """The smallest set of most probable tokens whose mass reaches `mass`, normalised."""
    order = np.argsort(-target, kind="stable")
    below = np.cumsum(target[order]) - target[order]
    kept = np.zeros_like(target)
    kept[order] = np.where(below < mass, target[order], 0.0)
    return kept / kept.sum()


def _flattened(situation: Situation, weight: float) -> np.ndarray:
    q = situation.target
    return (1 - weight) * q + weight / q.size


def _misjudged(
    name: str,
    *,
    mass: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.minimum,
    recovery: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda p, q: np.maximum(q - p, 0.0),
) -> Alternative:
    """Speculative sampling with one part replaced: the mass accepted, or what recovers the rest."""

    def law(situation: Situation) -> np.ndarray:
        p, q = _draft(situation), situation.target
        kept, weights = mass(p, q), recovery(p, q)
        weights = weights if weights.sum() > 0 else q
        return kept + max(1 - kept.sum(), 0.0) * weights / weights.sum()

    return Alternative(name, law, None, "draft")


def _drafted_at(temperature: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Drafts at another temperature than they are judged at."""

    def mass(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return tempered(p, temperature) * np.minimum(q / np.where(p > 0, p, 1.0), 1.0)

    return mass


_BUDGETS = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.2, 1.3, 1.43, 1.6, 2.0, 3.0)

ALTERNATIVES: tuple[Alternative, ...] = (
    *_family("temperature, times {:.3g}", lambda s, t: tempered(s.target, t), _RATIOS),
    Alternative("greedy (the most probable token)", lambda s: tempered(s.target, 0.0)),
    *_family(
        "top-k, k = {:.0f}", lambda s, k: top_of(s.target[None], k)[0], (1, 5, 10, 20, 40, 50)
    ),
    *_family(
        "top-p, p = {:.3g}", lambda s, p: _nucleus(s.target, p), (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
    ),
    *_family("mixed with uniform, weight {:.2g}", _flattened, (0.001, 0.01, 0.1)),
    Alternative("the draft in place of the target", lambda s: _draft(s), None, "draft"),
    _misjudged("acceptance without the draft's probability", mass=np.multiply),
    _misjudged("recovery from the target", recovery=lambda p, q: q),
    _misjudged("recovery of the target's argmax", recovery=lambda p, q: tempered(q, 0.0)),
    _misjudged(
        "recovery of the residual's argmax", recovery=lambda p, q: tempered(np.maximum(q - p, 0), 0)
    ),
    _misjudged("greedy draft, judged as if it were sampled", mass=_drafted_at(0.0)),
    _misjudged("the draft's temperature is half of what it is judged at", mass=_drafted_at(0.5)),
    *_emitted(),
)
"""The catalogue that `audit` compares with; those that need a draft are left out without one."""


def _draft(situation: Situation) -> np.ndarray:
    assert situation.draft is not None
    return situation.draft
