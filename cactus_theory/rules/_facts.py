"""The entries of the table of rules; tests compare each with the rule's behaviour.

Knows no formula. Letters: p is the draft's and q the target's distribution, at the drafted token n
or as a whole; g is the probability that the candidate h grants the drafted token; D is a
divergence; `out` is the emitted distribution.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One row of the table of rules.

    Attributes
    ----------
    accepts : str
        The chance that the drafted token n is kept.
    recovers : str
        The weights drawn from after n was rejected, not normalised.
    emits : str
        The emitted distribution.
    guarantees : str
        What is bounded for the candidate h or for the emitted distribution `out`.
    reads : str
        The part of the target's distribution that decides whether n is kept.
    source : str
        Where the rule comes from.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> SpeculativeSampling.facts.accepts
    'min(1, q/p)'
    """

    accepts: str
    recovers: str
    emits: str
    guarantees: str
    reads: str
    source: str
