"""``cactus frontier``: how far rules are from the best possible, on recorded distributions."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from cactus_runtime.cli.files import Picture
from cactus_runtime.cli.lists import Numbers
from cactus_runtime.cli.picture import draw
from cactus_theory.comparison import Comparison, compare
from cactus_theory.curves import curve
from cactus_theory.frontier import Figures, Frontier
from cactus_theory.recording import Recording, load_recording
from cactus_theory.rules.parsing import entries_from, split_rules
from cactus_theory.rules.registry import RULES

_POINTS = 17  # of a line


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--rules", default="all", show_default=True, help="With commas, or: all.")
@click.option("--kl", default=0.02, show_default=True, help="KL to spend at a position, in nats.")
@click.option(
    "--drafts",
    type=Numbers(int, lambda k: k >= 1, "integers >= 1"),
    default="1,2,4,8",
    show_default=True,
    help="Numbers of independent drafts of one position.",
)
@click.option("--plot", type=Picture(), help="Draw acceptance against KL: .png, .svg or .pdf.")
def frontier(
    file: Path | None, rules: str, kl: float, drafts: tuple[int, ...], plot: Path | None
) -> None:
    """How far rules are from the best possible, for the recording FILE.

    Without FILE, on the distributions of the tiny pair that come with cactus. Rules with a budget
    are compared where the mean KL of what they emit is --kl, others at the KL that they spend.
    GAIN is the acceptance beyond plain speculative sampling, as a share of the most that any scheme
    gains for the same mean KL; NEEDED is the least KL for the same acceptance. TOKENS and BLOCK are
    tokens per target pass with six drafts, verified token by token or as a block (simulated). Below
    them is the best possible with several drafts of one position.

    \b
    Examples:
      cactus frontier
      cactus frontier my.npz --kl 0.05 --rules cactus,lenience,clamp --plot frontier.png
    """
    names = list(RULES) if rules == "all" else split_rules(rules)
    laws = load_recording(file)
    try:
        found = compare(laws, names, kl=kl)
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"{error}") from None
    _write_rules(found)
    best = {k: Frontier(draft=laws.draft, target=laws.target, num_drafts=k) for k in sorted(drafts)}
    _write_drafts({k: (one.at_price(0.0), one.at_kl(kl)) for k, one in best.items()}, kl)
    if plot is not None:
        _draw(plot, laws, names, best, kl)


def _write_rules(found: list[Comparison]) -> None:
    widest = max(len(one.name) for one in found)
    click.echo(
        f"{'rule':<{widest}}{'delta':>11}{'KL':>9}{'accepted':>10}{'gain':>7}{'needed':>9}"
        f"{'tokens':>8}{'block':>7}"
    )
    for one in found:
        delta = "" if one.delta is None else f"{one.delta:.3g}"
        block = "" if np.isnan(one.by_block) else f"{one.by_block:.2f}"
        gain = f"{one.share:.0%}" if np.isfinite(one.share) else ""
        figures = one.figures
        click.echo(
            f"{one.name:<{widest}}{delta:>11}{abs(figures.kl):>9.4f}"
            f"{figures.acceptance_rate:>10.4f}{gain:>7}{abs(one.needed):>9.4f}"
            f"{one.token_by_token:>8.2f}{block:>7}"
        )


def _write_drafts(best: dict[int, tuple[Figures, Figures]], kl: float) -> None:
    click.echo(f"\n{'drafts':<8}{'accepted at KL 0':>18}{f'at KL {kl:g}':>14}")
    for number, (free, paid) in best.items():
        click.echo(f"{number:<8}{free.acceptance_rate:>18.4f}{paid.acceptance_rate:>14.4f}")


def _draw(
    path: Path, laws: Recording, names: list[str], best: dict[int, Frontier], kl: float
) -> None:
    """Lines up to four times the KL of the table."""
    one = best.get(1) or Frontier(draft=laws.draft, target=laws.target)
    prices = np.log(20.0) * np.linspace(0.0, 1.0, _POINTS) ** 2  # dense where the line is steep
    lines = {
        k: [found for price in prices if (found := each.at_price(price)).kl <= 4 * kl]
        for k, each in ({1: one} | best).items()
    }
    deltas = np.geomspace(1e-6, 3.0, 2 * _POINTS)
    curves = {
        name: curve(entry.at, draft=laws.draft, target=laws.target, deltas=deltas)
        for name, entry in entries_from(names).items()
        if entry.at_budget is not None
    }
    draw(path, "frontier", curves, lines)
