"""The ways of decoding that are compared, some of them set to accept as much as another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from cactus_theory import (
    Cactus,
    CactusExact,
    Clamp,
    Mixture,
    Rule,
    SpeculativeSampling,
    TypicalAcceptance,
    acceptance_rate,
)
from cactus_theory.inverse import delta_for_acceptance_rate
from cactus_theory.recording import Recording

PLAIN, SPECULATIVE = "plain", "speculative"
_STRICTEST = 1e-300  # the least threshold of typical acceptance

# Families whose acceptance grows with the parameter, from 0 up.
MATCHED: Mapping[str, Callable[[float], Rule]] = MappingProxyType(
    {
        "exact": CactusExact,
        "clamp": Clamp,
        "typical": lambda x: TypicalAcceptance(max(math.exp(-x), _STRICTEST)),
        "mixture": lambda x: Mixture(math.exp(-x)),
    }
)


_ORDER = (PLAIN, SPECULATIVE, "cactus", *MATCHED)


@dataclass(frozen=True)
class Arm:
    """A way to decode.

    Attributes
    ----------
    rule : Rule
    speculative : bool
        False for plain decoding.
    """

    rule: Rule
    speculative: bool = True


def all_arms(deltas: Sequence[float], *, matched: float, laws: Recording) -> dict[str, Arm]:
    """Plain decoding, speculative sampling, Cactus, and rules that accept as much as one of these.

    Parameters
    ----------
    deltas : sequence of float
        Budgets of Cactus, in nats.
    matched : float
        The budget of Cactus whose mean acceptance rate the families in `MATCHED` are given.
    laws : Recording
        The positions over which that mean is taken.

    Returns
    -------
    dict of str to Arm

    Raises
    ------
    ValueError
        If a family cannot accept as much, or as little.

    Examples
    --------
    >>> from cactus_theory.recording import compress_distributions
    >>> laws = compress_distributions(draft=[0.6, 0.3, 0.1], target=[0.2, 0.3, 0.5])
    >>> arms = all_arms([0.5, 1.0], matched=1.0, laws=laws)
    >>> list(arms)
    ['plain', 'speculative', 'cactus 0.5', 'cactus 1', 'exact', 'clamp', 'typical', 'mixture']
    """
    arms = {PLAIN: Arm(SpeculativeSampling(), speculative=False)}
    arms[SPECULATIVE] = Arm(SpeculativeSampling())
    arms |= {f"cactus {delta:g}": Arm(Cactus(delta)) for delta in deltas}
    pair = {"draft": laws.draft, "target": laws.target}
    rate = float(acceptance_rate(Cactus(matched), **pair).mean())
    for name, family in MATCHED.items():
        try:
            arms[name] = Arm(family(delta_for_acceptance_rate(rate, family, **pair)))
        except ValueError as error:
            raise ValueError(
                f"{name} cannot accept as much as Cactus({matched:g}): {error}"
            ) from error
    return arms


def place(arm: str) -> tuple[int, float]:
    """By which names of arms are sorted.

    Examples
    --------
    >>> sorted(["clamp", "cactus 10", "cactus 0.5", "plain"], key=place)
    ['plain', 'cactus 0.5', 'cactus 10', 'clamp']
    """
    family, _, delta = arm.partition(" ")
    if family not in _ORDER:
        raise ValueError(f"arm must begin with one of {', '.join(_ORDER)}, got {arm!r}")
    return _ORDER.index(family), float(delta or 0)
