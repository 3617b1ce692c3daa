"""``python -m benchmarks.quality``: its two commands."""

from __future__ import annotations

import sys

import click

from benchmarks.quality.harness import compare
from benchmarks.quality.run import ifeval
from cactus_runtime.cli.commands import run_command


@click.group(commands={"ifeval": ifeval, "compare": compare})
def quality() -> None:
    """Compare answers under many rules, with 95 % intervals over the prompts."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status, as that of `cactus`."""
    return run_command(quality, arguments, name="python -m benchmarks.quality")


if __name__ == "__main__":
    sys.exit(main())
