"""What each entry of the table of rules means, as a check of the rule.

An entry that is a formula of q and the rule's parameters is evaluated as it is written; see
`formula`. The rest is prose, and has its check by its words.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np

import cactus_theory.rules
from cactus_theory import (
    Rule,
    acceptance_rate,
    binary_kl,
    kl,
    output_distribution,
    total_variation,
)

RULES = [
    rule
    for rule in vars(cactus_theory.rules).values()
    if isinstance(rule, type) and issubclass(rule, Rule) and not inspect.isabstract(rule)
]
SLACK = 1e-12  # sums over at most 8 tokens err by some 1e-15, a level solved by bracketing by more
ULPS = 2.0**-48  # 16 ulp: formulas of a few operations, each in its own order

Check = Callable[[Any, np.ndarray, np.ndarray], Any]


def near(value: Any, expected: Any) -> Any:
    return np.abs(value - expected) <= ULPS * expected + 1e-300


def boosted_to(formula: Callable[[Any, np.ndarray], Any]) -> Check:
    """The accepted mass is min(p, formula), whose products may underflow: long doubles do not."""
    return lambda rule, p, q: near(
        rule.accepted_mass(p, q), np.minimum(p, np.minimum(formula(rule, np.longdouble(q)), 1))
    )


FUNCTIONS = {"sqrt": np.sqrt, "log": np.log, "exp": np.exp, "min": np.minimum, "max": np.maximum}


def formula(text: str) -> Callable[[Any, np.ndarray], Any]:
    """A formula in plain letters, such as "1 if q >= single, else min(q/total, 1)", of an array q.

    A space between factors multiplies, ^ is a power, and names are parameters of the rule.
    """
    choice = re.fullmatch(r"(.+) if (.+?),? else (.+)", text)
    python = f"where({choice[2]}, {choice[1]}, {choice[3]})" if choice else text
    python = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", python).replace("^", "**")
    code = compile(python, text, "eval")
    names = {"e": np.e, "where": np.where, **FUNCTIONS}
    return lambda rule, q: eval(code, {"__builtins__": {}}, {**names, "q": q, **vars(rule)})


def largest_within_budget(rule: Any, p: np.ndarray, q: np.ndarray) -> Any:
    """16 ulp below min(p, g) the budget is kept, 32 ulp above it is not, or p itself was reached.

    A root is sought for a budget that is lower by 12 + 4 |alpha| ulp at most.
    """
    mass = rule.accepted_mass(p, q)
    counted = (p > q) & (q > 0)
    spent_by = rule.divergence.binary
    kept = spent_by(np.maximum(mass * (1 - ULPS), q), q) <= rule.delta
    above = np.minimum(mass * (1 + 2 * ULPS) + ULPS * (q > 0.5), 1.0)
    spent = spent_by(above, q) > rule.delta
    return np.where(counted, kept & (spent | near(mass, p)), near(mass, np.minimum(p, q)))


def level(rule: Any, q: np.ndarray) -> float:
    """min(epsilon, alpha exp(-H(q))), of which a last bit decides nothing here."""
    return min(rule.epsilon, rule.alpha * np.exp(sum(x * np.log(x) for x in q if x > 0)))


def typical(rule: Any, p: np.ndarray, q: np.ndarray) -> Any:
    kept = np.where(q > level(rule, q), p, 0)
    return near(q, level(rule, q)) | (rule.accepted_mass(p, q) == kept)


def is_near(rule: Any, p: np.ndarray, q: np.ndarray) -> bool:
    return rule.divergence.between(p, q) <= rule.limit


def among_largest(rule: Any, q: np.ndarray) -> np.ndarray:
    return (q > 0) & ((q[:, None] < q).sum(axis=-1) < rule.k)


ACCEPTS: dict[str, Check] = {
    "min(1, q/p)": boosted_to(lambda rule, q: q),
    "min(1, g/p), g the largest with D(h||q) <= delta": largest_within_budget,
    "min(1, g/p), g = min(q + sqrt((e^delta - 1) q (1-q)), 1)": boosted_to(  # by expm1
        lambda rule, q: q + np.sqrt(np.expm1(rule.delta) * q * (1 - q))
    ),
    "as the rule it wraps": lambda rule, p, q: (
        rule.accepted_mass(p, q) == rule.rule.accepted_mass(p, q)
    ),
    "min(1, a q/p)": lambda rule, p, q: one_level(q, rule.accepted_mass(p, q), p, above=False),
    "q": lambda rule, p, q: near(rule.accepted_mass(p, q), p * q),
    "min(1, q/(l p))": boosted_to(lambda rule, q: q / rule.lenience),
    "min(1, h/p), h = w q + (1-w) p": lambda rule, p, q: near(
        rule.accepted_mass(p, q), np.where(q < p, rule.weight * q + (1 - rule.weight) * p, p)
    ),
    "1 if q > min(epsilon, alpha exp(-H(q))), else 0": typical,
    "1 if q > 0 is among the k largest, else 0": lambda rule, p, q: (
        rule.accepted_mass(p, q) == np.where(among_largest(rule, q), p, 0)
    ),
    "1 if q is among the k largest and q >= max q - margin, else 0": lambda rule, p, q: (
        rule.accepted_mass(p, q)
        == np.where(among_largest(rule, q) & (q >= q.max() - rule.margin), p, 0)
    ),
    "min(1, q/p + t), t = tolerance (1 - max q)": lambda rule, p, q: near(
        rule.accepted_mass(p, q), np.minimum(p, q + rule.tolerance * (1 - q.max()) * p)
    ),
    "1 if D(p||q) <= limit, else 0": lambda rule, p, q: (
        rule.accepted_mass(p, q) == np.where(is_near(rule, p, q), p, 0)
    ),
    "1 if q >= (1-alpha) max q, else 0": lambda rule, p, q: (
        rule.accepted_mass(p, q) == np.where(q >= (1 - rule.alpha) * q.max(), p, 0)
    ),
}


def one_level(q: np.ndarray, law: np.ndarray, p: np.ndarray, *, above: bool) -> Any:
    """Where law differs from p it is q times one number, c >= 1 or <= 1, and p is beyond c q."""
    moved = law - p > SLACK if above else p - law > SLACK
    if not q[moved].any():
        return not law[moved].any()
    factor = law[moved].sum() / q[moved].sum()
    same = np.abs(law - factor * q)[moved] <= SLACK
    side = factor <= 1 + SLACK if above else factor >= 1 - SLACK
    rest = p >= factor * q - SLACK if above else p <= factor * q + SLACK
    return same.all() & side & (rest | moved).all()


def recovered(expected: Callable[[Any, int, np.ndarray, np.ndarray], Any]) -> Check:
    """Whatever token may be rejected, the weights are those expected."""

    def check(rule: Any, p: np.ndarray, q: np.ndarray) -> Any:
        rejected = np.flatnonzero(p > rule.accepted_mass(p, q))
        return all(
            np.allclose(
                rule.recovery_weights(int(n), p, q), expected(rule, int(n), p, q), SLACK, SLACK
            )
            for n in rejected
        )

    return check


def from_candidate(rule: Any, n: int, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """[h - p]_+; what is rejected at n = 1 - q(n) = 0 by rounding leaves h = q."""
    boosted = rule.boost(q[n])
    h = q * ((1 - boosted) / (1 - q[n]) if q[n] < 1 else 1.0)
    h[n] = boosted
    return np.maximum(h - p, 0)


def first_largest(rule: Any, n: int, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return np.eye(q.size)[np.argmax(q)]


RECOVERS: dict[str, Check] = {
    "[q - p]_+": recovered(lambda rule, n, p, q: np.maximum(q - p, 0)),
    "[h - p]_+": recovered(from_candidate),
    "[b q - p]_+": lambda rule, p, q: one_level(q, p + rule.shared_weights(p, q), p, above=True),
    "argmax q": recovered(first_largest),
    "q, without n": recovered(lambda rule, n, p, q: np.where(np.arange(q.size) == n, 0, q)),
    "q": recovered(lambda rule, n, p, q: q),
    "[1{among} - p]_+": recovered(lambda rule, n, p, q: np.maximum(among_largest(rule, q) - p, 0)),
}


def emitted(rule: Any, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return output_distribution(rule, draft=p, target=q)


def equal_law(expected: Callable[[Any, np.ndarray, np.ndarray], Any]) -> Check:
    return lambda rule, p, q: np.abs(emitted(rule, p, q) - expected(rule, p, q)) <= SLACK


def accepted_then_between(rule: Any, p: np.ndarray, q: np.ndarray) -> Any:
    out, mass = emitted(rule, p, q), rule.accepted_mass(p, q)
    between = (p - SLACK <= out) & (out <= q + SLACK)
    return np.where(p > q, np.abs(out - mass) <= SLACK, between)


def clipped(rule: Any, p: np.ndarray, q: np.ndarray) -> Any:
    out = emitted(rule, p, q)
    return one_level(q, np.minimum(out, p), p, above=False) & one_level(
        q, np.maximum(out, p), p, above=True
    )


def accepted_then_one_level(rule: Any, p: np.ndarray, q: np.ndarray) -> Any:
    out, mass = emitted(rule, p, q), rule.accepted_mass(p, q)
    over = np.where(p > q, np.abs(out - mass) <= SLACK, True).all()
    return over & one_level(q, np.where(p > q, p, out), p, above=True)


def rest_by_target(mass: Callable[[Any, np.ndarray, np.ndarray], np.ndarray]) -> Check:
    return equal_law(lambda rule, p, q: mass(rule, p, q) + max(1 - mass(rule, p, q).sum(), 0) * q)


def rest_on_argmax(rule: Any, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    mass = rule.accepted_mass(p, q)
    return mass + (1 - mass.sum()) * np.eye(q.size)[np.argmax(q)]


EMITS: dict[str, Check] = {
    "q": equal_law(lambda rule, p, q: q),
    "h": equal_law(lambda rule, p, q: rule.weight * q + (1 - rule.weight) * p),
    "p if D(p||q) <= limit, else q": equal_law(lambda rule, p, q: p if is_near(rule, p, q) else q),
    "min(p, q + t p) where p > q, between p and q elsewhere": accepted_then_between,
    "min(p, g) where p > q, between p and q elsewhere": accepted_then_between,
    "min(p, q/l) where p > q, between p and q elsewhere": accepted_then_between,
    "min(p, g) where p > q, max(p, b q) elsewhere": accepted_then_one_level,
    "clip(p, b q, a q), b <= 1 <= a": clipped,
    "p where accepted, the rest on argmax q": equal_law(rest_on_argmax),
    "p m + (1 - sum p m) q, m = 1 where accepted": rest_by_target(
        lambda rule, p, q: np.where(rule.accepted_mass(p, q) > 0, p, 0)
    ),
    "min(p, q/l) + (1 - sum min(p, q/l)) q": rest_by_target(
        lambda rule, p, q: np.minimum(p, np.longdouble(q) / rule.lenience)
    ),
    "p or more where accepted, 0 elsewhere": lambda rule, p, q: np.where(
        # Where rounding empties the residual, which takes p <= 2**-52, q is drawn from.
        among_largest(rule, q),
        emitted(rule, p, q) >= p - SLACK,
        emitted(rule, p, q) <= 2.0**-52 * q,
    ),
}


def spent_by_candidate(rule: Any, q: np.ndarray) -> Any:
    """KL(h||q) of every token's candidate."""
    return binary_kl(rule.boost(q), q)


