"""Exact distributions at one verified position: what a rule accepts, recovers, emits and costs.

Everything here is computed; nothing is sampled. ``draft`` and ``target`` have the same type, and a
swap would go unnoticed, so both are keyword-only. In the formulas p is the draft distribution, q
the target distribution, g(n) the boosted probability of a drafted token n and h^(n) the candidate
distribution that has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.divergences import kl_term, log_growth
from cactus_theory.rules import CandidateRule, Rule


def residual_distribution(rule: Rule, token: int, *, draft: Any, target: Any) -> np.ndarray:
    """Distribution of the token recovered after `token` is rejected.

    For a rule with candidates that is [h - p]_+ / sum [h - p]_+.

    Parameters
    ----------
    rule : Rule
    token : int
        The drafted token that was rejected.
    draft, target : array_like, shape (V,)
        Distributions p, which the token was drawn from, and q.

    Returns
    -------
    float64 array, shape (V,)

    Raises
    ------
    ValueError
        If an argument is not a distribution, the token is outside the vocabulary, or the token is
        never rejected. In the last case its residual is empty, and nothing can be drawn from it.
    TypeError
        If the token is not an integer.

    References
    ----------
    Theorem 1 of Hao and Mou (2026), for the candidate h.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> residual_distribution(SpeculativeSampling(), 0, draft=[0.75, 0.25], target=[0.5, 0.5])
    array([0., 1.])
    """
    draft, target = _validate.law_pair(draft=draft, target=target)
    if draft.ndim != 1 or target.ndim != 1:
        raise ValueError(
            f"draft and target must have shape (V,), got {draft.shape} and {target.shape}"
        )
    _validate.token("token", token, draft.shape[-1])
    weights = rule.recovery_weights(token, draft, target)
    total = weights.sum()
    if rule.accepted_mass(draft, target)[token] >= draft[token] or total == 0:
        raise ValueError(f"token {token} is never rejected, so its residual is empty")
    return weights / total


def output_distribution(rule: Rule, *, draft: Any, target: Any) -> np.ndarray:
    r"""Distribution of the token emitted at one verified position.

    out(x) = m(x) + sum over n of w(n) r_n(x), where m is the mass accepted, w(n) = p(n) - m(n) that
    rejected at n, and r_n the distribution of the token recovered after it. For a rule with
    candidates m = min(p, g), and the emitted distribution is m where p > q and lies between p and q
    elsewhere. `delta` does not bound its divergence from q.

    Computed in O(V log V) time and O(V) memory per position, by sums of non-negative terms only.

    Parameters
    ----------
    rule : Rule
    draft, target : array_like, shape (..., V)
        Distributions p and q; leading axes broadcast.

    Returns
    -------
    float64 array, shape (..., V)

    Raises
    ------
    ValueError
        If either is not a distribution, or the shapes do not broadcast.

    Notes
    -----
    For candidates, with t = p/q and c_n = (1-g(n))/(1-q(n)) <= 1, a rejected n leaves residual
    weight q(x) [c_n - t(x)]_+ and total Z(c_n), Z(c) = sum_x q(x) [c - t(x)]_+. Both Z and the
    recovered mass q(x) sum_n (w(n)/Z(c_n)) [c_n - t(x)]_+ are accumulated from each c_n to the
    next, over the tokens whose t lies between. Where a residual is empty by rounding (p = q up to
    the last bits), the target's distribution is used.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> output_distribution(Cactus(0.0), draft=[0.75, 0.25], target=[0.5, 0.5])
    array([0.5, 0.5])
    >>> output_distribution(Cactus(0.02), draft=[0.75, 0.25], target=[0.5, 0.5])
    array([0.6, 0.4])
    """
    draft, target = np.broadcast_arrays(*_validate.law_pair(draft=draft, target=target))
    return accepted_and_emitted(rule, draft, target)[1]


def accepted_and_emitted(
    rule: Rule, draft: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The accepted mass and `output_distribution`, without checks: arrays of one shape (..., V)."""
    if not isinstance(rule, CandidateRule):
        return rule.accepted_and_emitted(draft, target)
    kept = rule.accepted_mass(draft, target)
    law = np.empty_like(kept)
    for position in np.ndindex(draft.shape[:-1]):
        law[position] = _by_candidates(rule, draft[position], target[position], kept[position])
    return kept, law


