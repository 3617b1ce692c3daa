"""``cactus optimum``: the probability that each rule with a candidate's budget grants a token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cactus_runtime.cli.files import Picture
from cactus_runtime.cli.picture import draw
from cactus_theory.divergences import binary_kl
from cactus_theory.optimum import exact_optimum
from cactus_theory.rules.registry import budgeted_candidates


@click.command()
@click.argument("target_prob", metavar="Q", type=float)
@click.argument("delta", type=float)
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of a table.")
@click.option("--plot", type=Picture(), help="Also draw g and the KL spent against q, at DELTA.")
def optimum(target_prob: float, delta: float, as_json: bool, plot: Path | None) -> None:
    """What a budget of DELTA nats grants to a drafted token of target probability Q.

    One row for each rule whose candidate has such a budget: g, which the candidate grants the
    token, and KL(Bernoulli(g) || Bernoulli(Q)), which that spends. "exact" is the largest g within
    the budget, rounded to keep it; JSON has as "exact_bracket" the interval that holds the root.
    "cactus" is the second-order form of the paper, "safe" a closed form that is never beyond the
    budget.

    The gap is exact minus cactus: negative where the second order overspends. The budget is one
    candidate's, and does not bound what is emitted.

    \b
    Example: cactus optimum 1e-4 1.0
    """
    found = granted(target_prob, delta)
    if as_json:
        click.echo(
            json.dumps({"target_prob": target_prob, "delta": delta} | found, allow_nan=False)
        )
    else:
        _write_table(target_prob, delta, found)
    if plot is not None:
        draw(plot, "granted", delta)


def _write_table(target_prob: float, delta: float, found: dict[str, Any]) -> None:
    click.echo(f"q = {target_prob:g}, delta = {delta:g} nats\n")
    click.echo(f"{'':<14}{'g':>14}{'KL spent':>14}")
    for name in budgeted_candidates():
        click.echo(f"{name:<14}{found[name]:>14.6g}{found[f'{name}_kl']:>14.6g}")
    click.echo(f"{'gap':<14}{found['gap']:>14.6g}")


def granted(target_prob: float, delta: float) -> dict[str, Any]:
    """The figures of the command: g of each rule, the KL it spends in nats, and the gap.

    "exact" is `exact_optimum` with its bracket: the decoder's rule may exceed it by some ulp.

    Parameters
    ----------
    target_prob : float
        q, in [0, 1].
    delta : float
        Budget of one candidate, in nats.

    Returns
    -------
    dict of str to float
        "exact_bracket" alone is a list of two.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range.

    Examples
    --------
    >>> found = granted(1e-4, 1.0)
    >>> round(found["exact"], 4), round(found["cactus"], 4), round(found["gap"], 4)
    (0.1555, 0.0142, 0.1412)
    """
    best = exact_optimum(target_prob, delta)  # which says what is wrong with them
    rules: dict[str, Any] = {name: entry.at(delta) for name, entry in budgeted_candidates().items()}
    values = {name: float(rule.boost(target_prob)) for name, rule in rules.items()}
    values["exact"] = float(best.value)
    spent = {f"{name}_kl": float(binary_kl(g, target_prob)) for name, g in values.items()}
    bracket = [float(end) for end in best.bracket]
    return values | {"exact_bracket": bracket, "gap": float(best.gap)} | spent