def wrapped_rule_improved(rule: Any, p: np.ndarray, q: np.ndarray) -> Any:
    laws = {"draft": p, "target": q}
    out, theirs = emitted(rule, p, q), emitted(rule.rule, p, q)
    rates = acceptance_rate(rule, **laws), acceptance_rate(rule.rule, **laws)
    distances = total_variation(out, q), total_variation(theirs, q)
    gains = np.abs([rates[0] - rates[1], distances[0] - distances[1]]).max() <= SLACK
    return gains & (kl(out, q) <= kl(theirs, q) + SLACK)


GUARANTEES: dict[str, Check] = {
    "out = q": EMITS["q"],
    "chi2(h||q) <= 2 delta, KL(h||q) <= log(1 + 2 delta); delta does not bound out": (
        lambda rule, p, q: (
            (rule.boost(q) - q <= np.sqrt(2 * rule.delta * q * (1 - q)) + SLACK)
            & (spent_by_candidate(rule, q) <= np.log1p(2 * rule.delta) + SLACK)
        )
    ),
    "D(h||q) <= delta; delta does not bound out": lambda rule, p, q: (
        rule.divergence.binary(np.maximum(rule.boost(q) * (1 - ULPS), q), q)
        <= rule.delta * (1 + SLACK)
    ),
    "KL(h||q) <= delta; delta does not bound out": lambda rule, p, q: (
        spent_by_candidate(rule, q) <= rule.delta
    ),
    "D(out||q) <= epsilon": lambda rule, p, q: (
        rule.divergence.between(emitted(rule, p, q), q) <= rule.epsilon + SLACK
    ),
    "D(out||q) <= limit": lambda rule, p, q: (
        rule.divergence.between(emitted(rule, p, q), q) <= rule.limit * (1 + SLACK) + SLACK
    ),
    "TV(out, q) <= tolerance (1 - max q)": lambda rule, p, q: (
        total_variation(emitted(rule, p, q), q) <= rule.tolerance * (1 - q.max()) + SLACK
    ),
    "acceptance and TV(out, q) of that rule, KL(out||q) no larger": wrapped_rule_improved,
    "out <= q/l, hence KL(out||q) <= log(1/l)": lambda rule, p, q: (
        (emitted(rule, p, q) * rule.lenience <= q + SLACK)
        & (kl(emitted(rule, p, q), q) <= -np.log(rule.lenience) + SLACK)
    ),
    "TV(out, q) = (1-w) TV(p, q)": lambda rule, p, q: (
        np.abs(total_variation(emitted(rule, p, q), q) - (1 - rule.weight) * total_variation(p, q))
        <= SLACK
    ),
    "only accepted tokens are emitted; no divergence is bounded": lambda rule, p, q: (
        EMITS["p or more where accepted, 0 elsewhere"](rule, p, q) & strays(rule)
    ),
    "none": lambda rule, p, q: strays(rule),
}


