"""How many tokens an audit needs, and how far two runs of one model are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import norm

from cactus_theory import _validate
from cactus_theory.recording import Recording
from cactus_theory.testing._alternatives import ALTERNATIVES, Alternative, Situation
from cactus_theory.testing._auditor import family_weights


def tokens_to_tell(
    alternative: Alternative,
    *,
    target: Any,
    draft: Any = None,
    others: Mapping[str, Any] | None = None,
    level: float = 1e-6,
    power: float = 0.9,
    tolerance: float = 0.0,
    alternatives: Sequence[Alternative] = ALTERNATIVES,
) -> float:
    r"""Tokens after which an audit has accused a sampler that emits an alternative.

    Of positions such as the given ones, the factor's logarithm under the alternative has mean m and
    variance v, and after n tokens the evidence is about normal with mean n m and variance n v. The
    number returned is the least n with

        n (m - eps) - z_power sqrt(n v) >= 2^[eps > 0] log(1 / (alpha w)),

    w being the weight of the alternative in the average. Neighbours in the catalogue only add to
    the evidence, and so does passing the threshold earlier, so the estimate errs upwards where the
    normal approximation holds. A token that the target excludes decides at once: the number is no
    more than what it takes to meet one with that power.

    Parameters
    ----------
    alternative : Alternative
    target, draft : array_like, shape (N, V), or Recording
        Distributions at some positions of ordinary texts; a `Recording` as `target` gives both.
    others : mapping of str to array_like, shape (N, V), optional
    level, power : float
        In (0, 1).
    tolerance : float
        eps, in nats per token.
    alternatives : sequence of Alternative
        The catalogue; `alternative` counts as one more if it is not in it.

    Returns
    -------
    float
        An integer, or inf if the alternative is within the tolerance.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, or the alternative needs a distribution not given.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> from cactus_theory.recording import load_recording
    >>> from cactus_theory.testing import of_rule
    >>> tells = [tokens_to_tell(of_rule(Cactus(d), "Cactus"), target=load_recording())
    ...          for d in (0.03, 0.3)]
    >>> tells[0] > 1.5 * tells[1]
    True
    """
    level = _validate.fraction("level", level, "(0, 1)")
    power = _validate.fraction("power", power, "(0, 1)")
    tolerance = _validate.budget("tolerance", tolerance)
    if isinstance(target, Recording):
        target, draft = target.target, target.draft
    rows = np.atleast_2d(_validate.law("target", target))
    draft = None if draft is None else np.atleast_2d(_validate.law("draft", draft))
    situations = [
        Situation(
            q,
            None if draft is None else draft[i],
            {name: np.asarray(other)[i] for name, other in (others or {}).items()},
        )
        for i, q in enumerate(rows)
    ]
    if not alternative.readable(situations[0]):
        raise ValueError(f"{alternative.needs} must be given for {alternative.name!r}")
    catalogue = [a for a in alternatives if a.readable(situations[0])]
    if alternative not in catalogue:
        catalogue.append(alternative)
    weight = float(family_weights(catalogue)[catalogue.index(alternative)])
    mean, variance, impossible = _moments(alternative, situations)
    threshold = math.log(1 / (level * weight)) * (2 if tolerance else 1)
    drift = mean - tolerance
    needed = math.inf
    if drift > 0:
        spread = float(norm.isf(1 - power)) * math.sqrt(variance)
        root = (spread + math.sqrt(max(spread**2 + 4 * drift * threshold, 0.0))) / (2 * drift)
        needed = float(math.ceil(root**2))
    if impossible == 0:
        return needed
    first = math.log(1 - power) / math.log1p(-impossible) if impossible < 1 else 1.0
    return min(needed, float(math.ceil(first)))


def _moments(
    alternative: Alternative, situations: Sequence[Situation]
) -> tuple[float, float, float]:
    """Mean and variance of a factor's logarithm under the alternative, over tokens with q > 0.

    The third is the chance that the alternative gives to tokens of probability 0.
    """
    first, second, impossible = [], [], []
    for situation in situations:
        law, q = alternative.distribution(situation), situation.target
        held = (law > 0) & (q > 0)
        logs = np.log(0.5 + 0.5 * law[held] / q[held])
        first.append(float(law[held] @ logs))
        second.append(float(law[held] @ logs**2))
        impossible.append(float(law[q == 0].sum()))
    mean = float(np.mean(first))
    return mean, max(float(np.mean(second)) - mean**2, 0.0), float(np.mean(impossible))


def measured_tolerance(first: Any, second: Any, *, confidence: float = 0.999) -> float:
    r"""How far two runs of one model are apart: a tolerance for `audit`, in nats per token.

    The mean over positions of D_2(first || second) = log sum_x first(x)^2 / second(x), plus the
    normal quantile of `confidence` times its standard error.

    Parameters
    ----------
    first, second : array_like, shape (N, V)
        Distributions at the same positions, after temperature and filters: as the sampler may
        compute them (in bfloat16, or in other batches), and as the auditor does.
    confidence : float
        In (0, 1).

    Returns
    -------
    float
        inf if `first` gives a token a chance that `second` excludes.

    Raises
    ------
    TypeError, ValueError
        If one is not a distribution, there are fewer than two positions, or shapes differ.

    Examples
    --------
    >>> measured_tolerance([[0.5, 0.5]] * 4, [[0.5, 0.5]] * 4)
    0.0
    """
    confidence = _validate.fraction("confidence", confidence, "(0, 1)")
    s, q = _validate.law_pair(first=first, second=second)
    if s.shape != q.shape or s.ndim != 2 or len(s) < 2:
        raise ValueError(
            f"first and second must both have shape (N, V) with N >= 2, got {s.shape}, {q.shape}"
        )
    divergences = np.maximum(np.log(_squares(s, q).sum(axis=1)), 0.0)
    if not np.isfinite(divergences).all():
        return math.inf
    error = float(divergences.std(ddof=1)) / math.sqrt(len(s))
    return float(divergences.mean()) + float(norm.isf(1 - confidence)) * error


def _squares(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    out = np.where(s > 0, np.inf, 0.0)
    np.divide(s * s, q, out=out, where=q > 0)
    return out
