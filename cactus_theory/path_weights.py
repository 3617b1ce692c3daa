r"""The probability of a decoded path, and the importance weight that corrects it to the target's.

At a verified position the token emitted has the distribution out given everything so far, so a
path's tokens have probabilities out(x) and q(x), and w = prod q(x) / out(x) over the verified ones
is the ratio of the target's probability to the path's: E[w f(text)] = E_target[f(text)], in
particular E[w] = 1, for every f that vanishes on the texts that the decoder cannot emit. Such texts
exist where out(x) = 0 < q(x). This happens where the draft excludes x (top-k, top-p) and nothing is
rejected: see `TokenProbabilities.coverage`. There E[w] is the target's probability of the other
texts, below 1. Adaptive numbers of drafts, budgets and block verification do not change this.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cactus_theory.texts import TokenProbabilities


def emitted_log_probability(probabilities: TokenProbabilities, *, verified: Any) -> np.ndarray:
    """Log-probability with which each token of a decoded path was drawn, given all before it.

    log out(x) where the position was verified, else log q(x). Off-policy corrections need this
    log-probability from the sampler.

    Parameters
    ----------
    probabilities : TokenProbabilities
    verified : bool array_like that broadcasts to (..., T)
        True of accepted and recovered tokens, False of bonus and plain ones.

    Returns
    -------
    float64 array, shape (..., T)
        Nats.

    Raises
    ------
    TypeError, ValueError
        If `verified` is not boolean or does not fit, or a token cannot have been drawn.

    Examples
    --------
    >>> from cactus_theory import Cactus, token_probabilities
    >>> found = token_probabilities(
    ...     [0, 1], draft=[[0.75, 0.25]] * 2, target=[[0.5, 0.5]] * 2, rule=Cactus(0.02))
    >>> np.exp(emitted_log_probability(found, verified=[True, False])).round(6)
    array([0.6, 0.5])
    """
    drawn = np.where(
        _verified(verified, probabilities), probabilities.emitted, probabilities.target
    )
    if not (drawn > 0).all():
        at = tuple(int(i) for i in np.argwhere(~(drawn > 0))[0])
        raise ValueError(f"the token at index {at} has probability 0 of being drawn on this path")
    return np.log(drawn)


def path_log_weight(probabilities: TokenProbabilities, *, verified: Any) -> np.ndarray:
    """Log of w = prod q(x) / out(x) over the verified positions of decoded paths.

    E[w f(text)] = E_target[f(text)] for every f, provided that the decoder can emit whatever the
    target can (`TokenProbabilities.coverage` = 1). Under `Clamp` at levels b > 0 and a, q / out
    lies in [1/a, 1/b] at each position. The spread grows with what the texts cost: if every
    position has the same chi2(q || out), E[w^2] = (1 + chi2(q || out))^(verified positions).

    Parameters
    ----------
    probabilities : TokenProbabilities
    verified : bool array_like that broadcasts to (..., T)
        True of accepted and recovered tokens, False of bonus and plain ones.

    Returns
    -------
    float64 array, shape (...)
        Nats; -inf of a text that the target never emits.

    Raises
    ------
    TypeError, ValueError
        As `emitted_log_probability`.

    References
    ----------
    Ours; importance sampling on paths.

    Examples
    --------
    >>> from cactus_theory import Cactus, token_probabilities
    >>> found = token_probabilities(
    ...     [0, 1], draft=[[0.75, 0.25]] * 2, target=[[0.5, 0.5]] * 2, rule=Cactus(0.02))
    >>> round(float(np.exp(path_log_weight(found, verified=[True, False]))), 6)
    0.833333
    """
    with np.errstate(divide="ignore"):
        target = np.log(probabilities.target)
    drawn = emitted_log_probability(probabilities, verified=verified)
    return np.where(_verified(verified, probabilities), target - drawn, 0.0).sum(axis=-1)


def effective_sample_size(log_weights: Any) -> np.ndarray:
    """Kish's effective sample size (sum w)^2 / sum w^2 of weighted samples.

    Parameters
    ----------
    log_weights : array_like, shape (..., n)
        Logs of weights, up to a common constant; -inf is a weight of 0.

    Returns
    -------
    float64 array, shape (...)
        Between 1 and n.

    Raises
    ------
    ValueError
        If there are no weights, one is nan or inf, or all are 0.

    References
    ----------
    Kish (1965); n / (1 + squared coefficient of variation of the weights).

    Examples
    --------
    >>> float(effective_sample_size([0.0, 0.0, -np.inf]))
    2.0
    """
    logs = np.asarray(log_weights, dtype=np.float64)
    if logs.ndim == 0 or logs.shape[-1] == 0:
        raise ValueError(f"log_weights must have shape (..., n) with n >= 1, got {logs.shape}")
    largest = logs.max(axis=-1, keepdims=True)
    if not np.isfinite(largest).all():
        raise ValueError("log_weights must be below inf, and above -inf for one of each set")
    weights = np.exp(logs - largest)
    return weights.sum(axis=-1) ** 2 / (weights**2).sum(axis=-1)


def _verified(verified: Any, probabilities: TokenProbabilities) -> np.ndarray:
    array, shape = np.asarray(verified), probabilities.target.shape
    if array.dtype != np.bool_:
        raise TypeError(f"verified must be boolean, got an array of {array.dtype}")
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"verified must broadcast to {shape}, got {array.shape}") from None
