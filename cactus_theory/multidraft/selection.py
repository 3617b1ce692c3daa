r"""How to choose one of k drafts so that it is a sample of the equivalent draft r, and verify it.

Any order of the tokens selects: take the drafted token that comes last. The token at place j is
taken with probability P_j^k - P_(j-1)^k. The distributions that can be reached are the mixtures of
these (the core of a convex game), so r is one: `selection_chances` finds its orders. Blocks of the
majorant come in the order of p/q. Inside a block one order is used with the largest probability
that leaves the rest reachable. At that point some set of tokens is exhausted, which splits the
block in two, and both parts are treated in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.multidraft.frontier import equivalent_draft, majorant, power_steps
from cactus_theory.rules import Rule
from cactus_theory.specification import inverse_cdf, verify

_SLACK = 4 * np.finfo(np.float64).eps  # of sums of a block's probabilities


def selection_chances(tokens: Sequence[int], *, draft: Any, target: Any) -> np.ndarray:
    """Chance that each of k drafted tokens is selected, so that the selected one follows r.

    Parameters
    ----------
    tokens : sequence of k ints
        Drawn independently from `draft`.
    draft, target : array_like, shape (V,)
        Distributions p and q.

    Returns
    -------
    float64 array, shape (k,)
        Sums to 1; of equal tokens the first has the chance of all. Found in O(V log V) time for
        each part of the block that is visited, so for reference and not for large blocks.

    Raises
    ------
    TypeError, ValueError
        If a token lies outside the vocabulary or was drafted with probability 0, there is none, or
        an argument is not a distribution.

    Examples
    --------
    >>> selection_chances([0, 1], draft=[0.75, 0.25], target=[0.5, 0.5])
    array([0., 1.])
    >>> selection_chances([0, 1], draft=[0.5, 0.5], target=[0.4, 0.6]).round(3)
    array([0.3, 0.7])
    """
    p, q = _validate.law_pair(draft=draft, target=target)
    if p.ndim != 1 or q.ndim != 1:
        raise ValueError(f"draft and target must have shape (V,), got {p.shape} and {q.shape}")
    drafted = [_validate.token("tokens", token, p.size) for token in tokens]
    if not drafted:
        raise ValueError("tokens must hold at least one drafted token, got none")
    for token in drafted:
        if not p[token] > 0:
            raise ValueError(f"tokens must have positive draft probability, got {token} with 0")
    chances = dict.fromkeys(drafted, 0.0)
    p = p / p.sum()
    _walk(chances, p, q, len(drafted))
    first = [drafted.index(token) == place for place, token in enumerate(drafted)]
    return np.array([chances[t] * one for t, one in zip(drafted, first, strict=True)])


def verify_drafts(
    rule: Rule,
    tokens: Sequence[int],
    *,
    draft: Any,
    target: Any,
    select_uniform: float,
    accept_uniform: float,
    recover_uniform: float,
) -> tuple[int, bool]:
    """Select one of k drafts of a position and verify it by any rule, as a draft of r.

    What is emitted is the rule's emitted distribution for r in the place of p. With `Clamp` no
    scheme accepts more within the same budget; with `SpeculativeSampling` none that emits q does.

    Parameters
    ----------
    rule : Rule
    tokens : sequence of k ints
        Drawn independently from `draft`.
    draft, target : array_like, shape (V,)
        Distributions p and q.
    select_uniform, accept_uniform, recover_uniform : float in [0, 1)

    Returns
    -------
    (token, accepted) : tuple of int, bool
        What is emitted, and whether it is the selected draft.

    Raises
    ------
    TypeError, ValueError
        As `selection_chances`.

    Examples
    --------
    >>> from cactus_theory import Clamp
    >>> verify_drafts(Clamp(0.01), [0, 1], draft=[0.75, 0.25], target=[0.5, 0.5],
    ...               select_uniform=0.3, accept_uniform=0.5, recover_uniform=0.5)
    (1, True)
    """
    chances = selection_chances(tokens, draft=draft, target=target)
    selected = int(tokens[inverse_cdf(chances, select_uniform)])
    law = equivalent_draft(draft=draft, target=target, num_drafts=len(tokens))
    rows = np.stack([np.asarray(target, dtype=np.float64)] * 2)
    emitted, accepted = verify(
        rule,
        [selected],
        draft=law[None],
        target=rows,
        accept_uniforms=[accept_uniform],
        recover_uniform=recover_uniform,
    )
    return emitted[0], bool(accepted)


def _walk(chances: dict[int, float], p: np.ndarray, q: np.ndarray, k: int) -> None:
    """Add the chances of the drafted tokens, which are the keys."""
    tokens, law, starts = majorant(p, q, k)
    drafted = np.isin(tokens, list(chances))
    block = np.searchsorted(starts, np.flatnonzero(drafted)[-1], side="right")
    part = slice(starts[block - 1], starts[block])
    before = float(p[tokens[: starts[block - 1]]].sum())
    tokens, law, drafted, left = tokens[part], law[part], drafted[part], 1.0
    while drafted.sum() > 1:
        order = np.argsort(law / p[tokens], kind="stable")
        tokens, law, drafted = tokens[order], law[order], drafted[order]
        steps = power_steps(p[tokens], before, k)
        weight, first = _largest_weight(p[tokens], law, steps, before, k)
        chances[int(tokens[np.flatnonzero(drafted)[-1]])] += left * weight
        left *= 1 - weight
        if first is None:
            return
        law = np.maximum((law - weight * steps) / (1 - weight), 0.0)
        if drafted[~first].any():
            before += float(p[tokens[first]].sum())
            first = ~first
        tokens, law, drafted = tokens[first], law[first], drafted[first]
    chances[int(tokens[drafted][0])] += left


def _largest_weight(
    p: np.ndarray, law: np.ndarray, steps: np.ndarray, before: float, k: int
) -> tuple[float, np.ndarray | None]:
    """The largest w for which law - w steps can be reached by mixtures of weight 1 - w in all.

    And the set of tokens that is then exhausted, or None for w = 1. Newton's method: for each w the
    set that lacks most has the smallest (law - w steps) / p.
    """
    weight, exhausted = 1.0, None
    slack = _SLACK * (law.sum() + p.size * np.finfo(np.float64).tiny)
    while True:
        order = np.argsort((law - weight * steps) / p, kind="stable")
        ours, used = (np.cumsum(x[order])[:-1] for x in (law, steps))
        least = np.cumsum(power_steps(p[order], before, k))[:-1]
        lacking = ours - weight * used - (1 - weight) * least
        worst = int(np.argmin(lacking))
        if lacking[worst] >= -slack or used[worst] <= least[worst]:
            return weight, exhausted
        lower = max((ours[worst] - least[worst]) / (used[worst] - least[worst]), 0.0)
        if lower >= weight:
            return weight, exhausted
        weight, exhausted = float(lower), np.zeros(p.size, dtype=bool)
        exhausted[order[: worst + 1]] = True
