"""Rules that other engines and papers use, so that one can look up what they do.

SGLang's thresholds, TensorRT-LLM's relaxed acceptance, the token cascade, the sampler's match of
llama.cpp and mlx, and SPEC-RL's reuse of rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cactus_theory import _validate
from cactus_theory.rules._base import CandidateRule, Rule, SharedRecoveryRule
from cactus_theory.rules._facts import Facts
from cactus_theory.rules.baselines import Lenience, TopKAcceptance, first_of_largest


@dataclass(frozen=True)
class ThresholdAcceptance(CandidateRule):
    """SGLang's two thresholds: g = 1 if q >= single, else min(1, q / total).

    g is at most q / l, l = min(single, total). So the candidate has KL(h||q) <= log(1/l), and so
    has the emitted distribution, which is at most q / l anywhere. Where single < total, g jumps to
    1 at q = single; elsewhere it is continuous, and `single` changes nothing.

    Parameters
    ----------
    single : float
        In (0, 1]: the least target probability of a token that is kept for certain.
    total : float
        In (0, 1]: by which the probability of every other token is divided. Both 1 is plain
        speculative sampling.

    Raises
    ------
    TypeError, ValueError
        If they are not.

    References
    ----------
    SGLang, ``speculative_accept_threshold_single`` and ``speculative_accept_threshold_acc``:
    sgl-kernel/csrc/speculative/speculative_sampling.cuh, commit 120affb9,
    ``TreeSpeculativeSamplingTargetOnly``. The kernel reads no draft probability: it is this rule
    for a draft that gives its token probability 1, at one drafted token for each position. Of
    several, it compares the sum of their q with the second threshold.

    Examples
    --------
    >>> ThresholdAcceptance(0.5, 0.8).boost(np.array([0.2, 0.5]))
    array([0.25, 1.  ])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="min(1, g/p), g = 1 if q >= single, else min(q/total, 1)",
        recovers="[h - p]_+",
        emits="min(p, g) where p > q, between p and q elsewhere",
        guarantees="KL(h||q) and KL(out||q) <= log(1/min(single, total))",
        reads="q(n)",
        source="SGLang, `speculative_accept_threshold_single`, `_acc`",
    )
    single: float
    total: float

    def __post_init__(self) -> None:
        for name in ("single", "total"):
            value = _validate.fraction(name, getattr(self, name), "(0, 1]")
            object.__setattr__(self, name, value)

    @property
    def lossless(self) -> bool:
        return self.single == self.total == 1

    def boost(self, target_prob: Any, *, xp: Any = np) -> Any:
        sure = self._is_sure(target_prob)  # and not divided, which could overflow
        return xp.where(sure, 1.0, xp.where(sure, 0.0, target_prob) / self.total)[()]

    def shrink(self, target_prob: Any, *, xp: Any = np) -> Any:
        # 1 - q/total as (total - q)/total, without cancellation near q = total
        sure, room = self._is_sure(target_prob), 1 - target_prob
        left = xp.where(sure, 0.0, self.total - target_prob) / self.total
        left = xp.clip(left / xp.where(room > 0, room, 1.0), 0.0, 1.0)
        return xp.where(room > 0, left, 1.0)[()]

    def _is_sure(self, target_prob: Any) -> Any:
        return target_prob >= min(self.single, self.total)


