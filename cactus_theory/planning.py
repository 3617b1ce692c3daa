"""What a block of drafted tokens is worth: tokens per pass, speed-up, best length, break-even.

Knows acceptance rates and costs only, and not where they come from (distributions, a measurement).
Every cost is relative to one plain pass of the target, over one token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import brentq

from cactus_theory import _validate
from cactus_theory.emitted import block_efficiency

VerifyCost = float | Sequence[float] | np.ndarray | Callable[[int], float]


def block_law(rates: Any) -> np.ndarray:
    """Distribution of the number of tokens emitted per target pass.

    P(N = j) = a_1 ... a_(j-1) (1 - a_j) for j = 1..k, and P(N = k + 1) = a_1 ... a_k: the tokens
    kept and one more, recovered or bonus. Its mean is `block_efficiency`.

    Parameters
    ----------
    rates : array_like, shape (..., k)
        Acceptance rates of the k drafted positions, each given that those before it passed.

    Returns
    -------
    float64 array, shape (..., k + 1)
        Entry j is the chance of j + 1 tokens.

    Raises
    ------
    ValueError
        If a rate lies outside [0, 1] or there is no axis of positions.

    Examples
    --------
    >>> block_law([0.5, 0.5])
    array([0.5 , 0.25, 0.25])
    """
    rates = _validate.probabilities("rates", rates)
    if rates.ndim == 0:
        raise ValueError(f"rates must have shape (..., k), got the scalar {float(rates)!r}")
    none = np.ones((*rates.shape[:-1], 1))
    reached = np.concatenate([none, np.cumprod(rates, axis=-1)], axis=-1)
    return reached * np.concatenate([1 - rates, none], axis=-1)


def block_cost(num_draft_tokens: int, *, draft_cost: float, verify_cost: VerifyCost = 1.0) -> float:
    """Cost of drafting k tokens and verifying them in one pass: k draft_cost + verify_cost(k+1).

    Parameters
    ----------
    num_draft_tokens : int
        k >= 0; for 0 the cost is that of plain decoding, 1, for any `verify_cost`.
    draft_cost : float
        Cost of drafting one token, in plain target passes (one token each).
    verify_cost : float, callable or array_like, in the same unit
        Cost of a target pass over k + 1 tokens: one number for every k >= 1, or a function of the
        number of tokens, or a table whose entry k is a pass over k + 1 tokens.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If a count is not an integer >= 0, a cost is not finite and >= 0, the cost of a pass is 0,
        or the table ends before k.

    Examples
    --------
    >>> block_cost(4, draft_cost=0.125, verify_cost=lambda tokens: 1 + 0.1 * (tokens - 1))
    1.9
    """
    k = _validate.integer("num_draft_tokens", num_draft_tokens, 0)
    drafting = k * _cost("draft_cost", draft_cost)
    if k == 0:
        return 1.0
    if callable(verify_cost):
        verifying = verify_cost(k + 1)
    elif np.ndim(verify_cost) == 0:
        verifying = verify_cost
    else:
        table = np.asarray(verify_cost, dtype=np.float64)
        if table.ndim != 1 or len(table) <= k:
            raise ValueError(
                f"verify_cost must have entries up to {k} for passes over up to {k + 1} tokens, "
                f"got shape {table.shape}"
            )
        verifying = table[k]
    verifying = _cost(f"verify_cost of {k + 1} tokens", verifying)
    if verifying == 0:
        raise ValueError(f"verify_cost of {k + 1} tokens must be > 0, got 0.0")
    return drafting + verifying


def speedup(
    rate: Any, num_draft_tokens: int, *, draft_cost: float, verify_cost: VerifyCost = 1.0
) -> Any:
    """Tokens per unit of time relative to plain decoding, (1 + a + ... + a^k) / block_cost(k).

    Parameters
    ----------
    rate : array_like, shape (...)
        Acceptance rate a, the same at every drafted position.
    num_draft_tokens : int
        k >= 0; 0 is plain decoding, whose speed-up is 1.
    draft_cost, verify_cost
        As for `block_cost`.

    Returns
    -------
    float64 array, shape (...)

    Raises
    ------
    TypeError, ValueError
        If a rate lies outside [0, 1], or as for `block_cost`.

    Notes
    -----
    Where rates differ between positions, divide `block_efficiency` of those rates by `block_cost`.
    One mean rate understates the speed-up where easy and hard positions come in runs: E[a^j] >=
    E[a]^j.

    References
    ----------
    Theorem 3.8 of Leviathan, Kalman and Matias (2023), for verify_cost = 1.

    Examples
    --------
    >>> round(float(speedup(0.8, 4, draft_cost=0.05)), 4)
    2.8013
    """
    k = _validate.integer("num_draft_tokens", num_draft_tokens, 0)
    cost = block_cost(k, draft_cost=draft_cost, verify_cost=verify_cost)
    return _tokens(rate, k) / cost


def best_num_draft_tokens(
    rate: Any, *, draft_cost: float, verify_cost: VerifyCost = 1.0, max_draft_tokens: int = 64
) -> Any:
    """The number of drafted tokens with the largest speed-up; 0 where drafting does not pay.

    Every k from 0 to `max_draft_tokens` is tried, since a measured `verify_cost` may have steps;
    the smallest of equals is returned.

    Parameters
    ----------
    rate : array_like, shape (...)
        Acceptance rate, the same at every drafted position.
    draft_cost, verify_cost
        As for `block_cost`; a table needs max_draft_tokens + 1 entries.
    max_draft_tokens : int

    Returns
    -------
    int array, shape (...)

    Raises
    ------
    TypeError, ValueError
        As for `speedup`.

    Examples
    --------
    >>> int(best_num_draft_tokens(0.8, draft_cost=0.05))
    8
    >>> int(best_num_draft_tokens(0.3, draft_cost=0.5))
    0
    """
    longest = _validate.integer("max_draft_tokens", max_draft_tokens, 0)
    gains = [
        speedup(rate, k, draft_cost=draft_cost, verify_cost=verify_cost) for k in range(longest + 1)
    ]
    return np.argmax(np.stack(gains), axis=0)


def break_even_acceptance(
    num_draft_tokens: int, *, draft_cost: float, verify_cost: VerifyCost = 1.0
) -> float:
    """The acceptance rate a at which the speed-up is 1: 1 + a + ... + a^k = block_cost(k).

    Below it drafting k tokens is slower than plain decoding, above it faster.

    Parameters
    ----------
    num_draft_tokens : int
        k >= 1.
    draft_cost, verify_cost
        As for `block_cost`.

    Returns
    -------
    float
        In [0, 1], to about 1e-15; 0 where even a block with no token accepted costs no more than
        a plain pass.

    Raises
    ------
    TypeError, ValueError
        As for `block_cost`; or if there is no such rate, because the block costs more than the
        k + 1 tokens it emits at best.

    Examples
    --------
    >>> break_even_acceptance(1, draft_cost=0.25)
    0.25
    """
    k = _validate.integer("num_draft_tokens", num_draft_tokens, 1)
    cost = block_cost(k, draft_cost=draft_cost, verify_cost=verify_cost)
    if cost <= 1:
        return 0.0
    if cost > k + 1:
        raise ValueError(
            f"no acceptance rate breaks even: the block costs {cost!r} plain passes and emits at "
            f"most {k + 1} tokens"
        )
    if k == 1:
        return cost - 1
    root: Any = brentq(
        lambda rate: float(_tokens(rate, k)) - cost, 0.0, 1.0, xtol=1e-15, rtol=np.float64(2.0**-50)
    )
    return root


def _tokens(rate: Any, k: int) -> Any:
    """Block efficiency of k positions with one rate."""
    rate = np.asarray(rate, dtype=np.float64)[..., None]
    return block_efficiency(np.broadcast_to(rate, (*rate.shape[:-1], k)))


def _cost(name: str, value: Any) -> float:
    _validate.number(name, value, "a number of plain target passes")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and >= 0, got {value!r}")
    return float(value)
