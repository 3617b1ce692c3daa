"""``cactus curve``: what rules accept and emit against delta, on recorded distributions."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from cactus_runtime.cli.files import Output, Picture
from cactus_runtime.cli.picture import draw
from cactus_runtime.cli.recommend import check, recommend_options, write_recommendations
from cactus_theory.curves import Curve
from cactus_theory.curves import curve as trace
from cactus_theory.recording import Recording, load_recording
from cactus_theory.rules import CandidateRule, Rule
from cactus_theory.rules.parsing import entries_from, split_rules
from cactus_theory.rules.registry import RULES, Entry

DEFAULT = "cactus,exact,safe,lenience,mixture,speculative"
_LISTED = "\n".join(
    f"{name:<14}{entry.title}{'' if entry.at_budget else ', independent of delta'}"
    for name, entry in RULES.items()
)
_BOUNDED = " and ".join(name for name, entry in RULES.items() if entry.bounds_kl)
_HELP = f"""Acceptance, TV and KL of what rules emit, against delta, for the recording FILE.

Without FILE, on the laws of the tiny pair that come with cactus. Every figure is a mean over the
recorded positions; divergences are of the emitted law from the target's, KL in nats. Delta bounds
that KL for {_BOUNDED} only. A rule may have parameters; delta gives those that are left out, and a
rule whose parameters are all given is flat. Rules:

\b
{_LISTED}

\b
Examples:
  cactus curve
  cactus curve my.npz --rules cactus,clamp --csv > curves.csv
  cactus curve --rules safe,exact:divergence=chi-square,typical:epsilon=0.3,alpha=0.5
  cactus curve --rules all --pareto pareto.png --html curves.html
  cactus curve my.npz --recommend --draft-cost 0.05 --speed 2.5
  cactus curve my.npz --recommend --draft-cost 0.05 --kl 0.02 --rules cactus,lenience
"""


@click.command(help=_HELP)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--rules", default=DEFAULT, show_default=True, help="With commas, or: all.")
@click.option("--from", "first", type=float, default=1e-3, show_default=True, help="Least delta.")
@click.option("--to", "last", type=float, default=10.0, show_default=True, help="Largest delta.")
@click.option(
    "--points", type=click.IntRange(2), default=17, show_default=True, help="Number of deltas."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table.")
@click.option(
    "--plot", type=Picture(), help="Draw the curves: .png, .svg or .pdf (needs matplotlib)."
)
@click.option(
    "--pareto", type=Picture(), help="Draw acceptance against TV and KL, in the same formats."
)
@click.option("--html", type=Output(), help="Write a page with a slider; it needs no server.")
@recommend_options
def curve(
    file: Path | None,
    rules: str,
    first: float,
    last: float,
    points: int,
    as_csv: bool,
    plot: Path | None,
    pareto: Path | None,
    html: Path | None,
    recommending: bool,
    **goals: Any,
) -> None:
    check(recommending, goals)
    entries = _entries(rules)
    if not 0 < first < last:
        raise click.UsageError(f"--from and --to must be 0 < from < to, got {first:g} and {last:g}")
    laws = load_recording(file)
    if recommending:
        click.echo(_about(laws))
        write_recommendations(laws, list(entries), goals)
        return
    curves = _traced(laws, entries, np.geomspace(first, last, points))
    if as_csv:
        _write_csv(curves)
    elif plot is pareto is html is None:
        _write_table(laws, entries, curves)
    for path, picture in ((plot, "delta_curves"), (pareto, "pareto")):
        if path is not None:
            draw(path, picture, curves)
    if html is not None:
        from cactus_runtime.cli.page import curve_page

        html.write_text(curve_page(curves, about=_about(laws)), encoding="utf-8")
        click.echo(f"wrote {html}", err=True)


def _entries(rules: str) -> dict[str, Entry]:
    """By rule as it was typed; a mistake is told before any curve is traced."""
    if rules == "all":
        return dict(RULES)
    try:
        return entries_from(split_rules(rules))
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"--rules: {error}") from None


def _traced(laws: Recording, entries: Mapping[str, Entry], deltas: np.ndarray) -> dict[str, Curve]:
    """Curves by rule; on a terminal, with their progress."""
    with click.progressbar(
        entries.items(), label="curves", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as progress:
        return {
            name: trace(entry.at, draft=laws.draft, target=laws.target, deltas=deltas)
            for name, entry in progress
        }


def _about(laws: Recording) -> str:
    """Where the distributions come from and how exact their figures are."""
    about, errors = laws.about, laws.errors
    pair = f" of the pair {about['pair']}" if about.get("pair") else ""
    warm = f" at temperature {about['temperature']}" if "temperature" in about else ""
    return (
        f"Means over {len(laws)} positions{pair}{warm}. For rules with candidates whose boost does "
        f"not jump, recording moved acceptance and TV by at most "
        f"{errors.acceptance_rate.mean():.1g} and KL by at most {errors.kl.mean():.1g} nats."
    )


def _about_jumps(laws: Recording, rule: Rule) -> str:
    """How exact the figures of a rule are that accepts tokens up to a threshold."""
    if not isinstance(rule, CandidateRule):
        return "Recording may move these figures: a token near a threshold may pass or not."
    errors = laws.errors_for(rule)
    return (
        f"Its boost jumps: recording moved acceptance by at most "
        f"{errors.acceptance_rate.mean():.1g} and KL by at most {errors.kl.mean():.1g} nats."
    )


def _rows(curves: Mapping[str, Curve]) -> list[tuple[Any, ...]]:
    """Name, delta, acceptance rate, TV and KL."""
    return [
        (name, *(float(x) for x in row))
        for name, c in curves.items()
        for row in zip(c.deltas, c.acceptance_rate, c.total_variation, c.kl, strict=True)
    ]


def _write_csv(curves: Mapping[str, Curve]) -> None:
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow(["rule", "delta_nats", "acceptance_rate", "total_variation", "kl_nats"])
    lines.writerows(_rows(curves))


def _write_table(
    laws: Recording, entries: Mapping[str, Entry], curves: Mapping[str, Curve]
) -> None:
    click.echo(_about(laws))
    seen = ""
    for name, delta, *figures in _rows(curves):
        if name != seen:
            click.echo(f"\n{entries[name].title}")
            if not entries[name].continuous:
                click.echo(_about_jumps(laws, entries[name].at(delta)))
            click.echo(f"{'delta (nats)':>14}{'acceptance':>12}{'TV':>10}{'KL (nats)':>12}")
            seen = name
        accepted, distance, divergence = figures
        click.echo(f"{delta:>14.4g}{accepted:>12.4f}{distance:>10.4f}{divergence:>12.5f}")
