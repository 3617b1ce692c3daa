r"""How far the texts of a lossy decoder are from the target's, estimated from its own texts.

Knows the log-likelihoods of sampled texts, not how they were found (`texts.text_log_likelihood`
gives them). P is the decoder's distribution of a text and Q the target's. Of n independent texts
drawn from P, with L = log P(text) - log Q(text):

* KL(P || Q) = E[L]: the mean of L, unbiased.
* chi2(P || Q) = E[e^L] - 1: unbiased, but the mean may depend on texts too rare to be among the n.
  Where chi2 is large, the estimate and its interval come out too small.
* TV(P, Q) = E[(1 - e^-L)_+]: unbiased, terms in [0, 1].

The expected ledger of a decode, over its paths, is at least KL(P || Q), or TV(P, Q). Its mean over
the same texts estimates how much it exceeds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import stdtrit

from cactus_theory import _validate
from cactus_theory.divergences import binary_kl


@dataclass(frozen=True)
class Interval:
    """An estimate with a confidence interval.

    Attributes
    ----------
    estimate : float
        Mean of the samples' terms, unbiased.
    low, high : float
    confidence : float
        Chance that such an interval contains the true value: approximate for Student's, a lower
        bound for Chernoff's.
    method : {"student", "chernoff"}
        "student": mean -+ t_(n-1) s / sqrt(n), right as n grows if the terms have a variance.
        "chernoff": all m with n KL(Bernoulli(mean) || Bernoulli(m)) <= log(2 / (1 - confidence)),
        right for every n, the terms lying in [0, 1]. Both assume independent texts.

    Examples
    --------
    >>> Interval(estimate=0.5, low=0.25, high=0.75, confidence=0.95, method="student").method
    'student'
    """

    estimate: float
    low: float
    high: float
    confidence: float
    method: str


@dataclass(frozen=True)
class DivergenceEstimate:
    """Divergences of a decoder's texts from the target's.

    Attributes
    ----------
    kl : Interval
        Of KL(P || Q) in nats, by Student's t. Its lower end may be negative, KL may not.
    chi_square : Interval
        Of chi2(P || Q), by Student's t; rarely trustworthy above 1.
    total_variation : Interval
        Of TV(P, Q), by Chernoff's bound.
    ledger : Interval or None
        Of the expected ledger of a text, in nats, by Student's t.
    ledger_excess : Interval or None
        Of the expected ledger less KL(P || Q), from the differences of each text: >= 0 in
        expectation. By Student's t.

    Examples
    --------
    >>> estimate_divergence([-1.0, -2.0], target_log_likelihood=[-1.5, -2.0]).ledger is None
    True
    """

    kl: Interval
    chi_square: Interval
    total_variation: Interval
    ledger: Interval | None
    ledger_excess: Interval | None


def estimate_divergence(
    log_likelihood: Any,
    *,
    target_log_likelihood: Any,
    ledger: Any = None,
    confidence: float = 0.95,
) -> DivergenceEstimate:
    """KL, chi-square and total variation of texts, from n texts that the decoder drew.

    Means of L, e^L - 1 and (1 - e^-L)_+ with L = log P(text) - log Q(text). A single text that the
    target excludes, log Q = -inf, proves the first two infinite, and inf is returned for them.

    Parameters
    ----------
    log_likelihood : array_like, shape (n,)
        log P of independent texts drawn from P, n >= 2, in nats.
    target_log_likelihood : array_like, shape (n,)
        log Q of the same texts, Q being the target after the same temperature and filters.
    ledger : array_like, shape (n,), optional
        What each text's ledger was charged, in nats: the sum of KL(out || q), or of bounds of it,
        over its verified positions.
    confidence : float
        Of each interval alone, in (0, 1).

    Returns
    -------
    DivergenceEstimate

    Raises
    ------
    TypeError, ValueError
        If shapes differ, there are fewer than two texts, a number is nan or above 0 where it is a
        log-probability, the decoder cannot have drawn a text, or the confidence is not in (0, 1).

    References
    ----------
    Chernoff's bound for terms in [0, 1]: Hoeffding (1963), theorem 1.

    Examples
    --------
    >>> found = estimate_divergence(
    ...     np.log([0.3, 0.3, 0.2, 0.3]), target_log_likelihood=np.log([0.25] * 4))
    >>> round(found.kl.estimate, 6), found.kl.method
    (0.080955, 'student')
    >>> round(found.total_variation.estimate, 6), found.total_variation.method
    (0.125, 'chernoff')
    """
    confidence = _validate.fraction("confidence", confidence, "(0, 1)")
    ours = _logs("log_likelihood", log_likelihood, None)
    theirs = _logs("target_log_likelihood", target_log_likelihood, ours.size)
    if not (ours > -np.inf).all():
        at = int(np.argmin(ours))
        raise ValueError(f"log_likelihood must be above -inf, the decoder drew text {at}")
    gap = ours - theirs
    charged = None if ledger is None else _charges(ledger, ours.size)
    with np.errstate(over="ignore"):  # inf is then the estimate
        excess = np.expm1(gap)
    return DivergenceEstimate(
        kl=_student(gap, confidence),
        chi_square=_student(excess, confidence),
        total_variation=_chernoff(-np.expm1(-np.maximum(gap, 0)), confidence),
        ledger=None if charged is None else _student(charged, confidence),
        ledger_excess=None if charged is None else _student(_less(charged, gap), confidence),
    )


def _student(terms: np.ndarray, confidence: float) -> Interval:
    n = terms.size
    mean = float(terms.mean())
    if not math.isfinite(mean):
        return Interval(mean, mean, mean, confidence, "student")
    half = float(stdtrit(n - 1, (1 + confidence) / 2) * terms.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, confidence, "student")


def _chernoff(terms: np.ndarray, confidence: float) -> Interval:
    mean = min(float(terms.mean()), 1.0)
    allowed = math.log(2 / (1 - confidence)) / terms.size

    def beyond(m: float) -> float:
        return float(binary_kl(mean, m)) - allowed

    low = 0.0 if mean == 0 else _end(beyond, math.ulp(0.0), mean)
    high = 1.0 if mean == 1 else _end(beyond, mean, 1 - 2.0**-53)
    return Interval(mean, low, high, confidence, "chernoff")


def _end(beyond: Any, low: float, high: float) -> float:
    """Where `beyond` changes its sign, or the outer end if it does not."""
    at_low, at_high = beyond(low), beyond(high)
    if at_low <= 0 and at_high <= 0:
        return low if at_low > at_high else high
    return float(root_scalar(beyond, bracket=(low, high), xtol=1e-15).root)


def _less(charged: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """charged - gap, and inf where both are."""
    return np.where(np.isinf(charged), charged, charged - np.where(np.isinf(charged), 0.0, gap))


def _logs(name: str, value: Any, size: int | None) -> np.ndarray:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim != 1 or array.size < 2 or (size is not None and array.size != size):
        wanted = "n >= 2" if size is None else f"n = {size}"
        raise ValueError(f"{name} must have shape (n,) with {wanted}, got {array.shape}")
    if not (array <= 1e-6).all():  # a sum of logarithms of rounded numbers
        at = int(np.argmin(array <= 1e-6))
        value = float(array[at])
        raise ValueError(f"{name} must hold log-probabilities, got {value!r} at index {at}")
    return array


def _charges(ledger: Any, size: int) -> np.ndarray:
    array = np.asarray(ledger, dtype=np.float64)
    if array.shape != (size,):
        raise ValueError(f"ledger must have shape ({size},), got {array.shape}")
    if not (array >= 0).all():
        raise ValueError(f"ledger must hold nats >= 0, got {float(array[~(array >= 0)][0])!r}")
    return array
