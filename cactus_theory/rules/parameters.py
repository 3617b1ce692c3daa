"""What a parameter of a rule is, and which values it takes."""

from __future__ import annotations

from collections.abc import Mapping
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
        As the rule's class has it.
    meaning : str
    domain : str
        What values it takes: a key of `RANGES`.
    default : object
        Left out if the parameter must be given.
    example : object
        Its value in curves, pictures and tests. Left out, it is the default. Nothing that decodes
        reads it.

    Raises
    ------
    ValueError
        If it has neither a default nor an example.

    Examples
    --------
    >>> weight = Parameter("weight", "of the target", "weight", example=0.5)
    >>> weight.is_required, weight.value("0.25")
    (True, 0.25)
    """

    name: str
    meaning: str
    domain: Domain
    default: Any = _REQUIRED
    example: Any = _REQUIRED

    def __post_init__(self) -> None:
        if self.example is _REQUIRED:
            if self.is_required:
                raise ValueError(f"parameter {self.name} needs a default or an example")
            object.__setattr__(self, "example", self.default)

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED

    def value(self, given: Any) -> Any:
        """A value from its text; anything but text is left to the rule's class to judge.

        Raises
        ------
        ValueError
            If the text is no value of the domain.

        Examples
        --------
        >>> Parameter("divergence", "of the budget", "divergence", KL()).value("alpha:2")
        Alpha(alpha=2.0)
        """
        if not isinstance(given, str) or self.domain == "rule":
            return given
        try:
            if self.domain == "divergence":
                return _divergence(given)
            return int(given) if self.domain == "count" else float(given)
        except ValueError:
            wanted = RANGES[self.domain]
            if self.domain == "divergence":
                wanted = f"one of {', '.join(DIVERGENCES)}, alpha:ORDER"
            raise ValueError(f"{self.name} must be {wanted}, got {given!r}") from None


def _divergence(text: str) -> Divergence:
    family, _, order = text.partition(":")
    if family == "alpha":
        return Alpha(float(order))
    if text not in DIVERGENCES:
        raise ValueError(text)
    return DIVERGENCES[text]
