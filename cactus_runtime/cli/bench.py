"""``cactus bench``: speeds as ratios within one run, one JSON line each."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import click
import torch
import transformers

from cactus_runtime.bench.decoding import bench_decoding
from cactus_runtime.bench.models import chat_ids, random_pair
from cactus_runtime.bench.verifying import bench_verification
from cactus_runtime.cli.decode import DTYPES, PAIRS
from cactus_runtime.cli.lists import budgets
from cactus_runtime.models.dtype import chosen_dtype
from cactus_runtime.pairs import load_pair
from cactus_runtime.result.strict_json import strict_json

PROMPT = "Why is the sky blue?"


_POSITIVE = click.IntRange(1)


@click.command(context_settings={"show_default": True})
@click.argument("what", type=click.Choice(["decoding", "verification", "all"]), default="all")
@click.option(
    "--rounds", type=_POSITIVE, default=5, help="Repetitions, after one that is not counted."
)
@click.option("--device", default="cpu", help="cpu or cuda.")
@click.option(
    "--deltas", type=budgets(), default="0,0.01,0.1,0.5,0.75,1", help="Budgets of Cactus, nats."
)
@click.option("--pair", type=click.Choice(PAIRS), default="smollm2", help="Bundled models.")
@click.option("--prompt", default=PROMPT, help="Text to continue or answer.")
@click.option("--drafts", default=2, help="Drafted tokens per target pass.")
@click.option("--tokens", type=_POSITIVE, default=96, help="Tokens of each decode.")
@click.option("--temperature", default=0.7, help="Temperature of both models.")
@click.option(
    "--transformers/--no-transformers", default=True, help="Also time transformers' own decoding."
)
@click.option(
    "--config", help="Random weights of this transformers configuration instead of a pair."
)
@click.option("--draft-config", help="Configuration of the draft that goes with --config.")
@click.option(
    "--agreement", default=0.8, help="Acceptance rate of a --config pair, set by synthetic logits."
)
@click.option("--dtype", type=click.Choice(DTYPES), default="auto", help="Type of the weights.")
@click.option("--compile", is_flag=True, help="Compile the models' passes first, for the CPU.")
@click.option("--prompt-tokens", type=_POSITIVE, default=64, help="Prompt length with --config.")
@click.option("--batch", type=_POSITIVE, default=8, help="Rows.")
@click.option("--verified-drafts", default=8, help="Drafted tokens per row.")
@click.option("--vocabulary", type=_POSITIVE, default=151_936, help="Tokens.")
def bench(**given: Any) -> None:
    """Measure ratios within one interleaved run; one JSON line each, on stdout.

    Reports medians with the least and largest of the rounds. Ctrl-C ends early and keeps complete
    rounds.

    \b
    Example: cactus bench decoding --pair tiny --rounds 3
    """
    options = SimpleNamespace(**given)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={options.device!r} needs a CUDA device, and torch finds none")
    for line in _lines(options):
        click.echo(strict_json(line))


def _lines(options: SimpleNamespace) -> Iterator[dict[str, Any]]:
    yield _machine(options)
    if options.what in ("verification", "all"):
        yield from bench_verification(
            batch=options.batch,
            drafts=options.verified_drafts,
            vocabulary=options.vocabulary,
            delta=options.deltas[-1],
            rounds=options.rounds,
            device=options.device,
        )
    if options.what in ("decoding", "all"):
        target, draft, ids = _models(options)
        yield from bench_decoding(
            target,
            draft,
            ids,
            deltas=options.deltas,
            num_draft_tokens=options.drafts,
            tokens=options.tokens,
            temperature=options.temperature,
            rounds=options.rounds,
            transformers=options.transformers,
            compile=options.compile,
        )


def _models(options: SimpleNamespace) -> tuple[Any, Any, list[int]]:
    if options.config is None:
        pair = load_pair(options.pair, device=options.device, dtype=options.dtype)
        return pair.target, pair.draft, chat_ids(pair.tokenizer, options.prompt)
    target, draft = random_pair(
        options.config,
        options.draft_config or options.config,
        agreement=options.agreement,
        device=options.device,
        dtype=chosen_dtype(options.dtype, device=options.device),
    )
    return target, draft, list(range(options.prompt_tokens))


def _machine(options: SimpleNamespace) -> dict[str, Any]:
    return {
        "name": "machine",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": (torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu"),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "options": {name: value for name, value in vars(options).items() if name != "what"},
    }
