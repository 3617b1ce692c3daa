r"""Which rule, which delta and how many drafted tokens reach a speed, or keep a charge.

Knows recorded distributions and the costs of passes. Rules are compared by figures of one block
with one mean acceptance rate a and one mean KL of what is emitted, d, both over all positions:

    speed-up = (1 + a + ... + a^k) / block_cost(k),
    KL per token = d (1 + a + ... + a^(k-1)) / (1 + a + ... + a^k):

each judged position costs d, and the bonus token after k accepted ones costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from cactus_theory import _validate
from cactus_theory.curves import curve
from cactus_theory.planning import VerifyCost, block_cost
from cactus_theory.recording import Recording
from cactus_theory.rules import Rule
from cactus_theory.rules.parsing import entries_from
from cactus_theory.rules.registry import RULES, Entry

_DELTAS = [0.0, *np.geomspace(1e-5, 100.0, 12).tolist()]  # brackets of the search
_PRECISION = 1e-4  # of delta, relative
_SMALLEST = 1e-9  # delta
_ROUNDING = 1e-12  # of a KL that is 0


@dataclass(frozen=True)
class Recommendation:
    """A rule and a number of drafted tokens, and what they give on average.

    Attributes
    ----------
    name : str
        The rule as it was asked for.
    rule : Rule
        With its parameters.
    delta : float or None
        Its budget in nats; None if the rule has no budget.
    num_draft_tokens : int
        k.
    speedup : float
        Tokens per unit of time relative to plain decoding.
    kl_per_token : float
        Mean KL(out || q) of an emitted token, in nats: what the divergence of texts is at most.
    acceptance_rate : float

    Examples
    --------
    >>> from cactus_theory.recording import load_recording
    >>> best, *_ = recommend(load_recording(), draft_cost=0.1, max_kl=0.02, rules=("cactus",))
    >>> isinstance(best, Recommendation), best.num_draft_tokens, round(best.speedup, 2)
    (True, 5, 2.19)
    """

    name: str
    rule: Rule
    delta: float | None
    num_draft_tokens: int
    speedup: float
    kl_per_token: float
    acceptance_rate: float


def recommend(
    laws: Recording,
    *,
    draft_cost: float,
    verify_cost: VerifyCost = 1.0,
    min_speedup: float | None = None,
    max_kl: float | None = None,
    rules: Sequence[str] | None = None,
    max_draft_tokens: int = 16,
) -> list[Recommendation]:
    """The best setting of every rule: of least KL for a speed, or the fastest within a KL.

    Parameters
    ----------
    laws : Recording
        Distributions of draft and target; see `cactus_theory.recording`.
    draft_cost : float
        Cost of drafting one token, in plain target passes.
    verify_cost : float, callable or array_like
        As for `block_cost`.
    min_speedup : float, optional
        The speed to reach, > 1, with the least KL per token.
    max_kl : float, optional
        KL per emitted token to keep, in nats, at the largest speed. It is kept to 1e-12, the
        rounding of a KL of 0. Give one of the two.
    rules : sequence of str, optional
        As `cactus_theory.rules.parsing.entry_from` reads them. Default: all rules of the registry
        that have a budget.
    max_draft_tokens : int
        The largest number of drafted tokens that is tried.

    Returns
    -------
    list of Recommendation
        One for each rule that reaches the goal, the best first. Where no draft pays, with k = 0.
        Delta is found to a relative 1e-4, on the side that keeps the goal.

    Raises
    ------
    TypeError, ValueError
        If not exactly one goal is given, a number is out of range, there is no such rule, or no
        rule reaches the speed. The message says what is attainable.

    Notes
    -----
    Acceptance and KL must not fall as delta grows, as for every rule with a budget here. The mean
    rate understates the speed-up where hard positions come in runs (see `speedup`). The ledger of a
    decode charges rules with candidates a bound of the KL, which is larger.

    Examples
    --------
    >>> from cactus_theory.recording import load_recording
    >>> for best in recommend(load_recording(), draft_cost=0.05, min_speedup=2.5,
    ...                       rules=("cactus", "lenience")):
    ...     print(best.name, best.num_draft_tokens, f"{best.delta:.1e} {best.kl_per_token:.4f}")
    lenience 6 9.9e-02 0.0059
    cactus 6 1.1e-04 0.0077
    """
    if (min_speedup is None) == (max_kl is None):
        raise ValueError(
            "give one of min_speedup and max_kl, "
            f"got min_speedup={min_speedup!r}, max_kl={max_kl!r}"
        )
    if min_speedup is not None:
        _validate.number("min_speedup", min_speedup)
        if not 1 < min_speedup < math.inf:
            raise ValueError(f"min_speedup must be a finite number > 1, got {min_speedup!r}")
    else:
        max_kl = _validate.budget("max_kl", max_kl)
    longest = _validate.integer("max_draft_tokens", max_draft_tokens, 1)
    costs = [
        block_cost(k, draft_cost=draft_cost, verify_cost=verify_cost) for k in range(longest + 1)
    ]
    names = [name for name, e in RULES.items() if e.at_budget] if rules is None else rules
    families = [
        _Family(name, entry, laws, np.array(costs)) for name, entry in entries_from(names).items()
    ]
    if max_kl is not None:
        found = [best for family in families if (best := family.fastest(max_kl))]
        found.sort(key=lambda one: (-one.speedup, one.kl_per_token))
    else:
        assert min_speedup is not None
        found = [best for family in families if (best := family.cheapest(min_speedup))]
        found.sort(key=lambda one: (one.kl_per_token, -one.speedup))
        if not found:
            most = max(float(family.grid[0].max()) for family in families)
            raise ValueError(f"min_speedup must be at most {most:.4g} here, got {min_speedup!r}")
    return found


@dataclass
class _Family:
    """Figures of one rule for every number of drafted tokens, by delta."""

    name: str
    entry: Entry
    laws: Recording
    costs: np.ndarray  # of a block of k = 0, 1, ... drafted tokens
    known: dict[float, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def deltas(self) -> list[float]:
        """Without a budget the rule is the same everywhere."""
        fixed = self.entry.at_budget is None or self.entry.at(0.1) == self.entry.at(0.2)
        return _DELTAS[:1] if fixed else _DELTAS

    @cached_property
    def grid(self) -> np.ndarray:
        """Speed-up and KL per token; shape (2, deltas, k)."""
        return np.stack([self.figures(delta) for delta in self.deltas], axis=1)

    def means(self, delta: float) -> tuple[float, float]:
        """Acceptance rate and KL."""
        if delta not in self.known:
            found = curve(
                self.entry.at, draft=self.laws.draft, target=self.laws.target, deltas=[delta]
            )
            self.known[delta] = (
                min(float(found.acceptance_rate[0]), 1.0),
                max(float(found.kl[0]), 0.0),
            )
        return self.known[delta]

    def figures(self, delta: float) -> np.ndarray:
        """Speed-up and KL per token, shape (2, k)."""
        rate, kl = self.means(delta)
        tokens = np.cumsum(rate ** np.arange(self.costs.size))
        return np.stack([tokens / self.costs, kl * self.shares(delta)])

    def shares(self, delta: float) -> np.ndarray:
        """Positions judged per token emitted, shape (k,): fewer, the more is accepted."""
        tokens = np.cumsum(self.means(delta)[0] ** np.arange(self.costs.size))
        return np.append(0.0, tokens[:-1]) / tokens

    def cheapest(self, speed: float) -> Recommendation | None:
        """The least KL with at least this speed."""
        return self._best(
            lambda delta: self.figures(delta)[0] >= speed,
            lambda low, high: self.means(low)[1] * self.shares(high),
            keep_high=True,
        )

    def fastest(self, charge: float) -> Recommendation | None:
        """The largest speed with at most this KL."""
        return self._best(
            lambda delta: self.figures(delta)[1] > charge + _ROUNDING,
            lambda low, high: -self.figures(high)[0],
            keep_high=False,
        )

    def _best(
        self,
        beyond: Callable[[float], np.ndarray],
        bound: Callable[[float, float], np.ndarray],
        *,
        keep_high: bool,
    ) -> Recommendation | None:
        """Least `bound` over k, where `beyond` changes from false to true between low and high.

        Of all brackets the one that promises most is halved, until the best is narrow.
        """
        passed = np.stack([beyond(delta) for delta in self.deltas])
        heap = []
        for k in range(self.costs.size):
            first = int(np.argmax(passed[:, k])) if passed[:, k].any() else len(self.deltas)
            low, high = (
                self.deltas[max(first - 1, 0)],
                self.deltas[min(first, len(self.deltas) - 1)],
            )
            if first < len(self.deltas) if keep_high else first > 0:
                heap.append((float(bound(low, high)[k]), False, k, low, high))
        heapify(heap)
        while heap:
            _, narrow, k, low, high = heappop(heap)
            kept = high if keep_high else low
            if narrow:
                return self._at(kept, k)
            if high <= low * (1 + _PRECISION) or high <= _SMALLEST:
                heappush(heap, (float(bound(kept, kept)[k]), True, k, low, high))
                continue
            middle = math.sqrt(low * high) if low else high / 16
            low, high = (low, middle) if beyond(middle)[k] else (middle, high)
            heappush(heap, (float(bound(low, high)[k]), False, k, low, high))
        return None

    def _at(self, delta: float, k: int) -> Recommendation:
        speed, kl = self.figures(delta)[:, k]
        return Recommendation(
            name=self.name,
            rule=self.entry.at(delta),
            delta=delta if len(self.deltas) > 1 else None,
            num_draft_tokens=k,
            speedup=float(speed),
            kl_per_token=float(kl),
            acceptance_rate=self.means(delta)[0],
        )
