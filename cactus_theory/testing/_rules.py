"""Strategies for rules, their budgets and divergences."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from cactus_theory.divergences import KL, Alpha, Divergence
from cactus_theory.rules import CandidateRule, Rule
from cactus_theory.rules.parameters import DIVERGENCES
from cactus_theory.rules.registry import RULES, Entry

LARGEST_BUDGET = 50.0


def budgets(*, smallest: float = 1e-12) -> st.SearchStrategy[float]:
    """Budgets in nats: exactly 0, and every magnitude from `smallest` to 50.

    Parameters
    ----------
    smallest : float
        The smallest budget other than 0.

    Returns
    -------
    hypothesis strategy of float

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(budgets())
    ... def is_a_budget(delta):
    ...     assert delta == 0 or 1e-12 <= delta <= 50
    >>> is_a_budget()
    """
    special = [0.0, smallest, 0.03, 0.75, 1.0, 1.2564312086261697, 10.0, LARGEST_BUDGET]
    exponents = st.floats(float(np.log10(smallest)), float(np.log10(LARGEST_BUDGET)))
    clip = lambda delta: min(max(delta, smallest), LARGEST_BUDGET)  # noqa: E731
    return st.one_of(
        st.floats(max(0.01, smallest), max(1.0, smallest)),  # boosts neither negligible nor capped
        st.sampled_from([delta for delta in special if delta == 0 or delta >= smallest]),
        exponents.map(lambda exponent: clip(10.0**exponent)),
    )


def divergences() -> st.SearchStrategy[Divergence]:
    """Every divergence of the package: KL half of the time, `Alpha` of orders from -1 to 3 by 1/16.

    Returns
    -------
    hypothesis strategy of Divergence

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(divergences())
    ... def vanishes_where_laws_agree(divergence):
    ...     assert divergence.binary(0.25, 0.25) == 0
    >>> vanishes_where_laws_agree()
    """
    others = [divergence for divergence in DIVERGENCES.values() if divergence != KL()]
    orders = st.integers(-16, 48).map(lambda sixteenths: sixteenths / 16)
    return st.one_of(st.just(KL()), st.one_of(st.sampled_from(others), orders.map(Alpha)))


def rules() -> st.SearchStrategy[Rule]:
    """Every rule of the package that has candidates; `all_rules` draws the others as well.

    Returns
    -------
    hypothesis strategy of CandidateRule

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(rules())
    ... def raises_the_drafted_token(rule):
    ...     assert 0.25 <= rule.boost(0.25) <= 1
    >>> raises_the_drafted_token()
    """
    return rules_of(CandidateRule)


def all_rules() -> st.SearchStrategy[Rule]:
    """Every rule of the package, including those without any bound.

    Returns
    -------
    hypothesis strategy of Rule

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(all_rules())
    ... def never_accepts_more_than_was_drafted(rule):
    ...     draft, target = np.array([0.75, 0.25]), np.array([0.5, 0.5])
    ...     assert (rule.accepted_mass(draft, target) <= draft).all()
    >>> never_accepts_more_than_was_drafted()
    """
    return rules_of(Rule)


def rules_of(kind: type) -> st.SearchStrategy[Rule]:
    """Every rule of the package that is an instance of `kind`; `Rule` for all.

    Examples
    --------
    >>> from hypothesis import given
    >>> from cactus_theory import Lenience
    >>> @given(rules_of(Lenience))
    ... def is_lenient(rule):
    ...     assert 0 < rule.lenience <= 1
    >>> is_lenient()
    """
    fractions = st.one_of(st.sampled_from([0.5, 1.0]), st.floats(1e-3, 1.0))
    weights = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0))
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "budget": budgets(),
        "fraction": fractions,
        "weight": weights,
        "count": st.integers(1, 9),
        "divergence": divergences(),
        "rule": st.deferred(rules),
    }

    def made(entry: Entry) -> st.SearchStrategy[Rule]:
        return st.builds(
            entry.kind,
            **{
                p.name: st.none() | drawn[p.domain] if p.default is None else drawn[p.domain]
                for p in entry.parameters
            },
        )

    return st.one_of(*(made(entry) for entry in RULES.values() if issubclass(entry.kind, kind)))
