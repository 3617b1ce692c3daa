"""What the code's Newton iterates and roots do in float64: evidence, certified point by point."""

from __future__ import annotations

from itertools import product
from unittest import mock

import numpy as np
from flint import arb, ctx

from cactus_theory import binary_kl, exact_optimum
from cactus_theory.divergences import _kl_root
from cactus_theory.divergences._kl_root import kl_root
from proofs_check.claims import Finding, claim, conclude
from proofs_check.newton_steps import complement, gain_from_half, gain_large, gain_small


@claim(
    name="newton-in-code",
    theorem="ours, the seam",
    statement="kl_root of cactus_theory, stopped after 0, 1 and 2 steps, has the errors that "
    "newton-steps bounds, within 1e-9, at points of all its regions",
    tex=r"x_k = (1 + e_k)\,r, \quad 1 - g_k = (1 - e_k)(1 - g), \quad k = 0, 1, 2",
    kind="evidence",
    depends=("newton-error",),
    false=({"ahead": 1},),
)
def newton_in_code(ahead: int = 0) -> Finding:
    worst, points = 0.0, 0
    for steps in (0, 1, 2):
        with mock.patch.object(_kl_root, "NEWTON_STEPS", steps + ahead):
            for q, s in product((1e-30, 1e-6, 0.01, 0.2, 0.45, 0.5, 0.7, 0.95), (0.02, 0.1, 0.3)):
                room, root = 1 - q, s * (1 - q)
                delta = np.asarray(binary_kl(q + root, q))
                got = float(kl_root(np.asarray(q), delta, xp=np)[0]) - q
                worst = max(worst, abs(got / root - 1 - _gain_error(q, root, steps)))
                points += 1
                if steps == 0:  # the complement is clipped inside the loop
                    continue
                deficit = root * np.log((1 - root) * room / (root * q)) - np.log1p(-root)
                delta = np.asarray(-np.log(q) - deficit)
                solved = kl_root(np.asarray(q), delta, deficit=np.asarray(deficit), xp=np)
                wanted = complement(arb(-np.log(q)), arb(-np.log(s)), steps)[steps]
                worst = max(worst, abs(1 - float(solved[1]) / root - float(wanted)))
    return conclude(f"{points} points, largest difference {worst:.1e}", ("equal", worst < 1e-9))


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
    theorem="ours, the seam",
    statement="OPEN: with rounding, kl_root in float64 is within 16 ulp of the smaller of g, 1 - g "
    "wherever log(1/q) > 1.25 delta; seen on 1,919 pairs certified by balls, q from 1e-300 to "
    "1 - 1e-12, delta from 1e-6 to 20",
    tex=r"|\hat g - g| \le 16u\,\min(g, 1-g),\quad u = 2^{-53}",
    kind="evidence",
    expected="open",
    depends=("newton-steps",),
    false=({"ulps": 0.25}, {"shift": 1e-12}),
)
def newton_in_float64(ulps: float = 16, shift: float = 0.0) -> Finding:
    low = 10.0 ** -np.array([300, 200, 100, 50, 30, 20, 15, 10, 8, 6, 5, 4, 3, 2.5, 2, 1.5, 1])
    targets = np.concatenate([low, np.linspace(0.12, 0.97, 40), 1 - 10.0 ** -np.arange(2, 13)])
    q_, delta = (grid.ravel() for grid in np.meshgrid(targets, np.geomspace(1e-6, 20, 40)))
    g, rest, _ = kl_root(q_, delta, xp=np)
    # nearer to log(1/q) = delta, 1 - g is ill-conditioned in delta: see `deficit` in kl_root
    inner = (rest > 0) & (g > q_) & (-np.log(q_) > 1.25 * delta)
    bad = 0
    with ctx.workprec(2200):
        for target, budget, kept, left in zip(
            q_[inner], delta[inner], g[inner], rest[inner], strict=True
        ):
            small = arb(min(float(kept), float(left)))
            root = (1 - arb(float(left)) if left < kept else arb(float(kept))) + small * arb(shift)
            width = small * arb(ulps) * arb(2) ** -53
            below, above = _kl(root - width, target), _kl(root + width, target)
            bad += not below < arb(float(budget)) < above
    count = int(inner.sum())
    return conclude(f"{count} pairs", ("bracketed", bad == 0), ("enough", count == 1919))


@claim(
    name="exact-optimum-feasible",
    theorem="Theorem 2, in code",
    statement="exact_optimum keeps the budget and brackets the root: KL(value) <= delta <= "
    "KL(upper end), by balls, on 1,640 pairs with q from 1e-12 to 0.97, delta from 1e-6 to 20",
    tex=r"\mathrm{KL}(\texttt{value}\|q) \le \delta \le \mathrm{KL}(\texttt{upper}\|q)",
    kind="evidence",
    depends=("newton-steps", "root-unique-monotone"),
    false=({"spent": 1.0 + 1e-12}, {"spent": 1.0 - 1e-12}),
)
def exact_optimum_feasible(spent: float = 1.0) -> Finding:
    targets = np.concatenate([np.geomspace(1e-12, 0.1, 20), np.linspace(0.12, 0.97, 21)])
    q_, delta = (grid.ravel() for grid in np.meshgrid(targets, np.geomspace(1e-6, 20, 40)))
    solved = exact_optimum(q_, delta)
    low, high = solved.bracket
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
    return conclude(f"{len(q_)} pairs", ("kept and bracketed", bad == 0), ("all", len(q_) == 1640))


def _kl(g: arb, target: float) -> arb:
    q_ = arb(float(target))
    return g * (g / q_).log() + (1 - g) * ((1 - g) / (1 - q_)).log()
