"""All commands by name, and how errors are reported. A command is loaded when it is called."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """Where a command lives, what it does, and whether it reads its own arguments."""

    where: str  # "module:name"
    help: str
    forwards: bool = False  # to a function from arguments to an exit status


COMMANDS = {
    "decode": Entry("cactus_runtime.cli.decode:decode", "Decode a prompt, with its ledger."),
    "record": Entry("cactus_runtime.cli.record:record", "Record a pair's distributions in a file."),
    "curve": Entry("cactus_runtime.cli.curve:curve", "What rules accept and emit against delta."),
    "frontier": Entry(
        "cactus_runtime.cli.frontier:frontier", "How far rules are from the best possible."
    ),
    "optimum": Entry(
        "cactus_runtime.cli.optimum:optimum",
        "What a candidate's budget grants to one token.",
    ),
    "audit": Entry("cactus_runtime.cli.audit:audit", "Is a sampler what it is said to be?"),
    "check": Entry("proofs_check.__main__:main", "Verify the theorems by machine.", forwards=True),
    "demo": Entry("cactus_runtime.cli.demo:demo", "Compare a rule with plain decoding."),
    "bench": Entry("cactus_runtime.cli.bench:bench", "Time the decoder."),
}


class _Lazy(click.Group):
    """Lists commands by their entries, and loads the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else click.Command(cmd_name, help=entry.help)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            command = _load(name, COMMANDS[name])
        return name, command, rest


def _load(name: str, entry: Entry) -> click.Command:
    module, _, attribute = entry.where.partition(":")
    found = getattr(import_module(module), attribute)
    if not entry.forwards:
        return found
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}

    @click.command(name, context_settings=settings, add_help_option=False)
    @click.pass_context
    def forward(ctx: click.Context) -> int:
        return found(ctx.args)

    return forward


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cactus-speculative", prog_name="cactus")
def cactus() -> None:
    """Speculative decoding under a divergence budget, and what it costs.

    \b
    A first tour:
      cactus optimum 1e-4 1.0              what the budget grants to one token
      cactus curve                         rules against delta, on recorded distributions
      cactus curve --html curve.html       the same with a slider
      cactus decode "river:" --pair tiny   decode, tokens coloured by origin
      cactus record --pair tiny -o my.npz  record distributions of a pair
      cactus curve my.npz                  ... and explore them without it
      cactus frontier my.npz               how far each rule is from the best possible
      cactus check --quick                 the theorems, verified by machine

    decode, record and bench need the extra "runtime", check needs "proofs", and pictures need
    "plots".

    \b
    Exit status:
      0    success
      1    a claim has an unexpected verdict, a sampler fails its audit, or the reader of a pipe has
           closed it
      2    bad usage, bad input, or a package is not installed
      3    an audit had too few tokens for what it should detect
      130  interrupted

    Characters that an output's encoding lacks are written as escapes such as \\u2603.

    \b
    Completion, for bash (or zsh_source, fish_source):
      eval "$(_CACTUS_COMPLETE=bash_source cactus)"
    """


def run(arguments: Sequence[str] | None) -> int:
    """Run the command line; an error is reported in one sentence on stderr.

    Parameters
    ----------
    arguments : sequence of str or None
        None: those of the process.

    Returns
    -------
    int
        The exit status, see `cactus_runtime.cli.main`.

    Examples
    --------
    >>> run(["optimum", "2.0", "0.1"])
    2
    """
    return run_command(cactus, arguments, name="cactus")


def run_command(command: click.Command, arguments: Sequence[str] | None, *, name: str) -> int:
    """Run any command as `run` does; messages begin with its name."""
    args = None if arguments is None else list(arguments)
    with _any_character(sys.stdout), _any_character(sys.stderr):
        try:
            return command.main(args, prog_name=name, standalone_mode=False) or 0
        except SystemExit as stopped:  # of a command that parses its own arguments
            return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        except (click.Abort, KeyboardInterrupt):
            return 130
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return 2
        except Exception as error:
            told = _sentence(error, name)
            if told is None:
                raise
            print(f"{name}: {' '.join(told.split())}", file=sys.stderr)
            return 2


@contextmanager
def _any_character(stream: Any) -> Iterator[None]:
    """Write characters that the stream's encoding lacks as escapes, instead of failing."""
    strict = isinstance(stream, TextIOWrapper) and stream.errors == "strict"
    if strict:
        stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        if strict and not stream.closed:
            with suppress(OSError):  # the reader has closed it
                stream.reconfigure(errors="strict")


def _sentence(error: Exception, name: str) -> str | None:
    """What to tell of an error; None of one that is a fault of ours."""
    match error:
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else name
            return f"{error.format_message()} (see: {path} --help)"
        case ModuleNotFoundError():
            return _how_to_install(error)
        case OSError():
            return _without_number(error)
        case click.ClickException() | ValueError() | TypeError():
            return str(error)
        case RuntimeError() if type(error).__module__.startswith("cactus_"):
            return str(error)
    return None


_EXTRAS = {
    "torch": "runtime",
    "transformers": "runtime",
    "rich": "runtime",
    "matplotlib": "plots",
    "jinja2": "cli",
}


def _how_to_install(missing: ModuleNotFoundError) -> str:
    extra = _EXTRAS.get(missing.name or "")
    if extra is None:
        return str(missing)
    return f"this needs {missing.name}: pip install 'cactus-speculative[{extra}]'"


def _without_number(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {error.filename!r}"