def _by_candidates(
    rule: CandidateRule, draft: np.ndarray, target: np.ndarray, kept: np.ndarray
) -> np.ndarray:
    """Emitted distribution at one position, from the accepted mass, as in `output_distribution`."""
    rejected = np.flatnonzero(draft > kept)
    if rejected.size == 0:
        return kept
    level, lost = _levels(rule.shrink(target[rejected]), draft[rejected] - kept[rejected])
    ratio = np.maximum(draft, target)
    np.copyto(ratio, 1.0, where=ratio == 0)
    np.divide(draft, ratio, out=ratio)  # and 1 where p > q, which no level exceeds
    slot = _slots(level, ratio)
    law = np.append(level, 1.0)[slot]
    law -= ratio
    law *= target  # what each token adds to Z at the first level above it

    size, gaps = level.size, np.diff(level)
    height = np.bincount(slot, weights=law, minlength=size)[:size]
    slope = np.cumsum(np.bincount(slot, weights=target, minlength=size)[:size])
    normaliser = np.cumsum(height) + _running(slope[:-1] * gaps)
    spoken = normaliser > 0
    share = np.where(spoken, lost, 0.0) / np.where(spoken, normaliser, 1.0)

    density = np.cumsum(share[::-1])[::-1]  # recovered mass per q, to the left of each level
    recovered = _running((density[1:] * gaps)[::-1])[::-1]  # at each level
    law *= np.append(density, 0.0)[slot]
    law += target * np.append(recovered, 0.0)[slot]
    law += kept
    if not spoken.all():
        law += lost[~spoken].sum() * target
    return law


