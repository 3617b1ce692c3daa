"""All rules of the package by name, with their parameters, guarantees and line styles.

A rule's class defines what it does; its entry here holds everything else, once. The command line,
the lm-eval model, vLLM's settings, curves, pictures, pages, hypothesis strategies and the table of
rules in the docs are made from these entries, so a new rule needs its class and one entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cactus_theory.divergences import KL, JensenShannon
from cactus_theory.rules._base import CandidateRule, Rule
from cactus_theory.rules._facts import Facts
from cactus_theory.rules.baselines import Lenience, Mixture, TopKAcceptance, TypicalAcceptance
from cactus_theory.rules.cactus import Cactus, CactusExact, CactusSafe
from cactus_theory.rules.clamp import Clamp, OneLevelRecovery
from cactus_theory.rules.engines import (
    RelaxedAcceptance,
    RolloutReuse,
    SamplerMatch,
    ThresholdAcceptance,
    TokenCascade,
)
from cactus_theory.rules.papers import AdaptiveTolerance, FuzzyAcceptance
from cactus_theory.rules.parameters import Parameter
from cactus_theory.rules.speculative import SpeculativeSampling


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One rule.

    Attributes
    ----------
    kind : type of Rule
    title : str
        Used in legends of pictures.
    parameters : tuple of Parameter
    at_budget : callable, optional
        Maps delta to a rule, for curves. Delta is the budget of a candidate or, for the clamp, of
        the emitted distribution; lenience and mixture take exp(-delta) as their parameter. None:
        the rule does not depend on it, and its curve is that of its `example`.
    continuous : bool
        Whether the accepted mass is a continuous function of draft and target.
    bounds_kl : bool
        Whether KL(out || q) <= delta for the rule of its curve. A candidate's budget does not.
    colour, dash : str, tuple of int
        Style of its lines, in Okabe and Ito's colours, which colour-blind readers can tell apart.

    Examples
    --------
    >>> RULES["clamp"].at(0.5), RULES["top-k"].at(0.5), RULES["clamp"].has_candidates
    (Clamp(epsilon=0.5, divergence=KL()), TopKAcceptance(k=10), False)
    """

    kind: type[Rule]
    title: str
    parameters: tuple[Parameter, ...] = ()
    at_budget: Callable[[float], Rule] | None = None
    continuous: bool = True
    bounds_kl: bool = False
    colour: str
    dash: tuple[int, ...] = ()

    @property
    def facts(self) -> Facts:
        """Its row in the table of rules."""
        return self.kind.facts

    @property
    def ordered(self) -> bool:
        """Whether the emitted distribution lies between draft and target, token by token."""
        return self.kind.ordered

    @property
    def has_candidates(self) -> bool:
        """Whether it accepts by the target's probability of the drafted token alone."""
        return issubclass(self.kind, CandidateRule)

    def at(self, delta: float) -> Rule:
        """The rule of its curve at a budget of delta."""
        return self.example() if self.at_budget is None else self.at_budget(delta)

    def example(self) -> Rule:
        """The rule with the example of every parameter, for curves, pictures and tests."""
        return self.kind(**{p.name: p.example for p in self.parameters})


_DELTA = Parameter("delta", "budget of one candidate, in nats", "budget", example=0.5)
_DIVERGENCE = Parameter("divergence", "in which the budget is", "divergence", KL())

