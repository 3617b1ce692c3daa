r"""What a sequence has cost so far, and the stop that keeps its cost within a budget.

Knows costs as plain numbers, and not how they are computed.

The guarantee. Let q_t be the target's distribution of the t-th token of a text x given the tokens
before it, and let F_t be everything known once position t is emitted: tokens, which of them
were accepted, block positions, the ledger. Suppose that for every t

1. whether the lossy rule is used at t, and c_t, what the ledger is charged for it, are functions
   of F_(t-1): of the past, not of the token drafted at t or later, nor of a later cost;
2. so are whether t has a draft token at all and the distribution that token was drawn from (a token
   once drawn must be verified: dropping it after looking at it changes that distribution);
3. c_t >= KL(out_t || q_t), out_t being the emitted distribution of that position under the rule in
   use (0 where the position is lossless: a bonus or plain token, or speculative sampling);
4. on every path sum_t c_t <= B.

Then KL(emitted text || target's text) <= B, for every prompt, length (also a random one that ends
the text) and block structure. Proof: P(x_t | F_(t-1)) = out_t by 1 and 2, so by the chain rule and
by convexity of KL(. || q_t), q_t being a function of the tokens alone,

    KL(text) = sum_t E KL(P(x_t | x_<t) || q_t) <= E sum_t KL(out_t || q_t) <= E sum_t c_t <= B.

The same three steps with TV in place of KL give TV(emitted text, target's text) <= B; a KL budget
of B alone gives TV <= sqrt(B/2).

What this asks of a decoder:

* **A position is charged in full before its outcome is known**, whether its token is then accepted
  or recovered, because out_t covers both. Charging only accepted tokens, or the realised log-ratio,
  undercounts, and the guarantee fails.
* **Only emitted positions are charged.** Positions after the first rejection, or after the end of
  the text, emitted nothing; their planned charges are not spent.
* **A stop inside a block is valid, and so is resuming in the next one.** The cost at block position
  i depends on the drafted tokens before i, and i is reached only if those were accepted, that is,
  only once they belong to the past. So `budget_stop` reads a block from its front, and no position
  depends on a later cost. A plan that skips early positions to save budget for later ones looks at
  tokens that are not yet verified. That violates condition 1, and the guarantee fails.
* **The O(V) bound serves as the cost** (`Emission.kl_bound`): with candidates, the emitted
  distribution is min(p, g) >= q on p > q and <= q elsewhere, so the terms out log(out/q) left out
  of the bound are <= 0; hence 3 holds. It only uses up the budget sooner. For a rule without
  candidates it is the KL itself: inf where the target's support is left, which exceeds every
  budget.
* **A smaller boost is covered by the charge for a larger one**, also one chosen by looking at the
  drafted token: with candidates, divergence is monotone in every boost (see `inverse`).

* **The ledger may be far above the truth.** No factor bounds it, even with exact charges, as a text
  does not show which tokens were bonus ones (claim ledger-far-above). The O(V) bound alone is at
  least 1/(4x) times the KL for a gain x of one of two even tokens (claim charge-far-above).
  `estimate_divergence` estimates the truth from texts.

"Target" is the target after temperature and filters. Costs are taken as given. Their own rounding
(about V ulp) is not covered; that of the ledger is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What a sequence has been charged so far, and its budgets.

    Parameters
    ----------
    total_variation : float
        Sum of what was charged in total variation.
    kl : float
        Sum of what was charged in nats: KL of the emitted distributions, or upper bounds of it.
    max_total_variation, max_kl : float
        Budgets of the whole sequence; inf means none.

    Raises
    ------
    TypeError, ValueError
        If a field is not a number >= 0, or a sum exceeds its budget.

    Notes
    -----
    Sums are rounded up, so that the exact sum of the costs is within the budget too.

    Examples
    --------
    >>> ledger = Ledger(max_kl=1.0)
    >>> ledger = ledger.spend(total_variations=[0.125, 0.25], kls=[0.25, 0.5])
    >>> ledger.total_variation, ledger.kl
    (0.375, 0.75)
    """

    total_variation: float = 0.0
    kl: float = 0.0
    max_total_variation: float = math.inf
    max_kl: float = math.inf

    def __post_init__(self) -> None:
        for name in ("total_variation", "kl", "max_total_variation", "max_kl"):
            object.__setattr__(self, name, _amount(name, getattr(self, name)))
        for name in ("total_variation", "kl"):
            total, most = getattr(self, name), getattr(self, f"max_{name}")
            if total > most:
                raise ValueError(f"{name} must be at most max_{name}={most!r}, got {total!r}")

    def spend(self, *, total_variations: Sequence[float], kls: Sequence[float]) -> Ledger:
        """Return the ledger after the emitted positions that were verified with the lossy rule.

        Parameters
        ----------
        total_variations, kls : sequence of m floats
            Cost of each, accepted or recovered: the first min(accepted + 1, budget_stop) of a
            block, without those after the end of the text.

        Returns
        -------
        Ledger

        Raises
        ------
        TypeError, ValueError
            If a cost is not a number >= 0, the lengths differ, or a budget would be exceeded,
            which never happens to positions that `budget_stop` allowed.

        Examples
        --------
        >>> Ledger(max_kl=0.5).spend(total_variations=[0.25], kls=[0.75])
        Traceback (most recent call last):
        ValueError: kl must be at most max_kl=0.5, got 0.75
        """
        total_variation, kl = self.total_variation, self.kl
        for distance, nats in _costs(total_variations, kls):
            total_variation, kl = _add_up(total_variation, distance), _add_up(kl, nats)
        return replace(self, total_variation=total_variation, kl=kl)


