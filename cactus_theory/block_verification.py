r"""Block verification of an ordered rule: the same emitted distribution, never fewer tokens.

An ordered rule accepts with min(p, out): it is standard verification with its own emitted
distribution `out` in the place of the target's. Block verification verifies k drafts x_1 ... x_k
together. With out_i and p_i the rows given the drafts before the i-th, and s_0 = 1,

    s_i = min(s_(i-1) out_i(x_i) / p_i(x_i), 1),
    S_i = sum_x [s_i out_(i+1)(x) - p_(i+1)(x)]_+,
    h_i = S_i / (S_i + 1 - s_i) for i < k,   h_k = s_k,

the first tau drafts are kept, tau being the largest i with u_i < h_i (0 if there is none), and one
token is drawn from [s_tau out_(tau+1) - p_(tau+1)]_+, or from the target after all k.

From P(tau >= i | drafts) = s_i follows (ours; by induction from k down: the sum of
min(s_i out, p) is s_i - S_i, and h_i + (1 - h_i) (s_i - S_i) = s_i):

* **The emitted distribution stays.** Given that at least i drafts are kept, and which, the next
  token is y with probability out_(i+1)(y): accepted with min(out, p / s_i), else recovered. So
  charges, budgets, path weights and text likelihoods (`texts`) hold unchanged.
* **Never fewer tokens.** Token by token the first i drafts are kept with
  prod min(out / p, 1) <= s_i: for every i, on every draft.
* **Where it cannot help.** The two are equal unless out / p exceeds 1 at a token after one where it
  was below 1: for k = 1, for drafts that give their tokens probability 1 (greedy, prompt lookup),
  and where everything is accepted.

Blocks end elsewhere, and the bonus token is the target's own, so the distribution of a text of
several blocks may change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from cactus_theory import _validate
from cactus_theory.emitted import output_distribution
from cactus_theory.rules import Rule
from cactus_theory.specification import inverse_cdf

Rows = Callable[[tuple[int, ...]], Any]


def verify_block(
    rule: Rule | Sequence[Rule],
    tokens: Sequence[int],
    *,
    draft: Any,
    target: Any,
    accept_uniforms: Sequence[Any],
    recover_uniform: Any,
) -> tuple[list[int], int]:
    """Verify k drafted tokens as one block: keep a prefix, then add one recovered or bonus token.

    This is the executable specification. It is called like `cactus_theory.specification.verify`.
    The i-th comparison is u (S + 1 - s) < S, strictly, so that u = 0 keeps nothing of probability
    0.

    Parameters
    ----------
    rule : Rule, or sequence of k Rules
        Ordered. One for all positions, or one for each. Each must be chosen before the tokens at
        its position and later are known: `SpeculativeSampling` for positions beyond a budget.
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
        If a rule is not ordered, a token is outside the vocabulary, or the number of rules or
        uniforms is not that of the tokens.

    References
    ----------
    Sun et al. (2024), "Block verification accelerates speculative decoding", arXiv 2403.10444.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> verify_block(
    ...     SpeculativeSampling(), [0, 1], draft=np.array([[0.75, 0.25]] * 2),
    ...     target=np.array([[0.5, 0.5]] * 3), accept_uniforms=[0.9, 0.9], recover_uniform=0.2)
    ([0, 1, 0], 2)
    """
    rows = _emitted_rows(rule, tokens, draft, target)
    survivals = _survivals(tokens, draft, rows)
    kept, k = 0, len(tokens)
    for i, (s, u) in enumerate(zip(survivals[1:], accept_uniforms, strict=True), start=1):
        missing = s if i == k else _residual(s, rows[i], draft[i]).sum()
        if u * (1 if i == k else missing + 1 - s) < missing:
            kept = i
    weights = target[k]
    if kept < k:
        weights = _residual(survivals[kept], rows[kept], draft[kept])
        if not weights.sum() > 0:  # empty by rounding only: then p = out
            weights = rows[kept]
    return [*(int(token) for token in tokens[:kept]), inverse_cdf(weights, recover_uniform)], kept


def prefix_survival(
    rule: Rule | Sequence[Rule], tokens: Sequence[int], *, draft: Any, target: Any
) -> np.ndarray:
    """Chance that the first 1, 2, ..., k of given drafts are all kept by block verification.

    s_i = min(s_(i-1) out_i(x_i) / p_i(x_i), 1), which is at least prod_(j <= i) min(out / p, 1),
    that of verification token by token.

    Parameters
    ----------
    rule : Rule, or sequence of k Rules
        Ordered.
    tokens : sequence of k ints
        Drafted tokens.
    draft : array, shape (k, V)
    target : array, shape (k, V) or (k + 1, V)

    Returns
    -------
    float64 array, shape (k,)
        Of Fractions if the rows are.

    Raises
    ------
    TypeError, ValueError
        As `verify_block`.

    References
    ----------
    Sun et al. (2024), arXiv 2403.10444; that it is this chance: ours.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> prefix_survival(
    ...     SpeculativeSampling(), [0, 1], draft=np.array([[0.75, 0.25]] * 2),
    ...     target=np.array([[0.5, 0.5]] * 2)).round(6)
    array([0.666667, 1.      ])
    """
    return np.array(_survivals(tokens, draft, _emitted_rows(rule, tokens, draft, target))[1:])


def block_distribution(
    rule: Rule,
    *,
    draft: Rows,
    target: Rows,
    num_draft_tokens: int,
    verification: Literal["token", "block"] = "block",
) -> dict[tuple[tuple[int, ...], int], Any]:
    """Exact distribution of what one block emits and how many of its drafts are kept.

    Every possible draft is followed, so the cost grows as V^k: for small vocabularies only.

    Parameters
    ----------
    rule : Rule
        Ordered.
    draft, target : callable, tuple of int -> array, shape (V,)
        Rows given the tokens of the block so far, the empty tuple first.
    num_draft_tokens : int >= 0
        k.
    verification : {"token", "block"}

    Returns
    -------
    dict of (emitted, accepted) to float
        Outcomes of positive probability: accepted + 1 tokens, and how many drafts were kept. Of
        Fractions if the rows are.

    Raises
    ------
    ValueError
        If the rule is not ordered, the number negative, or the verification unknown.

    References
    ----------
    Sun et al. (2024), arXiv 2403.10444; the closed form: ours.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> rows = {"draft": lambda block: [0.75, 0.25], "target": lambda block: [0.5, 0.5]}
    >>> block_distribution(SpeculativeSampling(), **rows, num_draft_tokens=1)
    {((0, 0), 1): 0.25, ((0, 1), 1): 0.25, ((1,), 0): 0.25, ((1, 0), 1): 0.125, ((1, 1), 1): 0.125}
    """
    if verification not in ("token", "block"):
        raise ValueError(f"verification must be 'token' or 'block', got {verification!r}")
    if num_draft_tokens < 0:
        raise ValueError(f"num_draft_tokens must be >= 0, got {num_draft_tokens!r}")
    _check_ordered(rule)
    found: dict[tuple[tuple[int, ...], int], Any] = {}

    def follow(block: tuple[int, ...], chance: Any, survival: Any) -> None:
        """`chance` is that of a block whose drafts so far are `block` and were all kept."""
        q, accepted = np.asarray(target(block)), len(block)
        if accepted == num_draft_tokens:
            bonus = enumerate(q.tolist())
            found.update({((*block, x), accepted): chance * y for x, y in bonus if y > 0})
            return
        p = np.asarray(draft(block))
        rows = zip(_emitted_row(rule, p, q).tolist(), p.tolist(), strict=True)
        for x, (out, drafted) in enumerate(rows):
            kept = min(out, drafted / survival)
            if out > kept:
                found[(*block, x), accepted] = chance * (out - kept)
            if kept > 0:
                after = min(survival * out / drafted, 1) if verification == "block" else 1
                follow((*block, x), chance * kept, after)

    follow((), 1, 1)
    return found


def expected_tokens(
    rule: Rule,
    *,
    draft: Rows,
    target: Rows,
    num_draft_tokens: int,
    verification: Literal["token", "block"] = "block",
) -> Any:
    """Expected tokens per target pass of one block, 1 + sum_i P(at least i drafts are kept).

    Parameters
    ----------
    rule : Rule
        Ordered.
    draft, target : callable, tuple of int -> array, shape (V,)
        Rows given the tokens of the block so far.
    num_draft_tokens : int >= 0
    verification : {"token", "block"}

    Returns
    -------
    float
        Between 1 and k + 1; a Fraction if the rows are of Fractions.

    Raises
    ------
    ValueError
        As `block_distribution`, whose cost it has.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> rows = {"draft": lambda block: [0.75, 0.25], "target": lambda block: [0.5, 0.5]}
    >>> [round(float(expected_tokens(
    ...     SpeculativeSampling(), **rows, num_draft_tokens=2, verification=verification)), 6)
    ...  for verification in ("token", "block")]
    [2.3125, 2.375]
    """
    outcomes = block_distribution(
        rule,
        draft=draft,
        target=target,
        num_draft_tokens=num_draft_tokens,
        verification=verification,
    )
    return sum(chance * len(emitted) for (emitted, _), chance in outcomes.items())


def _check_ordered(rule: Rule) -> None:
    if not isinstance(rule, Rule):
        raise TypeError(f"rule must be a Rule, got {rule!r}")
    if not rule.ordered:
        raise ValueError(f"block verification needs an ordered rule, got {rule!r}")


def _emitted_rows(
    rule: Rule | Sequence[Rule], tokens: Sequence[int], draft: Any, target: Any
) -> list[np.ndarray]:
    """Check rules and tokens, and return out at each drafted position."""
    for token in tokens:
        _validate.token("tokens", token, len(target[0]))
    rules = [rule] * len(tokens) if isinstance(rule, Rule) else rule
    if len(rules) != len(tokens):
        raise ValueError(f"rule must be one, or one for each of {len(tokens)} tokens, got {rule!r}")
    for each in rules:
        _check_ordered(each)
    rows = range(len(tokens))
    return [_emitted_row(rules[i], np.asarray(draft[i]), np.asarray(target[i])) for i in rows]


def _emitted_row(rule: Rule, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """out(p, q); for object arrays by its definition, in the arithmetic of the inputs."""
    if p.dtype != object:
        return output_distribution(rule, draft=p, target=q)
    kept = rule.accepted_mass(p, q)
    out = 1 * kept
    for n in np.flatnonzero(p > kept).tolist():
        weights = rule.recovery_weights(n, p, q)
        out = out + (p[n] - kept[n]) * weights / weights.sum()
    return out


def _survivals(tokens: Sequence[int], draft: Any, emitted: Sequence[np.ndarray]) -> list[Any]:
    """s_0 ... s_k."""
    survivals: list[Any] = [1]
    for token, p, out in zip(tokens, draft, emitted, strict=True):
        survivals.append(min(survivals[-1] * out[token] / p[token], 1) if p[token] > 0 else 0)
    return survivals


def _residual(survival: Any, emitted: np.ndarray, draft: Any) -> Any:
    return np.maximum(survival * emitted - np.asarray(draft), 0)
