"""Pictures of budgets and distributions, as matplotlib axes (the extra ``plots``).

Knows no model and no file. Colour-blind readers can tell the colours apart, and dashes distinguish
the lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.curves import Curve
from cactus_theory.divergences import binary_kl
from cactus_theory.emitted import output_distribution
from cactus_theory.frontier import Figures
from cactus_theory.rules import Rule
from cactus_theory.rules.parsing import entries_from
from cactus_theory.rules.registry import RULES, Entry, budgeted_candidates

_SMALL: dict[str, Any] = {
    "fontsize": 8,
    "frameon": False,
    "handlelength": 3.2,
}  # shows dashes
_REFERENCE: dict[str, Any] = {"color": "gray", "linewidth": 0.8, "zorder": 1.5}  # below curves
_DELTA = "budget of one candidate, delta (nats)"


def delta_curves(curves: Mapping[str, Curve], *, axes: Any = None) -> Any:
    """Draw acceptance and what is emitted against the budget.

    Left: the acceptance rate. Right: the KL of the emitted distribution from the target's. The line
    KL = delta is drawn because delta does not bound the emitted distribution, except for clamp and
    lenience.

    Parameters
    ----------
    curves : mapping of str to Curve
        By rule, as `cactus_theory.rules.parsing.entry_from` reads it; of deltas > 0.
    axes : pair of matplotlib axes, optional
        Default: those of a new figure.

    Returns
    -------
    pair of matplotlib axes

    Raises
    ------
    ValueError
        If a delta is 0, which a logarithmic axis cannot show.

    Examples
    --------
    >>> import matplotlib; matplotlib.use("agg")
    >>> from cactus_theory import Cactus
    >>> from cactus_theory.curves import curve
    >>> found = curve(Cactus, draft=[0.7, 0.3], target=[0.5, 0.5], deltas=[0.01, 0.1])
    >>> left, right = delta_curves({"cactus": found})
    >>> left.get_xlabel()
    'budget of one candidate, delta (nats)'
    """
    for found in curves.values():
        if not (found.deltas > 0).all():
            raise ValueError(f"deltas must be positive, got {found.deltas.tolist()}")
    left, right = _pair(axes)
    for key, entry in entries_from(curves).items():
        found = curves[key]
        left.plot(found.deltas, found.acceptance_rate, label=entry.title, **_line(entry))
        right.plot(found.deltas, found.kl, **_line(entry))
    deltas = next(iter(curves.values())).deltas
    right.plot(deltas, deltas, label="KL = delta", **_REFERENCE)
    top = max(found.kl[np.isfinite(found.kl)].max(initial=0) for found in curves.values())
    right.set_ylim(0, 1.05 * top or 1.0)
    left.set_ylabel("acceptance rate")
    right.set_ylabel("KL of the emitted distribution (nats)")
    for side in (left, right):
        _dress(side, _DELTA)
    _legend(left, right, outside=axes is None)
    return left, right


def pareto(curves: Mapping[str, Curve], *, axes: Any = None) -> Any:
    """Draw acceptance against what it costs in TV (left) and in KL (right), along every curve.

    Higher is better. Families without a budget are points. No scheme is above the line of slope 1
    in the left picture that starts at plain speculative sampling (gain = cost).

    Parameters
    ----------
    curves : mapping of str to Curve
    axes : pair of matplotlib axes, optional

    Returns
    -------
    pair of matplotlib axes

    Examples
    --------
    >>> import matplotlib; matplotlib.use("agg")
    >>> from cactus_theory import Cactus
    >>> from cactus_theory.curves import curve
    >>> found = curve(Cactus, draft=[0.7, 0.3], target=[0.5, 0.5], deltas=[0.01, 0.1])
    >>> left, right = pareto({"cactus": found})
    >>> left.get_xlabel(), right.get_xlabel()
    ('TV of the emitted distribution', 'KL of the emitted distribution (nats)')
    """
    left, right = _pair(axes)
    for key, entry in entries_from(curves).items():
        found = curves[key]
        is_point = np.ptp(found.acceptance_rate) == 0
        last = 1 if is_point else None
        point = {"marker": "o", "linestyle": "none"} if is_point else {}
        for side, spent in ((left, found.total_variation), (right, found.kl)):
            rates = found.acceptance_rate[:last]
            side.plot(spent[:last], rates, label=entry.title, **_line(entry) | point)
    left.set_ylabel("acceptance rate")
    for side, label in ((left, "TV"), (right, "KL")):
        unit = " (nats)" if label == "KL" else ""
        _dress(side, f"{label} of the emitted distribution{unit}", log=False)
    _legend(left, outside=axes is None)
    return left, right


def frontier(
    curves: Mapping[str, Curve], best: Mapping[int, Sequence[Figures]], *, axes: Any = None
) -> Any:
    """Draw how far rules are from the best possible, and what more drafts of a position buy.

    Acceptance against the KL of what is emitted. Left: rules, and the best possible with one draft.
    Right: the best possible with each number of drafts.

    Parameters
    ----------
    curves : mapping of str to Curve
    best : mapping of int to sequence of Figures
        By the number of drafts, 1 among them; see `cactus_theory.frontier.Frontier`.
    axes : pair of matplotlib axes, optional

    Returns
    -------
    pair of matplotlib axes

    Examples
    --------
    >>> import matplotlib; matplotlib.use("agg")
    >>> from cactus_theory import Frontier
    >>> points = [Frontier(draft=[0.7, 0.3], target=[0.5, 0.5]).at_price(x) for x in (0.0, 0.5)]
    >>> left, right = frontier({}, {1: points})
    >>> right.get_xlabel()
    'KL of the emitted distribution (nats)'
    """
    left, right = _pair(axes)
    for key, entry in entries_from(curves).items():
        found = curves[key]
        if np.ptp(found.acceptance_rate) > 0:
            left.plot(found.kl, found.acceptance_rate, label=entry.title, **_line(entry))
    for place, (number, points) in enumerate(best.items()):
        spent, rates = [one.kl for one in points], [one.acceptance_rate for one in points]
        shade = {"color": str(0.6 * place / max(len(best) - 1, 1)), "linewidth": 1.8}
        right.plot(spent, rates, **shade)
        right.annotate(f"{number} drafts" if number > 1 else "1 draft", (spent[-1], rates[-1]))
        if number == 1:
            left.plot(spent, rates, label="best possible, one draft", **shade)
    left.set_ylabel("acceptance rate")
    for side in (left, right):
        _dress(side, "KL of the emitted distribution (nats)", log=False)
        side.set_xlim(0, 1.25 * max(one.kl for one in next(iter(best.values()))))
    _legend(left, outside=axes is None)
    return left, right


def granted(delta: float, *, axes: Any = None) -> Any:
    """Draw the probability g granted to a drafted token, and the KL spent, against q.

    Left: g of every rule whose candidate has a budget. Right: the KL of the candidate as a share of
    the budget; above 1 it is overspent.

    Parameters
    ----------
    delta : float
        Budget of one candidate, in nats; > 0.
    axes : pair of matplotlib axes, optional

    Returns
    -------
    pair of matplotlib axes

    Raises
    ------
    ValueError, TypeError
        If delta is not a positive number.

    Examples
    --------
    >>> import matplotlib; matplotlib.use("agg")
    >>> left, right = granted(0.5)
    >>> bool(max(max(line.get_ydata()) for line in right.lines) > 1)  # the second order
    True
    """
    if not _validate.budget("delta", delta) > 0:
        raise ValueError(f"delta must be positive, got {delta!r}")
    left, right = _pair(axes)
    q = np.concatenate([np.geomspace(1e-8, 0.1, 200), np.linspace(0.1, 1 - 1e-9, 300)[1:]])
    for entry in budgeted_candidates().values():
        rule: Any = entry.at(delta)
        value = rule.boost(q)
        left.plot(q, value, label=entry.title, **_line(entry))
        right.plot(q, binary_kl(value, q) / delta, **_line(entry))
    right.axhline(1, label="the budget", **_REFERENCE)
    left.set_ylabel("granted probability g")
    right.set_ylabel("KL of the candidate / delta")
    for side in (left, right):
        _dress(side, "target probability q")
    _legend(left, right, outside=axes is None)
    left.set_title(f"delta = {delta:g} nats", fontsize=9)
    return left, right


def laws(rule: Rule, *, draft: Any, target: Any, tokens: int = 12, axes: Any = None) -> Any:
    """Draw the draft's, the target's and the emitted distributions at one position, as bars.

    Parameters
    ----------
    rule : Rule
    draft, target : array_like, shape (V,)
        Distributions p and q.
    tokens : int
        How many tokens are drawn, those with the largest p or q.
    axes : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import matplotlib; matplotlib.use("agg")
    >>> from cactus_theory import Cactus
    >>> axes = laws(Cactus(0.1), draft=[0.7, 0.3], target=[0.5, 0.5])
    >>> [float(patch.get_height()) for patch in axes.patches][:4]
    [0.7, 0.3, 0.5, 0.5]
    """
    draft, target = _validate.law_pair(draft=draft, target=target)
    emitted = output_distribution(rule, draft=draft, target=target)
    shown = np.argsort(-np.maximum(draft, target), kind="stable")[:tokens]
    axes = _single(axes)
    bars = (("draft p", draft, "#E69F00"), ("target q", target, "#0072B2"))
    for i, (name, law, colour) in enumerate((*bars, ("emitted", emitted, "#000000"))):
        places = np.arange(shown.size) + 0.27 * (i - 1)
        axes.bar(places, law[shown], width=0.27, color=colour, label=name)
    axes.set_title(f"{rule}", fontsize=9)
    axes.set_ylabel("probability")
    _dress(axes, "token, by rank", log=False)
    axes.legend(**_SMALL)
    return axes


def ledger(charges: Mapping[str, Sequence[float]], *, axes: Any = None) -> Any:
    """Draw the running sums of the charges of tokens.

    Parameters
    ----------
    charges : mapping of str to sequence of float
        Keys name the quantity and its unit, such as "KL bound (nats)".
    axes : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import matplotlib; matplotlib.use("agg")
    >>> ledger({"TV": [0.25, 0.0, 0.5]}).lines[0].get_ydata().tolist()
    [0.0, 0.25, 0.25, 0.75]
    """
    axes = _single(axes)
    looks = (RULES["cactus"], RULES["exact"], RULES["safe"])
    for (name, charged), look in zip(charges.items(), looks, strict=False):
        sums = np.concatenate([[0.0], np.cumsum(charged)])
        axes.step(np.arange(sums.size), sums, where="post", color=look.colour, label=name)
    axes.set_ylabel("charged so far")
    _dress(axes, "tokens emitted", log=False)
    axes.legend(**_SMALL)
    return axes


def counts(observed: Any, expected: Any, *, names: Sequence[str] = (), axes: Any = None) -> Any:
    """Draw observed counts beside those a distribution predicts, with four standard deviations.

    Parameters
    ----------
    observed : array_like, shape (V,)
        Counts.
    expected : array_like, shape (V,)
        The distribution.
    names : sequence of str, optional
        Of the tokens.
    axes : matplotlib axes, optional

    Returns
    -------
    matplotlib axes

    Raises
    ------
    ValueError
        If `expected` is not a distribution, or the shapes differ.

    Examples
    --------
    >>> import matplotlib; matplotlib.use("agg")
    >>> counts([48, 52], [0.5, 0.5]).get_ylabel()
    'draws'
    """
    law, observed = _validate.law("expected", expected), np.asarray(observed)
    if law.shape != observed.shape:
        raise ValueError(
            f"observed and expected must have one shape, got {observed.shape} and {law.shape}"
        )
    axes = _single(axes)
    total = observed.sum()
    places = np.arange(law.size)
    axes.bar(places, observed, color=RULES["one-level"].colour, label="drawn")
    deviation = 4 * np.sqrt(total * law * (1 - law))
    axes.errorbar(
        places, total * law, deviation, fmt="_", color="black", label="expected, 4 deviations"
    )
    if names:
        axes.set_xticks(places, names)
    axes.set_ylabel("draws")
    _dress(axes, "token", log=False)
    axes.legend(**_SMALL)
    return axes


def _line(look: Entry) -> dict[str, Any]:
    return {"color": look.colour, "linestyle": (0, look.dash) if look.dash else "-"}


def _pair(axes: Any) -> Any:
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    return plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")[1]


def _single(axes: Any) -> Any:
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(5.6, 3.3), layout="constrained")[1]


def _dress(axes: Any, label: str, *, log: bool = True) -> None:
    """Label, scale and grid."""
    if log:
        axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)


def _legend(*sides: Any, outside: bool) -> None:
    """One legend of all lines: below the pictures, or inside the first of the caller's axes."""
    found = [side.get_legend_handles_labels() for side in sides]
    handles, labels = (list(chain(*lists)) for lists in zip(*found, strict=True))
    if outside:
        sides[0].figure.legend(handles, labels, loc="outside lower center", ncols=4, **_SMALL)
    else:
        sides[0].legend(handles, labels, **_SMALL)
