"""What the code's Newton iterates and roots do in float64: evidence, certified point by point."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from unittest import mock

import numpy as np
from flint import arb, ctx

from cactus_theory import binary_kl, exact_optimum
from proofs_check.claims import Finding, Step, claim
from proofs_check.newton_steps import _kl_root, complement, gain_from_half, gain_large, gain_small


@claim(
    name="newton-in-code",
    source="ours, in code",
    statement="the code's kl_root, stopped after 0, 1 and 2 steps, has the errors that "
    "newton-steps bounds, within 1e-9, at points of all its regions",
    tex=r"x_k = (1 + e_k)\,r, \quad 1 - g_k = (1 - e_k)(1 - g), \quad k = 0, 1, 2",
    expected="supported",
    false=({"ahead": 1},),
)
def newton_in_code(ahead: int = 0) -> Iterator[Step]:
    for steps in (0, 1, 2):

        def equal_errors(steps: int = steps) -> Finding:
            worst = points = 0
            with mock.patch.object(_kl_root, "NEWTON_STEPS", steps + ahead):
                for q, s in product(
                    (1e-30, 1e-6, 0.01, 0.2, 0.45, 0.5, 0.7, 0.95), (0.02, 0.1, 0.3)
                ):
                    worst = max(worst, *_differences(q, s, steps))
                    points += 1
            return Finding("holds" if worst < 1e-9 else "fails", f"{points} points, {worst:.1e}")

        yield Step(
            f"Stop the code after {steps} Newton step(s) and compare its error with the formula. "
            "Its start of the complement is not compared: it is clipped inside the loop.",
            rf"|e_{steps} - e_{steps}^{{\text{{code}}}}| < 10^{{-9}}",
            equal_errors,
            "evidence",
            uses=("newton-error",),
        )


def _differences(q: float, s: float, steps: int) -> Iterator[float]:
    """How far the code's errors of the gain, and of the complement, are from the formulas."""
    room, root = 1 - q, s * (1 - q)
    delta = np.asarray(binary_kl(q + root, q))
    got = float(_kl_root.kl_root(np.asarray(q), delta, xp=np)[0]) - q
    yield abs(got / root - 1 - _gain_error(q, root, steps))
    if steps > 0:
        deficit = root * np.log((1 - root) * room / (root * q)) - np.log1p(-root)
        delta = np.asarray(-np.log(q) - deficit)
        solved = _kl_root.kl_root(np.asarray(q), delta, deficit=np.asarray(deficit), xp=np)
        wanted = complement(arb(-np.log(q)), arb(-np.log(s)), steps)[steps]
        yield abs(1 - float(solved[1]) / root - float(wanted))


def _gain_error(q: float, root: float, steps: int) -> float:
    a, s = root / q, root / (1 - q)
    if q >= 0.5:
        errors = gain_from_half(arb(s), arb(a / s), max(steps, 1))
    elif a <= 0.5:
        errors = gain_small(arb(a), arb(s / a), max(steps, 1))
    else:
        errors = gain_large(arb(np.log(a)), arb(s), max(steps, 1))
    return float(errors[steps])


