"""``cactus record``: distributions of a pair, to explore without its models."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from cactus_runtime.cli.decode import PAIRS
from cactus_runtime.cli.files import Output, read_text


@click.command()
@click.argument("prompts", nargs=-1)
@click.option("-o", "--output", type=Output(), required=True, help="The file to write.")
@click.option(
    "--file", type=click.File(encoding="utf-8"), help="Prompts, one per line; - is stdin."
)
@click.option(
    "--pair",
    type=click.Choice(PAIRS),
    default="tiny",
    show_default=True,
    help="Bundled pair of models.",
)
@click.option("--device", default="cpu", show_default=True, help="Device of the models.")
@click.option("--tokens", default=12, show_default=True, help="Positions per prompt.")
@click.option("--temperature", default=0.7, show_default=True, help="Temperature of both models.")
@click.option("--top-k", type=int, help="Keep the k most probable tokens.")
@click.option(
    "--top-p", default=1.0, show_default=True, help="Keep the most probable tokens up to this mass."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the texts.")
@click.option(
    "--tolerance", default=1e-5, show_default=True, help="Largest mass, and KL in nats, to merge."
)
def record(
    prompts: tuple[str, ...],
    output: Path,
    file: TextIO | None,
    pair: str,
    device: str,
    tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int,
    tolerance: float,
) -> None:
    """Let the target continue PROMPTS, and record draft and target at every token.

    A distribution's most probable tokens are kept; the rest, at most --tolerance of either
    distribution, is merged into three. `cactus curve FILE` reports how much that can change a
    curve. Without prompts, those of the recording that comes with cactus are used, which this
    command made:

    \b
      cactus record --pair tiny -o tiny.npz
    """
    if prompts and file is not None:
        raise click.UsageError("give prompts as arguments or as --file, not both")
    if file is not None:
        prompts = tuple(line for line in read_text(file).split("\n") if line)
    from cactus_runtime import SamplingParams, load_pair
    from cactus_runtime.recording import PROMPTS, record_distributions

    laws = record_distributions(
        load_pair(pair, device=device, dtype="float32"),
        prompts if file is not None else prompts or PROMPTS,
        tokens=tokens,
        sampling=SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p),
        seed=seed,
        tolerance=tolerance,
        name=pair,
    )
    laws.save(output)
    click.echo(f"wrote {output}: {len(laws)} positions, {output.stat().st_size:,} bytes", err=True)
