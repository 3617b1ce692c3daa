"""``python -m benchmarks.quality``: its three commands."""

from __future__ import annotations

import sys

import click

from benchmarks.quality.harness import compare
from benchmarks.quality.likelihood import likelihood
from benchmarks.quality.run import ifeval
from cactus_runtime.cli.commands import run_command


@click.group(commands={"ifeval": ifeval, "likelihood": likelihood, "compare": compare})
def quality() -> None:
    """Compare answers and likelihoods under many rules, with 95 % intervals."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status, as that of `cactus`."""
    return run_command(quality, arguments, name="python -m benchmarks.quality")


if __name__ == "__main__":
    sys.exit(main())
