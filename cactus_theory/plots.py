"""Pictures of laws: laws in, axes out. Needs matplotlib (the extra ``plots``).

Knows no model and no file; colours are safe for colour-blind readers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cactus_theory.divergences import kl
from cactus_theory.laws import emission, output_law
from cactus_theory.rules import Cactus, CactusExact, SpeculativeSampling

_COLOURS = {"second order (Cactus)": "#0072B2", "exact KL optimum": "#D55E00"}
_RULES = {"second order (Cactus)": Cactus, "exact KL optimum": CactusExact}


def delta_curves(draft: Any, target: Any, deltas: Any, *, axes: Any = None) -> Any:
    """Draw acceptance and what is emitted against the budget, averaged over positions.

    Left: the acceptance rate sum_x min(p, g). Right: the KL of the emitted law from the target
    (solid, exact) and their total variation (dashed). The line KL = delta is drawn because the
    emitted law is not bounded by it.

    Parameters
    ----------
    draft, target : array_like, shape (N, V)
        Laws at N positions.
    deltas : array_like, shape (D,)
        Budgets, positive, in nats.
    axes : pair of matplotlib axes, optional
        Default: those of a new figure.

    Returns
    -------
    pair of matplotlib axes

    Raises
    ------
    ValueError
        If the laws are not laws, or a budget is not positive and finite.

    Examples
    --------
    >>> import matplotlib; matplotlib.use("agg")
    >>> left, right = delta_curves([[0.7, 0.3]], [[0.5, 0.5]], [0.01, 0.1])
    >>> left.get_xlabel()
    'budget of one candidate, delta (nats)'
    """
    import matplotlib.pyplot as plt

    deltas = np.asarray(deltas, dtype=np.float64)
    if not (np.isfinite(deltas) & (deltas > 0)).all():
        raise ValueError(f"deltas must be positive and finite, got {deltas.tolist()}")
    if axes is None:
        _, axes = plt.subplots(1, 2, figsize=(8.4, 3.3), layout="constrained")
    left, right = axes
    plain = emission(SpeculativeSampling(), draft=draft, target=target).acceptance_rate.mean()
    left.axhline(plain, color="black", linestyle=":", label="plain speculative sampling")
    for name, colour in _COLOURS.items():
        rate, distance, divergence = _means(_RULES[name], draft, target, deltas)
        left.plot(deltas, rate, color=colour, label=name)
        right.plot(deltas, divergence, color=colour, label=f"KL (nats), {name}")
        right.plot(deltas, distance, color=colour, linestyle="--", label=f"TV, {name}")
    right.plot(deltas, deltas, color="gray", linewidth=0.8, label="KL = delta: no bound")
    right.set_ylim(0, 1.05 * max(line.get_ydata().max() for line in right.lines[:-1]))
    left.set_ylabel("acceptance rate")
    right.set_ylabel("emitted law against target, per token")
    for side in (left, right):
        side.set_xscale("log")
        side.set_xlabel("budget of one candidate, delta (nats)")
        side.grid(alpha=0.3)
        side.legend(fontsize=7, frameon=False)
    return left, right


def _means(rule: type, draft: Any, target: Any, deltas: np.ndarray) -> np.ndarray:
    """Mean acceptance rate, total variation and KL of what is emitted, for every budget."""
    rows = []
    for delta in deltas:
        cost = emission(rule(delta), draft=draft, target=target)
        law = output_law(rule(delta), draft=draft, target=target)
        rows.append(
            [cost.acceptance_rate.mean(), cost.total_variation.mean(), kl(law, target).mean()]
        )
    return np.array(rows).T
