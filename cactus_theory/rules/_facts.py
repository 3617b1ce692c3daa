"""What is said of a rule in the table of rules; the tests hold every entry to the rule's behaviour.

Knows no formula. Letters: p draft law, q target law, at the drafted token n or as a whole; g what
the candidate law h grants the drafted token; D a divergence; `out` the emitted law.
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
        What is drawn after n was rejected, not normalised.
    emits : str
        The emitted law.
    guarantees : str
        What is bounded, of the candidate h or of the emitted law `out`.
    reads : str
        What of the target's law decides whether n is kept.
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
