"""``cactus record``: laws of a pair, for exploring without it."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from cactus_runtime.cli.decode import PAIRS
from cactus_runtime.cli.files import Output, read_text


@click.command()
@click.argument("prompts", nargs=-1)
@click.option("-o", "--output", type=Output(), required=True, help="The file to write.")
@click.option("--file", type=click.File(encoding="utf-8"), help="Prompts, one a line; - is stdin.")
@click.option("--pair", type=click.Choice(PAIRS), default="tiny", show_default=True, help="Models.")
@click.option("--device", default="cpu", show_default=True, help="Where the models are put.")
@click.option("--tokens", default=12, show_default=True, help="Positions per prompt.")
@click.option("--temperature", default=0.7, show_default=True, help="Of both models.")
@click.option("--top-k", type=int, help="Keep the k most probable tokens.")
@click.option("--top-p", default=1.0, show_default=True, help="Keep this mass of tokens.")
@click.option("--seed", default=0, show_default=True, help="Of the texts.")
@click.option(
    "--tolerance", default=1e-5, show_default=True, help="Most mass, and KL in nats, to merge."
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
    """Let the target continue PROMPTS, and record the laws of draft and target at every token.

    A law's most probable tokens are kept; the rest, at most --tolerance of either law, is merged
    into three. What that can move in a curve is told by `cactus curve FILE`. Without prompts,
    those of the file that comes with cactus are used, which this command made:

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
        load_pair(pair, device=device),
        prompts if file is not None else prompts or PROMPTS,
        tokens=tokens,
        sampling=SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p),
        seed=seed,
        tolerance=tolerance,
        name=pair,
    )
    laws.save(output)
    click.echo(f"wrote {output}: {len(laws)} positions, {output.stat().st_size:,} bytes", err=True)
