"""``python -m scripts.train_tiny``: the command line of the training."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from scripts.train_tiny.text import TrainingError, read_lines
from scripts.train_tiny.training import Interrupted, Recipe, Run, train


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Give a function that is true once Ctrl-C was pressed; a second Ctrl-C acts as usual."""
    caught: list[int] = []

    def note(number: int, _: object) -> None:
        caught.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(caught)
    finally:
        signal.signal(signal.SIGINT, before)


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    usual = Recipe()
    command = argparse.ArgumentParser(
        prog="python -m scripts.train_tiny",
        description="Train the tiny pair (a target and a draft a tenth of its size) on the"
        " glosses of WordNet. With the settings below it takes about 25 minutes on one core.",
        epilog="A run can be cut at any time. Ctrl-C ends the step at hand, writes a checkpoint"
        " and leaves; the same command again goes on from there and ends at the same weights"
        " as a run that was never cut. After a crash it goes on from the last checkpoint kept."
        " The pair is then in OUTPUT/target and OUTPUT/draft; OUTPUT/checkpoint.pt may go.",
    )
    add = command.add_argument
    add(
        "--corpus",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with WordNet's data.noun, data.verb, data.adj and data.adv; with Debian's"
        " package wordnet-base it is /usr/share/wordnet",
    )
    add(
        "--output",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for the two models and the checkpoint; made if missing",
    )
    add(
        "--target-steps",
        type=int,
        default=usual.target.steps,
        metavar="N",
        help="optimizer steps of the target (default: %(default)s)",
    )
    add(
        "--draft-steps",
        type=int,
        default=usual.draft.steps,
        metavar="N",
        help="optimizer steps of the draft; the first half minimises the Kullback-Leibler"
        " divergence to the target, the second the total variation (default: %(default)s)",
    )
    add(
        "--seed",
        type=int,
        default=usual.seed,
        help="seed of the first weights and of the order of the text (default: %(default)s)",
    )
    add(
        "--checkpoint-every",
        type=int,
        default=200,
        metavar="N",
        help="steps between checkpoints; changes nothing in the result (default: %(default)s)",
    )
    add(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="threads of the arithmetic; another number rounds differently, so the weights"
        " agree to the bit only between runs with the same one (default: %(default)s)",
    )
    return command


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0 when done, 130 when interrupted, 2 when it cannot go on."""
    options = parser().parse_args(arguments)
    low = [
        f"--{name.replace('_', '-')}"
        for name in ("target_steps", "draft_steps", "checkpoint_every", "threads")
        if getattr(options, name) < 1
    ]
    if low:
        parser().error(f"{', '.join(low)} must be at least 1")
    torch.set_num_threads(options.threads)
    usual = Recipe()
    recipe = replace(
        usual,
        target=replace(usual.target, steps=options.target_steps),
        draft=replace(usual.draft, steps=options.draft_steps),
        seed=options.seed,
    )
    try:
        with interrupts() as stop:
            every, lines = options.checkpoint_every, read_lines(options.corpus)
            found = train(Run(recipe, lines, options.output, every, stop))
    except Interrupted as reason:
        print(f"{reason}; run the same command again to go on.")
        return 130
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    acceptance, target_loss, draft_loss = found
    print(
        f"On held-out glosses: acceptance {acceptance:.3f}; "
        f"nats per token {target_loss:.3f} (target), {draft_loss:.3f} (draft)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