def budget_stop(ledger: Ledger, *, total_variations: Sequence[float], kls: Sequence[float]) -> int:
    """Number of positions of a block, from its front, that the lossy rule may be used for.

    The largest m with ledger + cost_1 + ... + cost_m within both budgets. Positions after m are
    to be verified losslessly (`SpeculativeSampling`) and are not charged. Whether position i is
    among the m depends on the costs up to i only; see the module's docstring for why that matters.

    Parameters
    ----------
    ledger : Ledger
        Before the block.
    total_variations, kls : sequence of k floats
        What each drafted position costs under the lossy rule given that the drafted tokens before
        it are accepted: TV(out, q), and KL(out || q) or an upper bound of it in nats.

    Returns
    -------
    int
        In 0..k. A later block may be allowed positions again: a stop is not final.

    Raises
    ------
    TypeError, ValueError
        If a cost is not a number >= 0, or the lengths differ.

    References
    ----------
    Ours; the chain rule of KL and the ordering of the emitted distribution.

    Examples
    --------
    >>> ledger = Ledger(max_kl=1.0)
    >>> budget_stop(ledger, total_variations=[0.1, 0.1, 0.1], kls=[0.5, 0.5, 0.25])
    2
    """
    total_variation, kl = ledger.total_variation, ledger.kl
    costs = _costs(total_variations, kls)
    for allowed, (distance, nats) in enumerate(costs):
        total_variation, kl = _add_up(total_variation, distance), _add_up(kl, nats)
        if total_variation > ledger.max_total_variation or kl > ledger.max_kl:
            return allowed
    return len(costs)


def _costs(total_variations: Sequence[float], kls: Sequence[float]) -> list[tuple[float, float]]:
    if len(total_variations) != len(kls):
        raise ValueError(
            f"total_variations and kls must have one entry per position, "
            f"got {len(total_variations)} and {len(kls)}"
        )
    return [
        (_amount("a total variation", distance), _amount("a kl", nats))
        for distance, nats in zip(total_variations, kls, strict=True)
    ]


def _amount(name: str, value: float) -> float:
    try:
        amount = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number >= 0, got {value!r}") from error
    if not amount >= 0:
        raise ValueError(f"{name} must be a number >= 0, got {amount!r}")
    return amount


def _add_up(total: float, cost: float) -> float:
    """total + cost rounded towards +inf: the rounding error of a sum is itself a float."""
    added = total + cost
    if math.isinf(added):
        return added
    part = added - total
    error = (total - (added - part)) + (cost - part)
    return math.nextafter(added, math.inf) if error > 0 else added
