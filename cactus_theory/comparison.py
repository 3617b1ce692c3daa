"""How far each rule is from the best possible, at the KL that it spends itself.

Knows rules of the registry and recorded distributions. Block verification is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from cactus_theory import _validate
from cactus_theory.curves import curve
from cactus_theory.emitted import accepted_and_emitted, block_efficiency
from cactus_theory.frontier import Figures, Frontier, figures
from cactus_theory.recording import Recording
from cactus_theory.rules import Rule
from cactus_theory.rules.parsing import entries_from
from cactus_theory.rules.registry import Entry

_PATHS = 500  # simulated blocks from each position
_SEED = 17
_ROUNDING = 1e-9  # of differences of acceptance rates


@dataclass(frozen=True)
class Comparison:
    """One rule beside the best possible with one draft.

    Attributes
    ----------
    name : str
        The rule as it was asked for.
    rule : Rule
    delta : float or None
        Its budget, such that it spends the KL asked for, or the most that it can; None if it has
        none.
    figures : Figures
        What it accepts and costs.
    share : float
        Its acceptance beyond plain speculative sampling, as a share of what the best possible
        gains for the same KL. Below 0 if it accepts less than plain speculative sampling, and
        -inf if it does so without any KL.
    needed : float
        The least KL for its acceptance, in nats.
    token_by_token, by_block : float
        Tokens per target pass by either verification; `by_block` is NaN for a rule that is not
        ordered, which block verification does not take.

    Examples
    --------
    >>> from cactus_theory.recording import load_recording
    >>> (one,) = compare(load_recording(), ["speculative"], kl=0.05)
    >>> isinstance(one, Comparison), one.delta, round(one.share, 6)
    (True, None, 0.0)
    """

    name: str
    rule: Rule
    delta: float | None
    figures: Figures
    share: float
    needed: float
    token_by_token: float
    by_block: float


def compare(
    laws: Recording, rules: Sequence[str], *, kl: float, num_draft_tokens: int = 6
) -> list[Comparison]:
    """Compare rules with the best possible, those with a budget at one KL of what is emitted.

    Parameters
    ----------
    laws : Recording
    rules : sequence of str
        As `cactus_theory.rules.parsing.entry_from` reads them. Rules without a budget are compared
        at the KL that they spend.
    kl : float
        Mean KL(out || q) in nats, > 0, for which deltas in [1e-9, 100] are chosen, to 1e-6.
    num_draft_tokens : int
        k of a block, for tokens per pass.

    Returns
    -------
    list of Comparison
        The largest share first.

    Raises
    ------
    TypeError, ValueError
        If there is no such rule, or a number is out of range.

    Examples
    --------
    >>> from cactus_theory.recording import load_recording
    >>> for one in compare(load_recording(), ["cactus", "lenience", "top-k"], kl=0.05):
    ...     print(f"{one.name:10}{one.figures.kl:8.4f}{one.figures.acceptance_rate:8.4f}"
    ...           f"{one.share:6.2f}")
    lenience    0.0500  0.8075  0.94
    cactus      0.0500  0.7859  0.76
    top-k       0.5865  0.7270  0.11
    """
    if not _validate.budget("kl", kl) > 0:
        raise ValueError(f"kl must be > 0, got {kl!r}")
    k = _validate.integer("num_draft_tokens", num_draft_tokens, 1)
    best = Frontier(draft=laws.draft, target=laws.target)
    plain = best.at_price(0.0).acceptance_rate
    found = [
        _compared(name, entry, laws, best, plain, kl, k)
        for name, entry in entries_from(rules).items()
    ]
    return sorted(found, key=lambda one: -one.share)


def _compared(
    name: str, entry: Entry, laws: Recording, best: Frontier, plain: float, kl: float, k: int
) -> Comparison:
    delta = None
    if entry.at_budget is not None and entry.at(0.1) != entry.at(0.2):
        delta = _delta_for(kl, entry, laws)
    rule = entry.at(0.0 if delta is None else delta)
    kept, law = accepted_and_emitted(rule, laws.draft, laws.target)
    law = law / law.sum(axis=-1, keepdims=True)  # sums of many roundings
    own = figures(kept, law, laws.target)
    gain = best.at_kl(max(own.kl, 0.0)).acceptance_rate - plain
    rate = min(own.acceptance_rate, 1.0)
    rates = np.minimum(kept.sum(axis=-1), 1.0)
    blocks = _blocks(laws, k)
    return Comparison(
        name,
        rule,
        delta,
        own,
        share=_share(rate - plain, gain),
        needed=best.at_acceptance(rate).kl,
        token_by_token=float(block_efficiency(rates[blocks]).mean()),
        by_block=block_tokens(laws.draft, law, blocks) if rule.ordered else np.nan,
    )


def _share(gained: float, most: float) -> float:
    if most > _ROUNDING:
        return gained / most
    return 0.0 if gained > -_ROUNDING else -np.inf


def _blocks(laws: Recording, k: int) -> np.ndarray:
    """Positions of all runs of k tokens within one text, shape (runs, k)."""
    length = int(laws.about.get("tokens", len(laws)))
    k = min(k, length)
    starts = [i for i in range(len(laws)) if i % length + k <= length]
    return np.array(starts)[:, None] + np.arange(k)


def _delta_for(kl: float, entry: Entry, laws: Recording) -> float:
    """The delta for a mean KL, on the side that keeps it."""

    def excess(log_delta: float) -> float:
        delta = [float(np.exp(log_delta))]
        return float(curve(entry.at, draft=laws.draft, target=laws.target, deltas=delta).kl[0]) - kl

    low, high = np.log(1e-9), np.log(100.0)
    if excess(high) <= 0 or excess(low) >= 0:
        return float(np.exp(high if excess(high) <= 0 else low))
    root: Any = brentq(excess, low, high, xtol=1e-7)
    return float(np.exp(root - 1e-6 if excess(root) > 0 else root))


def block_tokens(draft: np.ndarray, law: np.ndarray, blocks: np.ndarray) -> float:
    """Tokens per pass of block verification, simulated over blocks of recorded positions.

    1 + sum_i E[s_i], with s_i = min(s_(i-1) out(x_i) / p(x_i), 1) along drafts x_i ~ p: the chance
    that the first i are kept. The distributions recorded at a position are used whatever was
    drafted before it, as no others are recorded.

    Parameters
    ----------
    draft, law : float64 array, shape (N, V)
        Distributions p and the emitted ones of an ordered rule.
    blocks : int array, shape (B, k)
        Positions of each block.

    Examples
    --------
    >>> rows = np.array([[0.75, 0.25]] * 2), np.array([[0.5, 0.5]] * 2)
    >>> round(block_tokens(*rows, np.array([[0, 1]])), 1)  # exactly 2.375
    2.4
    """
    uniforms = np.random.default_rng(_SEED).random((*blocks.shape, _PATHS))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(draft > 0, law / draft, 0.0)
    cumulative = np.cumsum(draft, axis=-1)
    survival, total = np.ones((len(blocks), _PATHS)), 0.0
    for i, rows in enumerate(blocks.T):
        for block, row in enumerate(rows):
            point = uniforms[block, i] * cumulative[row, -1]
            drafted = np.searchsorted(cumulative[row], point, "right")
            survival[block] = np.minimum(survival[block] * ratios[row, drafted], 1.0)
        total += survival.mean()
    return float(1 + total)
