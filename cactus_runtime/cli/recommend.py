"""The table of ``cactus curve --recommend``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from cactus_theory.recommendation import recommend
from cactus_theory.recording import Recording

_OPTIONS = (
    click.option(
        "--recommend",
        "recommending",
        is_flag=True,
        help="Print the best setting of every rule, for --speed or --kl, in the place of curves.",
    ),
    click.option("--speed", type=float, help="Speed-up to reach with the least KL, above 1."),
    click.option("--kl", type=float, help="KL per token to keep at the largest speed, in nats."),
    click.option("--draft-cost", type=float, help="Cost of one drafted token, in target passes."),
    click.option(
        "--verify-cost", type=float, help="Cost of a verifying pass, in target passes. [default: 1]"
    ),
    click.option(
        "--max-draft-tokens", type=int, help="Most drafted tokens in a block. [default: 16]"
    ),
)
_GOALS = ("speed", "kl", "draft_cost", "verify_cost", "max_draft_tokens")
_WITH = ("file", "rules", "recommending", *_GOALS)


def recommend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a recommendation, for a command that has others.

    Examples
    --------
    >>> @click.command()
    ... @recommend_options
    ... def show(**options):
    ...     click.echo(options["speed"])
    >>> show.main(["--recommend", "--speed", "2"], standalone_mode=False)
    2.0
    """
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check(recommending: bool, goals: dict[str, Any]) -> None:
    """Refuse options that would not be applied: goals without --recommend, and others with it."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        unused = option.name not in _WITH if recommending else option.name in _GOALS
        if given and unused:
            need = "cannot be given with" if recommending else "needs"
            raise click.UsageError(f"{option.opts[0]} {need} --recommend")
    if recommending and (goals["speed"] is None) == (goals["kl"] is None):
        raise click.UsageError("--recommend needs one of --speed and --kl")
    if recommending and goals["draft_cost"] is None:
        raise click.UsageError("--recommend needs --draft-cost; `cactus bench` measures it")


def write_recommendations(laws: Recording, rules: list[str], goals: dict[str, Any]) -> None:
    """Print one line for each rule that reaches the goal, the best first."""
    defaults = {"verify_cost": 1.0, "max_draft_tokens": 16}
    costs = {name: goals[name] for name in _GOALS[2:] if goals[name] is not None}
    try:
        found = recommend(
            laws,
            min_speedup=goals["speed"],
            max_kl=goals["kl"],
            rules=rules,
            **(defaults | costs),
        )
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"{error}") from None
    widest = max(len(one.name) for one in found)
    click.echo(
        f"{'rule':<{widest}}{'delta':>12}{'drafts':>8}{'speed':>8}{'KL/token':>11}{'accepted':>10}"
    )
    for one in found:
        delta = "" if one.delta is None else f"{one.delta:.4g}"
        click.echo(
            f"{one.name:<{widest}}{delta:>12}{one.num_draft_tokens:>8}{one.speedup:>8.3f}"
            f"{one.kl_per_token:>11.5f}{one.acceptance_rate:>10.4f}"
        )
