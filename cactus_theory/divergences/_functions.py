"""Divergences between distributions, in nats, accurate also where the two nearly agree.

Knows nothing of rules or samplers. ``kl(p, q)`` is KL(p || q): the first distribution is the one
that is drawn from, the second the one it is measured against.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.divergences._kl_terms import binary_kl_of_gain, kl_term


def kl(p: Any, q: Any) -> Any:
    r"""Kullback-Leibler divergence KL(p || q) = sum_x p(x) log(p(x) / q(x)).

    It is summed as sum_x q(x) [(1+t) log(1+t) - t] with t = p(x)/q(x) - 1: every term is >= 0 and
    has full relative precision, so nearly equal distributions give a small number and not rounding
    noise.

    Parameters
    ----------
    p, q : array_like, shape (..., V)
        Distributions over the same vocabulary; leading axes broadcast.

    Returns
    -------
    float64 array, shape (...)
        Nats; inf where p gives mass to a token that q excludes.

    Raises
    ------
    ValueError
        If either is not a distribution, or the shapes do not broadcast.

    Examples
    --------
    >>> round(float(kl([0.5, 0.5], [0.25, 0.75])), 6)
    0.143841
    """
    p, q = _validate.law_pair(p=p, q=q)
    return kl_term(q, p - q).sum(axis=-1)


def total_variation(p: Any, q: Any) -> Any:
    """Total variation distance TV(p, q) = (1/2) sum_x |p(x) - q(x)|, in [0, 1].

    Parameters
    ----------
    p, q : array_like, shape (..., V)
        Distributions over the same vocabulary; leading axes broadcast.

    Returns
    -------
    float64 array, shape (...)

    Raises
    ------
    ValueError
        If either is not a distribution, or the shapes do not broadcast.

    Examples
    --------
    >>> float(total_variation([0.5, 0.5], [0.25, 0.75]))
    0.25
    """
    p, q = _validate.law_pair(p=p, q=q)
    return np.abs(p - q).sum(axis=-1) / 2


def binary_kl(h: Any, q: Any) -> Any:
    """KL between two Bernoulli distributions: h log(h/q) + (1-h) log((1-h)/(1-q)).

    By Theorem 2 this is the divergence of every candidate distribution from the target: raising one
    token from q to h and shrinking the rest in proportion costs exactly this much.

    Parameters
    ----------
    h, q : array_like, broadcastable
        Probabilities in [0, 1].

    Returns
    -------
    float64 array
        Nats, with relative error of a few ulp (of the h - q given) also near h = q; inf where q
        is 0 or 1 and h is not.

    Raises
    ------
    ValueError
        If either lies outside [0, 1].

    Examples
    --------
    >>> round(float(binary_kl(0.5, 0.25)), 6)
    0.143841
    >>> float(binary_kl(1.0, 0.5)) == float(np.log(2))
    True
    """
    h, q = _validate.probabilities("h", h), _validate.probabilities("q", q)
    return binary_kl_of_gain(h - q, q, xp=np)
