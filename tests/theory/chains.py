"""Whole texts of a block decoder, enumerated outcome by outcome.

A chain gives a draft and a target distribution for every prefix. `emitted` follows a block decoder
through every draft, acceptance and recovered or bonus token, and returns the exact distribution of
its text.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cactus_theory import (
    Cactus,
    CactusExact,
    SpeculativeSampling,
    emission,
    kl,
    output_distribution,
    total_variation,
)
from cactus_theory.ledger import budget_stop

# Texts have at most 81 values, each the sum of some thousand products of a dozen roundings; what
# that does to a divergence of order 1 was below 1e-14 wherever it was looked at.
ROUNDING = 1e-12


class Cost(NamedTuple):
    total_variation: float
    kl: float


@dataclass(frozen=True)
class Position:
    """One prefix under one rule: what is drafted, kept, recovered, and what that costs."""

    draft: np.ndarray
    target: np.ndarray
    kept: np.ndarray  # chance that a drafted token is accepted
    recovered: np.ndarray  # row n: the law after n is rejected
    cost: Cost


def position(rule, draft, target, *, bound: bool) -> Position:
    size = len(draft)
    kept, recovered = np.ones(size), np.zeros((size, size))
    for n in range(size):
        g = float(rule.boost(target[n]))
        if g < draft[n]:
            kept[n] = g / draft[n]
            weights = np.maximum(target * float(rule.shrink(target[n])) - draft, 0)
            weights[n] = 0
            recovered[n] = weights / weights.sum()
    costs = emission(rule, draft=draft, target=target)
    exact = float(kl(output_distribution(rule, draft=draft, target=target), target))
    nats = float(costs.kl_bound) if bound else exact
    return Position(draft, target, kept, recovered, Cost(float(costs.total_variation), nats))


class Chain:
    """Draft and target laws as functions of the prefix, for texts of `length` tokens."""

    def __init__(self, laws, length, rule, *, bound=False):
        self.size, self.length = len(next(iter(laws.values()))[0]), length
        self.lossy = {text: position(rule, *pair, bound=bound) for text, pair in laws.items()}
        plain = SpeculativeSampling()
        self.lossless = {text: position(plain, *pair, bound=bound) for text, pair in laws.items()}

    def texts(self):
        return list(itertools.product(range(self.size), repeat=self.length))

    def target_law(self):
        return np.array(
            [
                math.prod(self.lossy[text[:i]].target[text[i]] for i in range(self.length))
                for text in self.texts()
            ]
        )


def prefixes(size, length):
    return [text for n in range(length) for text in itertools.product(range(size), repeat=n)]


def random_chain(rng, *, bound=False):
    size, length = [(2, 4), (3, 3), (2, 3)][rng.integers(3)]
    shape = np.full(size, rng.choice([0.5, 1.0, 2.0]))
    laws = {text: rng.dirichlet(shape, size=2) + 1e-6 for text in prefixes(size, length)}
    laws = {text: pair / pair.sum(axis=1, keepdims=True) for text, pair in laws.items()}
    rule = [Cactus, CactusExact][rng.integers(2)](float(rng.choice([0.05, 0.3, 1.0])))
    return Chain(laws, length, rule, bound=bound)


def stop_at_the_budget(ledger, costs, drafts):
    """The rule under test: which positions of a block are lossy."""
    allowed = budget_stop(
        ledger, total_variations=[c.total_variation for c in costs], kls=[c.kl for c in costs]
    )
    return [i < allowed for i in range(len(costs))]


def charge_emitted(ledger, costs, accepted):
    """What is under test: lossy positions that emitted a token are charged, however it came."""
    return ledger.spend(
        total_variations=[c.total_variation for c in costs], kls=[c.kl for c in costs]
    )


def emitted(chain, ledger, num_draft_tokens, *, decide=stop_at_the_budget, charge=charge_emitted):
    """Law over final (text, ledger) of a block decoder; and which positions were lossy."""
    final, stops = {}, []
    states = {((), ledger): 1.0}
    while states:
        text, now = min(states, key=lambda state: len(state[0]))  # all ways into it are known
        chance = states.pop((text, now))
        if len(text) == chain.length:
            final[text, now] = chance
            continue
        for tokens, after, share, lossy in block(
            chain, text, now, num_draft_tokens, decide, charge
        ):
            state = (text + tokens)[: chain.length], after
            states[state] = states.get(state, 0.0) + chance * share
            stops.append(lossy)
    return final, stops


def block(chain, text, ledger, num_draft_tokens, decide, charge):
    count = min(num_draft_tokens, chain.length - len(text))
    for drafts in itertools.product(range(chain.size), repeat=count):
        places = [text + drafts[:i] for i in range(count)]
        costs = [chain.lossy[place].cost for place in places]
        lossy = decide(ledger, costs, drafts)
        used = [
            (chain.lossy if flag else chain.lossless)[place]
            for flag, place in zip(lossy, places, strict=True)
        ]
        share = math.prod(at.draft[n] for at, n in zip(used, drafts, strict=True))
        for i, (at, n) in enumerate(zip(used, drafts, strict=True)):
            paid = [cost for cost, flag in zip(costs[: i + 1], lossy, strict=False) if flag]
            for x in range(chain.size):
                rejected = share * (1 - at.kept[n]) * at.recovered[n, x]
                if rejected > 0:
                    accepted = sum(lossy[:i])
                    yield (*drafts[:i], x), charge(ledger, paid, accepted), rejected, lossy
            share *= at.kept[n]
        paid = [cost for cost, flag in zip(costs, lossy, strict=True) if flag]
        after = charge(ledger, paid, len(paid))
        if len(text) + count == chain.length:
            yield drafts, after, share, lossy
            continue
        for x, q in enumerate(chain.lossy[text + drafts].target):
            yield (*drafts, x), after, share * q, lossy


def text_law(chain, final):
    law = dict.fromkeys(chain.texts(), 0.0)
    for (text, _), chance in final.items():
        law[text] += chance
    return np.array(list(law.values()))


def cost_of_text(chain, final):
    """KL and total variation of the emitted text from the target's, exactly."""
    law, target = text_law(chain, final), chain.target_law()
    return Cost(float(total_variation(law, target)), float(kl(law, target)))


def expected(final, name):
    return sum(chance * getattr(ledger, name) for (_, ledger), chance in final.items())