@dataclass(frozen=True)
class RelaxedAcceptance(SharedRecoveryRule):
    """Keep a token of the target's k most probable with q(n) >= max q - margin, else emit argmax q.

    The engine reads no draft probability, and emits argmax q after a whole block was kept as well;
    a decoder here draws that token from q. The first of equal maxima is emitted.

    Parameters
    ----------
    k : int
        >= 1.
    margin : float
        In [0, 1], a difference of probabilities.

    Raises
    ------
    TypeError, ValueError
        If a parameter is outside its range.

    References
    ----------
    TensorRT-LLM, ``use_relaxed_acceptance_for_thinking``, ``relaxed_topk``, ``relaxed_delta``:
    cpp/tensorrt_llm/kernels/speculativeDecoding/mtpKernels.cu, commit 3585984b,
    ``mtpRelaxedAcceptanceKernel``. Its margin is 0 outside the thinking phase, and changes between
    blocks; that of `BetweenMarkers` changes at the marker.

    Examples
    --------
    >>> rule = RelaxedAcceptance(k=2, margin=0.25)
    >>> rule.accepted_mass(np.array([0.25, 0.5, 0.25]), np.array([0.5, 0.375, 0.125]))
    array([0.25, 0.5 , 0.  ])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="1 if q is among the k largest and q >= max q - margin, else 0",
        recovers="argmax q",
        emits="p where accepted, the rest on argmax q",
        guarantees="none",
        reads="q(n), its rank and the largest q",
        source="TensorRT-LLM, relaxed acceptance",
    )
    k: int
    margin: float

    def __post_init__(self) -> None:
        _validate.integer("k", self.k, 1)
        object.__setattr__(self, "margin", _validate.fraction("margin", self.margin, "[0, 1]"))

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        among = TopKAcceptance(self.k).accepted_mass(draft, target, xp=xp)
        least = xp.amax(target, axis=-1, keepdims=True) - self.margin
        return xp.where(target >= least, among, 0.0)

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return first_of_largest(target, xp=xp)


@dataclass(frozen=True)
class TokenCascade(SharedRecoveryRule):
    """Keep a token with q(n) >= (1 - alpha) max q; else draw from the target.

    The draft's distribution is not read. alpha = 0 keeps the most probable tokens only, 1 keeps
    all.

    Parameters
    ----------
    alpha : float
        In [0, 1].

    Raises
    ------
    TypeError, ValueError
        If the parameter is outside its range.

    References
    ----------
    Narasimhan et al., "Faster cascades via speculative decoding" (arXiv 2405.19261), the rule
    "Token V3".

    Examples
    --------
    >>> TokenCascade(0.5).accepted_mass(np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.625, 0.125]))
    array([0.  , 0.25, 0.  ])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="1 if q >= (1-alpha) max q, else 0",
        recovers="q",
        emits="p m + (1 - sum p m) q, m = 1 where accepted",
        guarantees="none",
        reads="q(n) and the largest q",
        source="Narasimhan et al. 2024, Token V3",
    )
    alpha: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", _validate.fraction("alpha", self.alpha, "[0, 1]"))

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        least = (1 - self.alpha) * xp.amax(target, axis=-1, keepdims=True)
        return xp.where(target >= least, draft, 0.0)

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return target


@dataclass(frozen=True)
class SamplerMatch(Rule):
    """Draw a token from the target, and keep the drafted one if it is the same: emits q.

    Engines that run their own sampler at every position verify so. It needs no draft probability,
    and keeps a drafted token with chance q(n) only: sum p q in all, where speculative sampling
    keeps sum min(p, q). For a draft that gives its token probability 1 the two are the same.

    References
    ----------
    llama.cpp, common/sampling.cpp, commit 00efb3e1, ``common_sampler_sample_and_accept_n``; mlx-lm,
    mlx_lm/generate.py, commit 0024613b, ``speculative_generate_step``.

    Examples
    --------
    >>> SamplerMatch().accepted_mass(np.array([0.5, 0.5]), np.array([0.75, 0.25]))
    array([0.375, 0.125])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="q",
        recovers="q, without n",
        emits="q",
        guarantees="out = q",
        reads="q(n)",
        source="llama.cpp, mlx-lm",
    )

    @property
    def torch_ready(self) -> bool:
        """True: `accepted_mass` and `emitted` are formulas."""
        return True

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return draft * target

    def recovery_weights(self, token: int, draft: Any, target: Any) -> Any:
        weights = np.array(target)
        weights[token] = 0
        return weights

    def emitted(self, kept: Any, draft: Any, target: Any, *, xp: Any = np) -> Any:
        """q, without a sum over the rejected tokens."""
        return target + 0 * draft


@dataclass(frozen=True)
class RolloutReuse(SharedRecoveryRule):
    """Accept with min(1, q / (l p)) as `Lenience` does, but recover from q itself.

    For rollouts of an older policy p that a newer one, q, goes on from. Recovering from q and not
    from [q - p]_+ emits min(p, q/l) + w q, w being the chance of a rejection. So l = 1 is not
    speculative sampling, and the target is emitted for p = q only.

    Parameters
    ----------
    lenience : float
        l in (0, 1]; the papers write its inverse.

    Raises
    ------
    TypeError, ValueError
        If the parameter is outside its range.

    References
    ----------
    Liu et al., "SPEC-RL: Accelerating on-policy reinforcement learning via speculative rollouts"
    (arXiv 2509.23232); github.com/ShopeeLLM/Spec-RL, commit 97da99ed,
    verl/utils/speculative_decoding.py, ``spec_cut_with_knobs``. Its bias b gives l = exp(-abs(b)).

    Examples
    --------
    >>> from cactus_theory import output_distribution
    >>> output_distribution(RolloutReuse(1.0), draft=[0.75, 0.25], target=[0.5, 0.5])
    array([0.625, 0.375])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="min(1, q/(l p))",
        recovers="q",
        emits="min(p, q/l) + (1 - sum min(p, q/l)) q",
        guarantees="KL(out||q) <= log(1 + 1/lenience)",
        reads="q(n)",
        source="Liu et al. 2025, SPEC-RL",
    )
    lenience: float

    def __post_init__(self) -> None:
        value = _validate.fraction("lenience", self.lenience, "(0, 1]")
        object.__setattr__(self, "lenience", value)

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return Lenience(self.lenience).accepted_mass(draft, target, xp=xp)

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return target