def chi_square_of_candidate(rule: Any, q: np.ndarray) -> Any:
    """chi2(h||q) of every token's candidate."""
    gain, spread = rule.boost(q) - q, q * (1 - q)
    return gain**2 / np.where(spread > 0, spread, 1)


QUANTITIES: dict[str, Check] = {
    "KL(h||q)": lambda rule, p, q: spent_by_candidate(rule, q),
    "chi2(h||q)": lambda rule, p, q: chi_square_of_candidate(rule, q),
    "TV(h, q)": lambda rule, p, q: rule.boost(q) - q,
    "KL(out||q)": lambda rule, p, q: kl(emitted(rule, p, q), q),
    "TV(out, q)": lambda rule, p, q: total_variation(emitted(rule, p, q), q),
}
NOTHING_OF_OUT = "; delta does not bound out"


def bounded(text: str) -> Check:
    """Bounds such as "KL(h||q) and KL(out||q) <= log(1/total), TV(out, q) <= 1"."""
    bounds: list[tuple[Check, Callable[[Any, np.ndarray], Any]]] = []
    for part in re.split(r"[,;] (?![^()]*\))", text.removesuffix(NOTHING_OF_OUT)):
        quantities, _, most = part.partition(" <= ")
        bounds += [(QUANTITIES[name], formula(most)) for name in quantities.split(" and ")]
    return lambda rule, p, q: all(
        np.all(quantity(rule, p, q) <= most(rule, q) * (1 + SLACK) + SLACK)
        for quantity, most in bounds
    )


