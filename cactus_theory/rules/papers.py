"""Rules that papers propose: a tolerance that grows with the target's doubt, and fuzzy acceptance.

Knows no engine. What is drawn after a rejection is read from the published code, since the papers'
summaries do not say it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cactus_theory import _validate
from cactus_theory.divergences import Divergence, JensenShannon
from cactus_theory.rules._base import SharedRecoveryRule
from cactus_theory.rules._facts import Facts


@dataclass(frozen=True)
class AdaptiveTolerance(SharedRecoveryRule):
    """EARS: accept with min(1, q/p + t), t = tolerance (1 - max q), and recover from [q - p]_+.

    The uniform number is lowered by t, which is large where the target is in doubt. Where p > q the
    rule emits min(p, q + t p), so TV(out, q) <= t. No KL is bounded: a token with q = 0 is kept
    with the chance t.

    Parameters
    ----------
    tolerance : float
        In [0, 1]; 0 is plain speculative sampling.

    Raises
    ------
    TypeError, ValueError
        If the parameter is outside its range.

    References
    ----------
    Sun et al., "EARS: Efficient adaptive rejection sampling for accelerating speculative decoding"
    (arXiv 2512.13194). The recovery is that of the authors' patch of vLLM,
    ``rejection_random_sample_ears_pytorch`` with ``VLLM_EARS_TOLERANCE`` (vllm-ascend, pull
    requests 5587 and 7845, not merged).

    Examples
    --------
    >>> rule = AdaptiveTolerance(0.5)
    >>> rule.accepted_mass(np.array([0.75, 0.25]), np.array([0.25, 0.75]))  # t = 1/8
    array([0.34375, 0.25   ])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="min(1, q/p + t), t = tolerance (1 - max q)",
        recovers="[q - p]_+",
        emits="min(p, q + t p) where p > q, between p and q elsewhere",
        guarantees="TV(out, q) <= tolerance (1 - max q)",
        reads="q(n) and the largest q",
        source="Sun et al. 2025, EARS",
    )
    ordered: ClassVar[bool] = True
    tolerance: float

    def __post_init__(self) -> None:
        value = _validate.fraction("tolerance", self.tolerance, "[0, 1]")
        object.__setattr__(self, "tolerance", value)

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        spare = self.tolerance * (1 - xp.amax(target, axis=-1, keepdims=True))
        relaxed = target + xp.clip(spare, 0.0, 1.0) * draft  # a maximum may round to above 1
        return xp.where(target >= draft, draft, xp.minimum(relaxed, draft))

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return xp.where(target > draft, target - draft, 0.0)


@dataclass(frozen=True)
class FuzzyAcceptance(SharedRecoveryRule):
    """FSD: keep any token where D(p||q) <= limit; else draw from the target.

    Which token was drafted is not read. A position emits p or q as a whole, so D(out||q) <=
    limit, in that divergence and no other. Where it emits q, it rejects even the tokens that
    speculative sampling would keep.

    Parameters
    ----------
    limit : float
        >= 0, in the unit of the divergence.
    divergence : Divergence
        From the draft's to the target's distribution, as they are sampled from.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not what is described above.

    References
    ----------
    Holsman, Huang and Dhingra, "Fuzzy speculative decoding for a tunable accuracy-runtime tradeoff"
    (arXiv 2502.20704); github.com/maxholsman/fsd, commit e92a1574, ``fsd_utils.py``,
    ``_speculative_backoff_sampling``. Limits of that code mean something else: it measures
    before temperature and filters, and its ``js_div`` is the mean of KL(m||p) and KL(m||q), m =
    (p+q)/2, which is not the Jensen-Shannon divergence. Its ``kl_div`` and ``tv_div`` are those of
    `KL` and `TotalVariation`.

    Examples
    --------
    >>> rule = FuzzyAcceptance(0.1)
    >>> rule.accepted_mass(np.array([0.75, 0.25]), np.array([0.5, 0.5]))
    array([0.75, 0.25])
    >>> rule.accepted_mass(np.array([0.75, 0.25]), np.array([0.125, 0.875]))
    array([0., 0.])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="1 if D(p||q) <= limit, else 0",
        recovers="q",
        emits="p if D(p||q) <= limit, else q",
        guarantees="D(out||q) <= limit",
        reads="all of q",
        source="Holsman et al. 2025, FSD",
    )
    limit: float
    divergence: Divergence = JensenShannon()

    def __post_init__(self) -> None:
        value = _validate.budget("limit", self.limit)
        object.__setattr__(self, "limit", value)
        if not isinstance(self.divergence, Divergence):
            raise TypeError(f"divergence must be a Divergence, got {self.divergence!r}")

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        terms = self.divergence._term(draft, target, draft - target, xp=xp)
        return xp.where(terms.sum(axis=-1, keepdims=True) <= self.limit, draft, 0.0)

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return target