@claim(
    name="newton-in-float64",
    source="ours, in code",
    statement="OPEN: with rounding, kl_root in float64 is within 16 ulp of the smaller of g, 1 - g "
    "wherever log(1/q) > 1.25 delta; seen on 1,919 pairs certified by balls, q from 1e-300 to "
    "1 - 1e-12, delta from 1e-6 to 20; proved is that one step from the root stays within 50 ulp",
    tex=r"|\hat g - g| \le 16u\,\min(g, 1-g),\quad u = 2^{-53}",
    expected="open",
    false=({"ulps": 0.25}, {"shift": 1e-12}),
)
def newton_in_float64(ulps: float = 16, shift: float = 0.0) -> Iterator[Step]:
    def bracketed() -> Finding:
        low = 10.0 ** -np.array([300, 200, 100, 50, 30, 20, 15, 10, 8, 6, 5, 4, 3, 2.5, 2, 1.5, 1])
        targets = np.concatenate([low, np.linspace(0.12, 0.97, 40), 1 - 10.0 ** -np.arange(2, 13)])
        q_, delta = (grid.ravel() for grid in np.meshgrid(targets, np.geomspace(1e-6, 20, 40)))
        g, rest, _ = _kl_root.kl_root(q_, delta, xp=np)
        # nearer to log(1/q) = delta, 1 - g is ill-conditioned in delta: see `deficit` in kl_root
        inner = (rest > 0) & (g > q_) & (-np.log(q_) > 1.25 * delta)
        bad = 0
        with ctx.workprec(2200):
            for target, budget, kept, left in zip(
                q_[inner], delta[inner], g[inner], rest[inner], strict=True
            ):
                small = arb(min(float(kept), float(left)))
                root = 1 - arb(float(left)) if left < kept else arb(float(kept))
                root += small * arb(shift)
                width = small * arb(ulps) * arb(2) ** -53
                below, above = _kl(root - width, target), _kl(root + width, target)
                bad += not below < arb(float(budget)) < above
        count = int(inner.sum())
        return Finding("fails" if bad or count != 1919 else "holds", f"{count} pairs")

    yield Step(
        "Move the computed root by 16 ulp to either side: the exact KL there, as a ball of 2,200 "
        "bits, lies on either side of the budget. No proof covers the pairs between.",
        r"\mathrm{KL}(\hat g - w\|q) < \delta < \mathrm{KL}(\hat g + w\|q), \quad "
        r"w = 16u\,\min(g, 1-g)",
        bracketed,
        "evidence",
        uses=("newton-steps", "newton-last-step"),
    )


@claim(
    name="exact-optimum-feasible",
    source="Theorem 2, in code",
    statement="the code's exact_optimum keeps the budget and brackets the root: KL(value) <= "
    "delta <= KL(upper end), by balls, on 1,640 pairs with q from 1e-12 to 0.97, delta from 1e-6 "
    "to 20",
    tex=r"\mathrm{KL}(\texttt{value}\|q) \le \delta \le \mathrm{KL}(\texttt{upper}\|q)",
    expected="supported",
    false=({"spent": 1.0 + 1e-12}, {"spent": 1.0 - 1e-12}),
)
def exact_optimum_feasible(spent: float = 1.0) -> Iterator[Step]:
    def kept() -> Finding:
        targets = np.concatenate([np.geomspace(1e-12, 0.1, 20), np.linspace(0.12, 0.97, 21)])
        q_, delta = (grid.ravel() for grid in np.meshgrid(targets, np.geomspace(1e-6, 20, 40)))
        low, high = exact_optimum(q_, delta).bracket
        bad = 0
        with ctx.workprec(256):
            for target, budget, value, end in zip(q_, delta, low, high, strict=True):
                limit = arb(float(budget)) * arb(spent)
                if value == 1:  # certain: within the budget exactly if log(1/q) is
                    bad += not -arb(float(target)).log() <= limit
                elif end == 1:
                    bad += not _kl(arb(float(value)), target) <= limit
                else:
                    below, above = (_kl(arb(float(g)), target) for g in (value, end))
                    bad += not below <= limit <= above
        return Finding("fails" if bad or len(q_) != 1640 else "holds", f"{len(q_)} pairs")

    yield Step(
        "The exact KL of both ends of the code's bracket, as balls, on either side of the budget; "
        "only the lower end where the upper one is 1.",
        r"\mathrm{KL}(\texttt{value}\|q) \le \delta \le \mathrm{KL}(\texttt{upper}\|q)",
        kept,
        "evidence",
        uses=("newton-steps", "root-unique-monotone"),
    )


def _kl(g: arb, target: float) -> arb:
    q_ = arb(float(target))
    return g * (g / q_).log() + (1 - g) * ((1 - g) / (1 - q_)).log()
