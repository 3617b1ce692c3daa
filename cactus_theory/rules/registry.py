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
from typing import Any, Literal

from cactus_theory.divergences import (
    KL,
    Alpha,
    ChiSquare,
    Divergence,
    JensenShannon,
    ReverseKL,
    SquaredHellinger,
    TotalVariation,
)
from cactus_theory.rules._base import CandidateRule, Rule
from cactus_theory.rules._facts import Facts
from cactus_theory.rules.baselines import Lenience, Mixture, TopKAcceptance, TypicalAcceptance
from cactus_theory.rules.cactus import Cactus, CactusExact, CactusSafe
from cactus_theory.rules.clamp import Clamp, OneLevelRecovery
from cactus_theory.rules.speculative import SpeculativeSampling

Domain = Literal["budget", "fraction", "weight", "count", "divergence", "rule"]
RANGES: Mapping[Domain, str] = MappingProxyType(
    {
        "budget": "a number >= 0",
        "fraction": "a number in (0, 1]",
        "weight": "a number in [0, 1]",
        "count": "an integer >= 1",
        "divergence": "a divergence",
        "rule": "a rule with candidates, whose parameters may follow",
    }
)
DIVERGENCES: Mapping[str, Divergence] = MappingProxyType(
    {
        "kl": KL(),
        "reverse-kl": ReverseKL(),
        "jensen-shannon": JensenShannon(),
        "chi-square": ChiSquare(),
        "total-variation": TotalVariation(),
        "squared-hellinger": SquaredHellinger(),
    }
)
_REQUIRED: Any = object()


@dataclass(frozen=True)
class Parameter:
    """One parameter of a rule.

    Attributes
    ----------
    name : str
        The name of the argument of the rule's class.
    meaning : str
    domain : str
        The values it takes: a key of `RANGES`.
    default : object
        Left out if the parameter must be given.

    Examples
    --------
    >>> RULES["mixture"].parameters[0].name
    'weight'
    """

    name: str
    meaning: str
    domain: Domain
    default: Any = _REQUIRED

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED


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
        the rule does not depend on it.
    continuous : bool
        Whether the accepted mass is a continuous function of draft and target.
    ordered : bool
        Whether the emitted distribution lies between draft and target, token by token.
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
    ordered: bool = True
    bounds_kl: bool = False
    colour: str
    dash: tuple[int, ...] = ()

    @property
    def facts(self) -> Facts:
        """Its row in the table of rules."""
        return self.kind.facts

    @property
    def has_candidates(self) -> bool:
        """Whether it accepts by the target's probability of the drafted token alone."""
        return issubclass(self.kind, CandidateRule)

    def at(self, delta: float) -> Rule:
        """The rule of its curve at a budget of delta."""
        return self.make() if self.at_budget is None else self.at_budget(delta)

    def make(self, **parameters: Any) -> Rule:
        """The rule with the given parameters, and defaults for the others."""
        defaults = {p.name: p.default for p in self.parameters if not p.is_required}
        return self.kind(**(defaults | parameters))


_DELTA = Parameter("delta", "budget of one candidate, in nats", "budget")
_DIVERGENCE = Parameter("divergence", "how the budget is measured", "divergence", KL())

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
            parameters=(Parameter("rule", "whose acceptance test is used", "rule", "cactus"),),
            at_budget=lambda delta: OneLevelRecovery(Cactus(delta)),
            colour="#56B4E9",
            dash=(2, 2),
        ),
        "clamp": Entry(
            kind=Clamp,
            title="clamp",
            parameters=(
                Parameter("epsilon", "budget of the emitted distribution, in nats", "budget"),
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
            parameters=(Parameter("lenience", "factor of p in the acceptance test", "fraction"),),
            at_budget=lambda delta: Lenience(math.exp(-delta)),
            bounds_kl=True,
            colour="#E69F00",
            dash=(6, 2),
        ),
        "mixture": Entry(
            kind=Mixture,
            title="mixture exp(-delta)",
            parameters=(Parameter("weight", "share of the target in the mixture", "weight"),),
            at_budget=lambda delta: Mixture(math.exp(-delta)),
            colour="#767676",
            dash=(6, 2),
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
            ordered=False,
            colour="#767676",
            dash=(1, 2),
        ),
        "top-k": Entry(
            kind=TopKAcceptance,
            title="top-10 acceptance",
            parameters=(Parameter("k", "how many most probable tokens are kept", "count", 10),),
            continuous=False,
            ordered=False,
            colour="#E69F00",
            dash=(1, 2),
        ),
    }
)


