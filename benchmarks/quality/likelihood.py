"""How probable reference texts are under every arm: teacher-forced, without sampling noise.

One line of JSON for each document, with the sums of every arm; a run that was interrupted goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.quality.arms import MATCHED, Arm, all_arms
from benchmarks.quality.curve import draw, summarise, table
from benchmarks.quality.documents import Document, load_documents
from benchmarks.quality.layers import dropped_layers
from benchmarks.quality.run import check_settings, load_decoder
from cactus_runtime.cli.lists import budgets
from cactus_runtime.decoder import Decoder
from cactus_runtime.models.kv_cache import vocabulary_size
from cactus_runtime.models.positions import context_length
from cactus_runtime.result.strict_json import strict_json
from cactus_runtime.teacher_forcing import logits_of_text
from cactus_runtime.verification.emitted import emitted_rows
from cactus_theory import TokenProbabilities, prefix_log_likelihood
from cactus_theory.emitted import emission_of
from cactus_theory.recording import compress_distributions

_MATCHED_POSITIONS = 256  # of the first documents, over which acceptance is matched
_TOLERANCE = 1e-3  # of the distributions kept for that
_ROWS = 64  # positions whose rows are held at once
_SUMS = ("acceptance_rate", "total_variation", "kl", "excluded")


@click.command(context_settings={"show_default": True})
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("documents", type=click.Path(path_type=Path, exists=True))
@click.option("--limit", type=click.IntRange(1), help="The first documents only; may grow.")
@click.option("--target", default="tiny", help="A bundled pair, a folder or a hub name.")
@click.option("--draft", help="A folder or hub name; default the pair's own.")
@click.option("--drop-layers", type=dropped_layers(), help="Draft: the target less these layers.")
@click.option("--device", default="cpu", help="cpu or cuda.")
@click.option("--drafts", type=click.IntRange(1), default=4, help="Drafted tokens per target pass.")
@click.option("--deltas", type=budgets(), default="0.01,0.03,0.1,0.3,1,3", help="Nats.")
@click.option(
    "--match", type=budgets(), default="0.1,1", help="Deltas of Cactus whose acceptance is matched."
)
def likelihood(**given: Any) -> int:
    """Score reference texts under many rules: mean -log likelihood per token, in nats.

    DOCUMENTS is a file of questions and answers (GSM8K's), or WordNet's folder, of which the
    glosses held out from the pair tiny are read. Both models are sampled at temperature 1. FOLDER
    keeps the sums of each document, results and a picture; the same command goes on.

    \b
    Example: python -m benchmarks.quality likelihood runs/texts /usr/share/wordnet
    """
    options = SimpleNamespace(**given, dtype=None)
    try:
        _run(options)
    except KeyboardInterrupt:
        click.echo("interrupted; the same command goes on", err=True)
        return 130
    return 0


def _run(options: SimpleNamespace) -> None:
    decoder = load_decoder(options)
    found = _short_enough(decoder, load_documents(options.documents, decoder.tokenizer))
    documents = found[: options.limit]
    arms = _arms(decoder, documents, options)
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    kept = ("target", "draft", "drop_layers", "drafts", "deltas", "match")
    settings = {name: getattr(options, name) for name in kept}
    settings |= {"documents": options.documents.name, "digest": _digest(found)}
    settings |= {"rules": {name: str(arm.rule) for name, arm in arms.items()}}
    settings = json.loads(strict_json(settings))
    path = folder / "documents.jsonl"
    if path.exists() and path.stat().st_size:
        check_settings(folder / "settings.json", settings)
    (folder / "settings.json").write_text(strict_json(settings, indent=1), encoding="utf-8")
    _score(path, decoder, documents, arms, options.drafts)
    lines = [line for line in _lines(path) if line["document"] < len(documents)]
    summary = {"settings": settings, **summarise(lines)}
    result = strict_json(summary, indent=1)
    (folder / "results.json").write_text(result + "\n", encoding="utf-8")
    draw(summary).savefig(folder / "results.png", dpi=150)
    click.echo(table(summary))


def _digest(documents: Sequence[Document]) -> str:
    """By which a run knows its documents, the limit of their number aside."""
    return blake2b(json.dumps(documents).encode(), digest_size=8).hexdigest()


def _short_enough(decoder: Decoder, documents: Sequence[Document]) -> list[Document]:
    """The documents that fit the context of both models; says how many do not."""
    models: Any = (decoder.draft, decoder.target)
    lengths = [length for model in models if (length := context_length(model)) is not None]
    most = min(lengths, default=math.inf)
    found = [some for some in documents if len(some.prompt) + len(some.text) <= most]
    if len(found) < len(documents):
        left = len(documents) - len(found)
        click.echo(f"left out: {left} documents of more than {most} tokens", err=True)
    return found


def _arms(
    decoder: Decoder, documents: Sequence[Document], options: SimpleNamespace
) -> dict[str, Arm]:
    """Cactus at every delta, and each other family at the acceptance of some of them."""
    rows: list[tuple[torch.Tensor, torch.Tensor]] = []
    for document in documents:
        if sum(len(draft) for draft, _ in rows) >= _MATCHED_POSITIONS:
            break
        rows.append(rows_of(decoder, document))
    draft, target = (
        torch.cat(some)[:_MATCHED_POSITIONS].cpu().numpy() for some in zip(*rows, strict=True)
    )
    laws = compress_distributions(draft=draft, target=target, tolerance=_TOLERANCE)
    arms: dict[str, Arm] = {}
    for matched in options.match:
        found = all_arms(options.deltas, matched=matched, laws=laws)
        arms |= {f"{name} {matched:g}" if name in MATCHED else name: found[name] for name in found}
    return arms


def rows_of(decoder: Decoder, document: Document) -> tuple[torch.Tensor, torch.Tensor]:
    """p and q at every token of a document's text, shape (T, V) in float64."""
    width = vocabulary_size(decoder.target)
    models: tuple[Any, Any] = decoder.draft, decoder.target
    draft, target = (
        torch.cat(list(logits_of_text(model, document.prompt, document.text, width=width)))
        for model in models
    )
    return draft.softmax(-1, dtype=torch.float64), target.softmax(-1, dtype=torch.float64)


def score_document(
    decoder: Decoder, document: Document, arms: Mapping[str, Arm], num_draft_tokens: int
) -> dict[str, Any]:
    """-log likelihood of the text under each arm, and sums over its positions.

    Every position counts as verified in the sums of acceptance, total variation and KL(out || q).
    `excluded` counts the tokens of the text that the rule cannot emit where they are verified.
    """
    draft, target = rows_of(decoder, document)
    tokens = torch.tensor(document.text, device=target.device).unsqueeze(-1)
    p, q = (rows.gather(-1, tokens).squeeze(-1).cpu().numpy() for rows in (draft, target))
    found: dict[str, Any] = {}
    for name, arm in arms.items():
        parts = []
        for some in torch.arange(len(tokens), device=target.device).split(_ROWS):
            kept, out = emitted_rows(arm.rule, draft[some], target[some])
            cost = emission_of(kept, out, target[some], xp=torch)
            own = (rows.gather(-1, tokens[some]).squeeze(-1) for rows in (kept, out))
            parts.append(
                torch.stack([*own, cost.acceptance_rate, cost.total_variation, cost.kl_bound])
            )
        accepted, emitted, rate, variation, kl = torch.cat(parts, -1).cpu().numpy()
        probabilities = TokenProbabilities(
            arm.rule, np.array(len(tokens)), p, q, accepted, emitted, kl, variation,
            coverage=np.ones_like(q),
        )  # fmt: skip
        logs = prefix_log_likelihood(
            probabilities,
            num_draft_tokens=num_draft_tokens if arm.speculative else 0,
            max_new_tokens=None,
        )
        sums = (rate.sum(), variation.sum(), kl.sum(), (emitted == 0).sum())
        found[name] = {"loss": -float(logs[-1])}
        found[name] |= {key: float(value) for key, value in zip(_SUMS, sums, strict=True)}
    return {"tokens": len(tokens), "draft_loss": -float(np.log(p).sum()), "arms": found}


def _score(
    path: Path,
    decoder: Decoder,
    documents: Sequence[Document],
    arms: Mapping[str, Arm],
    num_draft_tokens: int,
) -> None:
    """Add to the file what is missing."""
    done = {line["document"] for line in _lines(path)}
    columns = (TextColumn("documents"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        path.open("a", encoding="utf-8") as file,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        if file.tell() and not path.read_bytes().endswith(b"\n"):
            file.write("\n")
        numbers = range(len(documents))
        for number in progress.track(numbers, description="documents"):
            if number not in done:
                scored = score_document(decoder, documents[number], arms, num_draft_tokens)
                file.write(strict_json({"document": number, **scored}) + "\n")
                file.flush()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(
                f"line {number} of {path} must be JSON; remove it if it was cut short"
            ) from error