def _levels(level: np.ndarray, lost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct levels, rising, and the mass lost at each."""
    order = np.argsort(level)
    level = level[order]
    first = np.flatnonzero(np.diff(level, prepend=-1.0))
    return level[first], np.add.reduceat(lost[order], first)


def _slots(level: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """How many levels are at most each ratio, which is the index of the first level above it.

    Both lie in [0, 1], which is cut into equal cells. Only a cell that holds a level is searched.
    """
    cells = 1 << min(ratio.size.bit_length(), 15)
    upto = np.cumsum(np.bincount(np.ceil(level * cells).astype(np.intp), minlength=cells + 2))
    cell = (ratio * cells).astype(np.intp)
    slot = upto.take(cell)
    unsure = np.flatnonzero((np.diff(upto) > 0).take(cell))
    slot[unsure] = np.searchsorted(level, ratio[unsure], side="right")
    return slot


def _running(steps: np.ndarray) -> np.ndarray:
    """0 and the partial sums."""
    return np.concatenate([[0.0], np.cumsum(steps)])


@dataclass(frozen=True)
class Emission:
    """What one verified position accepts, and what its emitted distribution costs.

    Attributes
    ----------
    acceptance_rate : array, shape (...)
        sum_x min(p(x), g(x)), the chance that the drafted token passes.
    total_variation : array, shape (...)
        TV(out, q), exactly. For a rule with candidates it equals acceptance_rate less sum_x min(p,
        q), the rate of plain speculative sampling ("gain = cost").
    kl_bound : array, shape (...)
        An upper bound of KL(out || q) in nats. With candidates: sum over p > q of
        min(p,g) log(min(p,g)/q), without the emitted distribution; else KL(out || q) itself.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> cost = emission(Cactus(0.02), draft=[0.75, 0.25], target=[0.5, 0.5])
    >>> isinstance(cost, Emission), round(float(cost.kl_bound), 6)
    (True, 0.109393)
    """

    acceptance_rate: Any
    total_variation: Any
    kl_bound: Any


def emission(rule: Rule, *, draft: Any, target: Any) -> Emission:
    """Acceptance rate, total variation and a KL bound, in O(V), without the emitted distribution.

    Parameters
    ----------
    rule : Rule
    draft, target : array_like, shape (..., V)
        Distributions p and q; leading axes broadcast.

    Returns
    -------
    Emission

    Raises
    ------
    ValueError
        If either is not a distribution, or the shapes do not broadcast.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> cost = emission(Cactus(0.02), draft=[0.75, 0.25], target=[0.5, 0.5])
    >>> round(float(cost.acceptance_rate), 6), round(float(cost.total_variation), 6)
    (0.85, 0.1)
    """
    draft, target = np.broadcast_arrays(*_validate.law_pair(draft=draft, target=target))
    return emission_sums(rule, draft, target, xp=np)


def emission_sums(rule: Rule, draft: Any, target: Any, *, xp: Any) -> Emission:
    """`emission` over a namespace and without checks: float64 arrays of one shape (..., V)."""
    if not isinstance(rule, CandidateRule):
        return emission_of(*rule.accepted_and_emitted(draft, target, xp=xp), target, xp=xp)
    if xp is np:
        sums: Any = np.empty((3, *draft.shape[:-1]))
        for position in np.ndindex(draft.shape[:-1]):
            over = np.flatnonzero(draft[position] > target[position])
            p, q = draft[position][over], target[position][over]
            sums[(slice(None), *position)] = _raised_sums(rule, p, q, xp=np)
        lost, gained, divergence = (total[()] for total in sums)
    else:
        over = draft > target
        p, q = xp.where(over, draft, 0.0), xp.where(over, target, 0.0)
        lost, gained, divergence = _raised_sums(rule, p, q, xp=xp)
    return Emission(xp.clip(draft.sum(-1) - lost, 0.0, 1.0), gained, divergence)


def emission_of(kept: Any, emitted: Any, target: Any, *, xp: Any) -> Emission:
    """`Emission` from the accepted mass and the emitted distribution themselves."""
    gain = xp.where(emitted > target, emitted - target, 0.0)
    divergence = kl_term(target, emitted - target, xp=xp).sum(-1)
    return Emission(xp.clip(kept.sum(-1), 0.0, 1.0), gain.sum(-1), divergence)


def _raised_sums(rule: CandidateRule, p: Any, q: Any, *, xp: Any) -> tuple[Any, Any, Any]:
    """Mass rejected and gained, and KL bound, over tokens with p > q (or p = q = 0)."""
    kept = rule.accepted_mass(p, q, xp=xp)
    return (p - kept).sum(-1), (kept - q).sum(-1), spent_on(kept, q, xp=xp).sum(-1)


def spent_on(kept: Any, q: Any, *, xp: Any) -> Any:
    """m log(m/q) of accepted masses m >= q; inf where the target excludes what is accepted."""
    growth = log_growth(xp.where(q > 0, q, 1.0), xp.where(q > 0, kept - q, 0.0), xp=xp)
    return xp.where(q > 0, kept * growth, xp.where(kept > 0, math.inf, 0.0))


def acceptance_rate(rule: Rule, *, draft: Any, target: Any) -> Any:
    """Chance sum_x min(p(x), g(x)) that a token drafted from p passes.

    One field of `emission`.

    Parameters
    ----------
    rule : Rule
    draft, target : array_like, shape (..., V)
        Distributions p and q; leading axes broadcast.

    Returns
    -------
    float64 array, shape (...)

    Raises
    ------
    ValueError
        If either is not a distribution, or the shapes do not broadcast.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> float(acceptance_rate(SpeculativeSampling(), draft=[0.75, 0.25], target=[0.5, 0.5]))
    0.75
    """
    return emission(rule, draft=draft, target=target).acceptance_rate


def block_efficiency(rates: Any) -> Any:
    """Expected tokens per target pass, 1 + a_1 + a_1 a_2 + ... + a_1 ... a_k.

    Parameters
    ----------
    rates : array_like, shape (..., k)
        Acceptance rates of the k drafted positions, each given that those before it passed.

    Returns
    -------
    float64 array, shape (...)
        Between 1 and k + 1; one recovered or bonus token is always emitted.

    Raises
    ------
    ValueError
        If a rate lies outside [0, 1] or there is no axis of positions.

    Examples
    --------
    >>> float(block_efficiency([0.5, 0.5]))
    1.75
    """
    rates = _validate.probabilities("rates", rates)
    if rates.ndim == 0:
        raise ValueError(f"rates must have shape (..., k), got the scalar {float(rates)!r}")
    return 1 + np.cumprod(rates, axis=-1).sum(axis=-1)
