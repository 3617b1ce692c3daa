"""The verifier as a short executable specification. Every faster implementation must agree with it.

Randomness enters as uniforms, so distributions can be enumerated instead of sampled, and two
implementations can be compared token for token. Only + - * and comparisons touch the probabilities:
with object arrays of Fractions and plain speculative sampling the emitted distribution is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.rules import Rule


def verify(
    rule: Rule | Sequence[Rule],
    tokens: Sequence[int],
    *,
    draft: Any,
    target: Any,
    accept_uniforms: Sequence[Any],
    recover_uniform: Any,
) -> tuple[list[int], int]:
    """Verify k drafted tokens: keep a prefix, then add one recovered or bonus token.

    Token i is kept when accept_uniforms[i] * draft[i, token] < the rule's accepted mass, strictly,
    so that u = 0 never accepts a mass of 0. After the first rejection one token is drawn from the
    rule's recovery distribution; after none, from the target's distribution at the last position.

    Parameters
    ----------
    rule : Rule, or sequence of k Rules
        One for all positions, or one for each.
    tokens : sequence of k ints
        Drafted tokens; token i was drawn from draft[i].
    draft : array, shape (k, V)
    target : array, shape (k + 1, V)
    accept_uniforms : sequence of k numbers in [0, 1)
    recover_uniform : number in [0, 1)
        Drives the recovered or bonus token, by the inverse of its distribution function.

    Returns
    -------
    (emitted, accepted) : tuple of list of int, int
        accepted <= k drafted tokens were kept; emitted has accepted + 1 tokens.

    Raises
    ------
    TypeError, ValueError
        If a token is outside the vocabulary, or the number of uniforms is not that of the tokens.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> verify(
    ...     SpeculativeSampling(), [0], draft=np.array([[1.0, 0.0]]),
    ...     target=np.array([[0.5, 0.5], [0.0, 1.0]]), accept_uniforms=[0.7], recover_uniform=0.2)
    ([1], 0)
    """
    kept: list[int] = []
    tokens = [_validate.token("tokens", token, len(target[0])) for token in tokens]
    rules = [rule] * len(tokens) if isinstance(rule, Rule) else rule
    for i, (token, u, rule) in enumerate(zip(tokens, accept_uniforms, rules, strict=True)):
        if not u * draft[i][token] < rule.threshold(token, draft[i], target[i]):
            weights = rule.recovery_weights(token, draft[i], target[i])
            if not weights.sum() > 0:  # empty by rounding only: then p = q, and q is drawn from
                weights = target[i]
            return [*kept, inverse_cdf(weights, recover_uniform)], i
        kept.append(token)
    return [*kept, inverse_cdf(target[len(kept)], recover_uniform)], len(kept)


def inverse_cdf(weights: Any, uniform: Any) -> int:
    """First x with uniform * total < weights[0] + ... + weights[x]; never one of weight zero."""
    cumulative = np.cumsum(weights)
    total = cumulative[-1]
    return int(np.argmax((cumulative > uniform * total) | (cumulative == total)))
