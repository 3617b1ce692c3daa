r"""The budget that gives a wanted acceptance, or a wanted cost of the emitted distribution.

Knows rule families as callables from delta to a `CandidateRule`. `delta` is the budget of one
candidate. It does not bound the emitted distribution, so the functions below compute what it does
to it.

All of it rests on monotonicity. In the notation of `cactus_theory.emitted`, with t = p/q,
Z(c) = sum_x q(x) [c - t(x)]_+ and w(n) = p(n) - g(n) for a token that may be rejected,

    out = min(p, g) on p > q,    out(x) = p(x) + q(x) sum_n w(n) [c_n - t(x)]_+ / Z(c_n) elsewhere.

Raise one boost from g to g' <= p(n), for a token with p(n) > q(n). Boosts of tokens with
p <= q change nothing. On p > q the distribution rises at n and stays elsewhere. On p <= q only the
term of n moves, from w [c - t]_+ / Z(c) to w' [c' - t]_+ / Z(c'), and it does not rise. This is
clear where t >= c'. Elsewhere, with P and Q the sums of p and q over t < c, to which n does not
belong, Z(c) = c Q - P and Z(c') >= Z(c) - (c - c') Q, so that it suffices that the following is not
negative:

    w (c - t) [Z - (c - c') Q] - w' (c' - t) Z
        = (c - c') {w' t Z + (c - t) [(1-g') Z - w P]} / c.

It is not, because 1-g' >= 1-p(n) >= P, and Z = sum_x [p - h]_+ >= p(n) - g = w. As out >= q on p >
q and out <= q elsewhere, the emitted distribution moves away from the target at every token, and
**every f-divergence D_f(out || q) is non-decreasing in every boost**, hence in delta for every
family whose boosts grow with it: KL as well as total variation (claims boosts-monotone and
divergence-monotone of `proofs_check`).

All three quantities are continuous in delta, and strictly increasing until every token that the
target allows is accepted with certainty, if the boosts are continuous and, below 1, strictly
increasing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.divergences import binary_kl
from cactus_theory.divergences import kl as kl_divergence
from cactus_theory.emitted import emission, output_distribution
from cactus_theory.rules import Cactus, CactusExact, CandidateRule, Rule

RuleFamily = Callable[[float], CandidateRule]

_SMALLEST = 1e-60  # nats
_STEP = 16.0
_PRECISION = 1e-12  # of delta, relative
_ULPS = 8  # of a boost; the error of one is below 5
_SLACK = 1e-12  # sums over a vocabulary agree to about this


def delta_for_sure_acceptance(rule_type: RuleFamily, *, draft_prob: Any, target_prob: Any) -> Any:
    """The least delta at which a token of draft probability p and target probability q passes.

    The least delta with g(q) >= p: 0 where p <= q; inf where q = 0 < p, or where it would exceed
    1e100, which no rule takes; and elsewhere

    * `Cactus`: (p - q)^2 / (2 q (1-q));
    * `CactusExact`: `binary_kl`(p, q);
    * any other family: a root in delta, with g non-decreasing in delta.

    Parameters
    ----------
    rule_type : callable, delta -> CandidateRule
    draft_prob, target_prob : array_like, broadcastable
        p and q, in [0, 1].

    Returns
    -------
    float64 array
        Nats, rounded up so that the rule itself, in float64, always accepts: for the closed forms
        it is the delta that boosts to 8 ulp above p.

    Raises
    ------
    ValueError
        If a probability lies outside [0, 1].

    References
    ----------
    Theorem 2 and Corollary 5 of Hao and Mou (2026), solved for delta.

    Examples
    --------
    >>> round(float(delta_for_sure_acceptance(Cactus, draft_prob=0.6, target_prob=0.2)), 9)
    0.5
    >>> float(delta_for_sure_acceptance(Cactus, draft_prob=0.2, target_prob=0.6))
    0.0
    """
    p, q = np.broadcast_arrays(
        _validate.probabilities("draft_prob", draft_prob),
        _validate.probabilities("target_prob", target_prob),
    )
    solved = (p > q) & (q > 0)
    delta = np.where(p > q, np.inf, 0.0)
    if rule_type in _CLOSED:
        above = p[solved] + _ULPS * np.spacing(p[solved])
        with np.errstate(over="ignore"):
            least = _CLOSED[rule_type](above, q[solved])
        least = np.maximum(least, np.finfo(np.float64).tiny)  # it may underflow, but is above 0
        delta[solved] = np.where(least <= _validate.LARGEST_BUDGET, least, np.inf)
    else:
        for place in map(tuple, np.argwhere(solved)):
            delta[place] = _least_delta(rule_type, float(p[place]), float(q[place]))
    return delta[()]


def delta_for_acceptance_rate(
    rate: float, rule_type: Callable[[float], Rule], *, draft: Any, target: Any
) -> float:
    """The least delta whose mean acceptance rate over a set of positions is at least `rate`.

    Parameters
    ----------
    rate : float
        Mean of sum_x min(p, g) over the leading axes.
    rule_type : callable, delta -> Rule
        `Cactus`, `CactusExact`, `Clamp`, or any family that accepts no less as delta grows.
    draft, target : array_like, shape (..., V)
        Distributions p and q; leading axes broadcast.

    Returns
    -------
    float
        Nats, to a relative 1e-12 and rounded up: the rate is reached.

    Raises
    ------
    ValueError
        If an argument is not a distribution, the shapes do not broadcast, or no delta gives the
        rate. The message says what is attainable: from sum min(p, q), at delta = 0, to the mass the
        draft puts on the target's support.

    Examples
    --------
    >>> delta = delta_for_acceptance_rate(0.85, Cactus, draft=[0.75, 0.25], target=[0.5, 0.5])
    >>> round(delta, 9)
    0.02
    """
    draft, target = _validate.law_pair(draft=draft, target=target)

    def mean_rate(delta: float) -> float:
        return float(emission(rule_type(delta), draft=draft, target=target).acceptance_rate.mean())

    return _crossing(mean_rate, "rate", rate)[1]


def delta_for_total_variation(
    total_variation: float, rule_type: RuleFamily, *, draft: Any, target: Any
) -> float:
    """The delta at which the mean total variation of what is emitted has a given value.

    Parameters
    ----------
    total_variation : float
        Mean of TV(out, q) over the leading axes.
    rule_type : callable, delta -> CandidateRule
        `Cactus`, `CactusExact`, or any family whose boosts do not fall as delta grows.
    draft, target
        As for `delta_for_acceptance_rate`.

    Returns
    -------
    float
        Nats, to a relative 1e-12 and rounded down: the total variation is not exceeded. Where
        larger budgets no longer change anything, the least of them, to that precision.

    Raises
    ------
    ValueError
        If an argument is not a distribution, the shapes do not broadcast, or no delta gives the
        value. The message says what is attainable.

    Examples
    --------
    >>> delta = delta_for_total_variation(0.1, Cactus, draft=[0.75, 0.25], target=[0.5, 0.5])
    >>> round(delta, 9)
    0.02
    """
    draft, target = _validate.law_pair(draft=draft, target=target)

    def mean_distance(delta: float) -> float:
        return float(emission(rule_type(delta), draft=draft, target=target).total_variation.mean())

    return _crossing(mean_distance, "total_variation", total_variation)[0]


def delta_for_kl(kl: float, rule_type: RuleFamily, *, draft: Any, target: Any) -> float:
    """The delta at which the mean KL of what is emitted from the target has a given value.

    KL(out || q) does not decrease in delta (proof in the module's docstring), so every smaller
    delta keeps the mean within `kl` too. This is a statement about these positions: on others the
    same delta may cost more.

    Parameters
    ----------
    kl : float
        Mean of KL(out || q) over the leading axes, in nats; exact, not the O(V) bound.
    rule_type : callable, delta -> CandidateRule
        `Cactus`, `CactusExact`, or any family whose boosts do not fall as delta grows.
    draft, target
        As for `delta_for_acceptance_rate`.

    Returns
    -------
    float
        Nats, to a relative 1e-12 and rounded down: the KL is not exceeded. Where larger budgets no
        longer change anything, the least of them, to that precision.

    Raises
    ------
    ValueError
        If an argument is not a distribution, the shapes do not broadcast, or no delta gives the
        value. The message says what is attainable.

    Examples
    --------
    >>> delta = delta_for_kl(0.02, Cactus, draft=[0.75, 0.25], target=[0.5, 0.5])
    >>> law = output_distribution(Cactus(delta), draft=[0.75, 0.25], target=[0.5, 0.5])
    >>> round(float(kl_divergence(law, [0.5, 0.5])), 9)
    0.02
    """
    draft, target = _validate.law_pair(draft=draft, target=target)

    def mean_divergence(delta: float) -> float:
        law = output_distribution(rule_type(delta), draft=draft, target=target)
        return float(kl_divergence(law, target).mean())

    return _crossing(mean_divergence, "kl", kl)[0]


def _crossing(value: Callable[[float], float], name: str, wanted: float) -> tuple[float, float]:
    """Ends of a bracket with value(low) < wanted <= value(high), value non-decreasing."""
    least, most = value(0.0), value(_validate.LARGEST_BUDGET)
    if not least - _SLACK <= wanted <= most + _SLACK:
        raise ValueError(
            f"{name} must lie in [{least:.9g}, {most:.9g}], what budgets >= 0 give on these "
            f"distributions, got {wanted!r}"
        )
    wanted = min(wanted, most)
    if wanted <= least:
        return 0.0, 0.0
    low, high = 1 / _STEP, 1.0
    while value(high) < wanted:
        low, high = high, min(high * _STEP, _validate.LARGEST_BUDGET)
    while low > _SMALLEST and value(low) >= wanted:
        low, high = low / _STEP, low
    if low <= _SMALLEST:
        return 0.0, high
    while high > low * (1 + _PRECISION):
        middle = float(np.sqrt(low) * np.sqrt(high))
        low, high = (middle, high) if value(middle) < wanted else (low, middle)
    return low, high


def _least_delta(rule_type: RuleFamily, draft_prob: float, target_prob: float) -> float:
    def boosted(delta: float) -> float:
        return float(rule_type(delta).boost(target_prob))

    if boosted(_validate.LARGEST_BUDGET) < draft_prob:
        return np.inf
    return _crossing(boosted, "draft_prob", draft_prob)[1]


def _second_order_delta(above: np.ndarray, q: np.ndarray) -> np.ndarray:
    return (above - q) / q * (above - q) / (2 * (1 - q))


def _exact_delta(above: np.ndarray, q: np.ndarray) -> np.ndarray:
    return binary_kl(np.minimum(above, 1.0), q) * (1 + 2.0**-50)


_CLOSED: dict[Any, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    Cactus: _second_order_delta,
    CactusExact: _exact_delta,
}