def strays(rule: Rule) -> bool:
    """A target uniform on 10,000 tokens, of which the draft knows 70: 4.96 nats at most."""
    target = np.full(10_000, 1e-4)
    draft = np.repeat([1 / 70, 0], [70, 9930])
    return bool(kl(output_distribution(rule, draft=draft, target=target), target) > 4)


def reads(change: Callable[[np.ndarray, int], np.ndarray]) -> Check:
    """Whether a token is kept stays the same under a change of the target's law."""
    return lambda rule, p, q: [
        rule.accepted_mass(p, change(q, n))[n] == rule.accepted_mass(p, q)[n] for n in range(q.size)
    ]


def rest_on_one(q: np.ndarray, n: int) -> np.ndarray:
    """The same q(n), all other mass moved to one token."""
    moved = np.zeros_like(q)
    moved[[n - 1, n]] = q.sum() - q[n], q[n]
    return moved


def rest_reversed(q: np.ndarray, n: int) -> np.ndarray:
    """The same q(n) and the same entropy, but for rounding."""
    others = np.arange(q.size) != n
    moved = q.copy()
    moved[others] = q[others][::-1]
    return moved


def ranks(q: np.ndarray, n: int) -> np.ndarray:
    """The same order, ties and zeros."""
    weights = (q > 0) * ((q[:, None] > q).sum(axis=-1) + 1.0)
    return weights / weights.sum()


READS: dict[str, Check] = {  # for "all of q", see WIDER
    "q(n)": reads(rest_on_one),
    "q(n) and the entropy of q": lambda rule, p, q: (
        near(q, level(rule, q)) | reads(rest_reversed)(rule, p, q)
    ),
    "the rank of q(n)": reads(ranks),
    "q(n) and the largest q": reads(rest_reversed),
    "q(n), its rank and the largest q": reads(rest_reversed),
}
CHECKS = {
    "accepts": ACCEPTS,
    "recovers": RECOVERS,
    "emits": EMITS,
    "guarantees": GUARANTEES,
}
GRANTS = "min(1, g/p), g = "


def check_of(column: str, text: str) -> Check:
    """Of an entry: that of its words, or of the formulas it is made of."""
    if text in CHECKS[column]:
        return CHECKS[column][text]
    try:
        if column == "accepts" and text.startswith(GRANTS):
            return boosted_to(formula(text.removeprefix(GRANTS)))
        if column == "guarantees":
            return bounded(text)
    except (KeyError, SyntaxError):
        pass
    raise AssertionError(
        f"{column} is neither a formula nor has a check of its words: {text!r}; "
        f"bounds are of {', '.join(QUANTITIES)}, and checks of words stand in {__name__}"
    )