RULES: Mapping[str, Entry] = MappingProxyType(
    {
        "speculative": Entry(
            kind=SpeculativeSampling, title="speculative sampling", colour="#000000", dash=(1, 2)
        ),
        "cactus": Entry(
            kind=Cactus,
            title="Cactus (second order)",
            parameters=(_DELTA,),
            at_budget=Cactus,
            colour="#0072B2",
        ),
        "exact": Entry(
            kind=CactusExact,
            title="exact optimum",
            parameters=(_DELTA, _DIVERGENCE),
            at_budget=CactusExact,
            colour="#D55E00",
        ),
        "safe": Entry(
            kind=CactusSafe,
            title="safe closed form",
            parameters=(_DELTA,),
            at_budget=CactusSafe,
            colour="#009E73",
            dash=(6, 2),
        ),
        "one-level": Entry(
            kind=OneLevelRecovery,
            title="Cactus, one-level recovery",
            parameters=(
                Parameter("rule", "whose acceptance test is used", "rule", "cactus", Cactus(0.5)),
            ),
            at_budget=lambda delta: OneLevelRecovery(Cactus(delta)),
            colour="#56B4E9",
            dash=(2, 2),
        ),
        "clamp": Entry(
            kind=Clamp,
            title="clamp",
            parameters=(
                Parameter(
                    "epsilon", "budget of the emitted distribution, in nats", "budget", example=0.5
                ),
                _DIVERGENCE,
            ),
            at_budget=Clamp,
            bounds_kl=True,
            colour="#CC79A7",
            dash=(8, 2, 2, 2),
        ),
        "lenience": Entry(
            kind=Lenience,
            title="lenience exp(-delta)",
            parameters=(
                Parameter("lenience", "by which p is multiplied", "fraction", example=0.5),
            ),
            at_budget=lambda delta: Lenience(math.exp(-delta)),
            bounds_kl=True,
            colour="#E69F00",
            dash=(6, 2),
        ),
        "mixture": Entry(
            kind=Mixture,
            title="mixture exp(-delta)",
            parameters=(
                Parameter("weight", "of the target in the mixture", "weight", example=0.5),
            ),
            at_budget=lambda delta: Mixture(math.exp(-delta)),
            colour="#767676",
            dash=(6, 2),
        ),
        "ears": Entry(
            kind=AdaptiveTolerance,
            title="adaptive tolerance 0.3",
            parameters=(
                Parameter("tolerance", "of a target in full doubt", "weight", example=0.3),
            ),
            colour="#56B4E9",
            dash=(1, 2),
        ),
        "fuzzy": Entry(
            kind=FuzzyAcceptance,
            title="fuzzy acceptance 0.2",
            parameters=(
                Parameter("limit", "largest divergence of draft and target", "budget", example=0.2),
                Parameter("divergence", "of draft and target", "divergence", JensenShannon()),
            ),
            continuous=False,
            colour="#767676",
            dash=(4, 1, 1, 1),
        ),
        "typical": Entry(
            kind=TypicalAcceptance,
            title="typical acceptance 0.09",
            parameters=(
                Parameter("epsilon", "largest threshold of q", "fraction", 0.09),
                Parameter(
                    "alpha", "factor of exp(-H(q)), sqrt(epsilon) by default", "fraction", None
                ),
            ),
            continuous=False,
            colour="#767676",
            dash=(1, 2),
        ),
        "top-k": Entry(
            kind=TopKAcceptance,
            title="top-10 acceptance",
            parameters=(Parameter("k", "how many most probable tokens are kept", "count", 10),),
            continuous=False,
            colour="#E69F00",
            dash=(1, 2),
        ),
        "threshold": Entry(
            kind=ThresholdAcceptance,
            title="threshold acceptance 0.2, 0.8",
            parameters=(
                Parameter("single", "least q that is kept for certain", "fraction", 0.2),
                Parameter("total", "by which any other q is divided", "fraction", 0.8),
            ),
            continuous=False,
            colour="#D55E00",
            dash=(1, 2),
        ),
        "relaxed": Entry(
            kind=RelaxedAcceptance,
            title="relaxed acceptance 10, 0.1",
            parameters=(
                Parameter("k", "how many most probable tokens may be kept", "count", 10),
                Parameter("margin", "by which q may lie below the largest", "weight", 0.1),
            ),
            continuous=False,
            colour="#0072B2",
            dash=(1, 2),
        ),
        "cascade": Entry(
            kind=TokenCascade,
            title="token cascade 0.5",
            parameters=(
                Parameter("alpha", "by which share q may lie below the largest", "weight", 0.5),
            ),
            continuous=False,
            colour="#009E73",
            dash=(1, 2),
        ),
        "sampler-match": Entry(
            kind=SamplerMatch, title="sampler match", colour="#000000", dash=(4, 1, 1, 1)
        ),
        "rollout-reuse": Entry(
            kind=RolloutReuse,
            title="rollout reuse 0.5",
            parameters=(
                Parameter("lenience", "by which p is multiplied", "fraction", example=0.5),
            ),
            colour="#CC79A7",
            dash=(1, 2),
        ),
    }
)


def entry_named(name: Any) -> Entry:
    """The entry of a rule.

    Raises
    ------
    ValueError
        If no rule has that name; all names are listed.

    Examples
    --------
    >>> entry_named("safe").kind.__name__
    'CactusSafe'
    """
    if not isinstance(name, str) or name not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {name!r}")
    return RULES[name]


def budgeted_candidates() -> dict[str, Entry]:
    """The rules whose delta is the budget of a candidate, by name.

    Examples
    --------
    >>> list(budgeted_candidates())
    ['cactus', 'exact', 'safe']
    """
    return {
        name: entry
        for name, entry in RULES.items()
        if entry.has_candidates and entry.at_budget is not None
    }