def rule_from(rule: str | Rule, /, **parameters: Any) -> Rule:
    """Make a rule from its name and parameters, as given on command lines and in settings.

    Parameters
    ----------
    rule : str or Rule
        A name in `RULES`, alone or with parameters: ``"exact:delta=0.3,divergence=chi-square"``.
        A rule is returned unchanged.
    **parameters
        More parameters, as text or as the rule's class takes them. A divergence as text is a key of
        `DIVERGENCES` or ``alpha:ORDER``. "one-level" passes parameters it does not know to its own
        ``rule``.

    Returns
    -------
    Rule

    Raises
    ------
    TypeError, ValueError
        If there is no such rule, or a parameter is unknown, missing, given twice, or has a wrong
        value.

    Examples
    --------
    >>> rule_from("cactus:delta=0.1")
    Cactus(delta=0.1)
    >>> rule_from("one-level", rule="exact", delta="0.1", divergence="alpha:2")
    OneLevelRecovery(rule=CactusExact(delta=0.1, divergence=Alpha(alpha=2.0)))
    >>> rule_from("mixture", delta=0.1)
    Traceback (most recent call last):
    ...
    ValueError: rule mixture takes weight, got delta=0.1
    """
    if isinstance(rule, Rule):
        if parameters:
            raise ValueError(f"rule {rule} has its parameters, got more: {_listed(parameters)}")
        return rule
    name, own = _parsed(rule)
    entry = entry_named(name)
    for key in own.keys() & parameters.keys():
        raise ValueError(f"{key} of rule {name} is given twice: {own[key]!r}, {parameters[key]!r}")
    given = own | parameters
    known = {parameter.name: parameter for parameter in entry.parameters}
    inner = [parameter for parameter in entry.parameters if parameter.domain == "rule"]
    handed = {key: given.pop(key) for key in list(given) if key not in known}
    if handed and not inner:
        takes = ", ".join(known) or "no parameter"
        raise ValueError(f"rule {name} takes {takes}, got {_listed(handed)}")
    missing = [key for key, p in known.items() if p.is_required and key not in given]
    if missing:
        raise ValueError(f"rule {name} needs {', '.join(missing)}, got {_listed(given)}")
    made = {key: _value(known[key], value) for key, value in given.items()}
    for parameter in inner:
        made[parameter.name] = rule_from(given.get(parameter.name, parameter.default), **handed)
    return entry.make(**made)


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


def takes(rule: str, parameter: str) -> bool:
    """Whether `rule_from` accepts a parameter in addition to those in the text.

    Examples
    --------
    >>> takes("exact", "delta"), takes("exact:delta=1", "delta"), takes("one-level", "delta")
    (True, False, True)
    """
    name, own = _parsed(rule)
    known = {p.name: p for p in entry_named(name).parameters}
    if parameter in own:
        return False
    inner = [own.get(p.name, p.default) for p in known.values() if p.domain == "rule"]
    return parameter in known or any(takes(text, parameter) for text in inner)


def _parsed(text: Any) -> tuple[Any, dict[str, Any]]:
    """Name and parameters from a text such as "exact:delta=0.3"."""
    if not isinstance(text, str):
        return text, {}
    name, _, rest = text.partition(":")
    own: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals or not key or key in own:
            raise ValueError(
                f"rule must be like NAME:KEY=VALUE,KEY=VALUE with each key once, got {text!r}"
            )
        own[key] = value
    return name, own


def _value(parameter: Parameter, value: Any) -> Any:
    """A value from its text. Anything but text is left for the rule's class to check."""
    if not isinstance(value, str) or parameter.domain == "rule":
        return value
    try:
        if parameter.domain == "divergence":
            return _divergence(value)
        return int(value) if parameter.domain == "count" else float(value)
    except ValueError:
        wanted = RANGES[parameter.domain]
        if parameter.domain == "divergence":
            wanted = f"one of {', '.join(DIVERGENCES)}, alpha:ORDER"
        raise ValueError(f"{parameter.name} must be {wanted}, got {value!r}") from None


def _divergence(text: str) -> Divergence:
    family, _, order = text.partition(":")
    if family == "alpha":
        return Alpha(float(order))
    if text not in DIVERGENCES:
        raise ValueError(text)
    return DIVERGENCES[text]


def _listed(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in parameters.items()) or "none"
