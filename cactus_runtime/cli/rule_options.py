"""Options that choose a rule: ``--rule``, and one for each parameter of the registry's rules.

A rule that is added to the registry gets its options automatically.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from cactus_theory.rules.parameters import DIVERGENCES, RANGES, Parameter
from cactus_theory.rules.parsing import rule_from, takes
from cactus_theory.rules.registry import RULES

DELTA = "0.1"  # nats, for rules with such a budget where none is given


def rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a function the rule that the options describe, as its argument ``rule``.

    Examples
    --------
    >>> @click.command()
    ... @rule_options
    ... def show(rule):
    ...     click.echo(f"{rule}")
    >>> show.main(["--rule", "exact", "--delta", "0.5"], standalone_mode=False)
    CactusExact(delta=0.5, divergence=KL())
    >>> show.main(["--rule", "lenience:lenience=0.5"], standalone_mode=False)
    Lenience(lenience=0.5)
    """
    parameters = _parameters()

    @wraps(command)
    def call(*, rule: str, **options: Any) -> Any:
        given = {name: options.pop(name) for name in parameters}
        given = {name: value for name, value in given.items() if value is not None}
        if takes(rule, "delta"):
            given = {"delta": DELTA} | given
        return command(rule=rule_from(rule, **given), **options)

    for name, users in reversed(parameters.items()):
        call = click.option(f"--{name}", metavar="VALUE", help=_help(users))(call)
    return click.option(
        "--rule",
        default="cactus",
        show_default=True,
        shell_complete=lambda _, __, typed: [name for name in RULES if name.startswith(typed)],
        help=f"One of {', '.join(RULES)}, or with parameters: exact:delta=0.5,divergence=kl.",
    )(call)


def _parameters() -> dict[str, dict[str, Parameter]]:
    """Maps a parameter's name to the rules that have it, each with its meaning there."""
    found: dict[str, dict[str, Parameter]] = {}
    for rule, entry in RULES.items():
        for parameter in entry.parameters:
            if parameter.domain != "rule":  # its own parameters are options already
                found.setdefault(parameter.name, {})[rule] = parameter
    return found


def _help(users: dict[str, Parameter]) -> str:
    """The meaning of the parameter, for each rule where it differs."""
    meanings: dict[Parameter, list[str]] = {}
    for rule, parameter in users.items():
        meanings.setdefault(parameter, []).append(rule)
    parts = [
        f"{', '.join(rules)}: {p.meaning}, {RANGES[p.domain]}{_default(p)}"
        for p, rules in meanings.items()
    ]
    return f"For {'; '.join(parts)}."


def _default(parameter: Parameter) -> str:
    if parameter.name == "delta":
        return f" [default: {DELTA}]"
    if parameter.is_required or parameter.default is None:
        return ""
    named = {divergence: name for name, divergence in DIVERGENCES.items()}
    return f" [default: {named.get(parameter.default, parameter.default)}]"
