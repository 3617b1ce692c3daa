"""Training of the tiny pair, from WordNet's files to the two folders beside this one.

Knows three things: how WordNet's data files become lines of text and lines become rows of
tokens; what the two models are and what each of them minimises; and how a run is cut and
taken up again so that the weights at its end do not depend on the cuts.

The target learns the text (cross-entropy). The draft then learns the target: first its law by
the Kullback-Leibler divergence, which finds the region, then by the total variation distance,
which is one minus the probability that plain speculative sampling accepts a draft token.

Every batch and every learning rate is a function of the seed and the step alone, so a
checkpoint needs no more than a step, the weights and the state of the optimizer.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import re
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from cactus_runtime.models.quiet import no_progress_bars
from cactus_runtime.pairs.tiny import load_model

END = "<|endoftext|>"
FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
HELD_OUT_EVERY = 50
console = Console()

Loss = Callable[[PreTrainedModel, torch.Tensor, float], torch.Tensor]


class TrainingError(RuntimeError):
    """A run that cannot start or go on; the message says what to do about it."""


class Interrupted(TrainingError):
    """A run cut on request, after its checkpoint was written."""


@dataclass(frozen=True)
class Shape:
    """The size of one Llama model, and the steps and the peak learning rate of its training."""

    layers: int
    hidden: int
    heads: int
    steps: int
    rate: float


@dataclass(frozen=True)
class Recipe:
    """All that the weights depend on, besides the corpus."""

    target: Shape = Shape(layers=4, hidden=192, heads=6, steps=3200, rate=3e-3)
    draft: Shape = Shape(layers=1, hidden=96, heads=3, steps=2500, rate=4e-3)
    vocabulary: int = 1024
    length: int = 256
    rows: int = 8
    seed: int = 0


def read_lines(corpus: Path) -> list[str]:
    """Read WordNet's data files as lines `lemma: gloss`, one per sense, in the files' order.

    Parameters
    ----------
    corpus
        The folder that holds `data.noun`, `data.verb`, `data.adj` and `data.adv`.

    Raises
    ------
    TrainingError
        If one of the files is missing.
    """
    missing = [name for name in FILES if not (corpus / name).is_file()]
    if missing:
        raise TrainingError(
            f"{corpus} has no {', '.join(missing)}. On Debian or Ubuntu run `apt-get install"
            " wordnet-base` and pass --corpus /usr/share/wordnet; elsewhere unpack WordNet 3.0"
            " from https://wordnet.princeton.edu/download and pass its folder `dict`."
        )
    texts = ((corpus / name).read_text(encoding="utf-8").splitlines() for name in FILES)
    return [sense(line) for text in texts for line in text if not line.startswith("  ")]


def sense(record: str) -> str:
    """Turn one record of a WordNet data file into the line the models learn.

    Examples
    --------
    >>> sense("02084071 05 n 02 hot_dog 0 weenie 0 000 | a frankfurter  ")
    'hot dog: a frankfurter'
    """
    head, gloss = record.split(" | ", 1)
    lemma = re.sub(r"\((a|p|ip)\)$", "", head.split()[4]).replace("_", " ")
    return f"{lemma}: {gloss.strip()}"


def learn_tokenizer(lines: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE tokenizer whose token 0 ends (and so also begins) a line."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
    )


def pack(lines: list[list[int]], length: int) -> torch.Tensor:
    """Lay tokenized lines end to end in rows; each row begins where a line begins.

    A line cut by the end of a row begins the next one again; what does not fill a row is left.

    Examples
    --------
    >>> pack([[1, 2, 0], [3, 4, 0], [5, 6, 0]], length=4).tolist()
    [[1, 2, 0, 3], [3, 4, 0, 5]]
    """
    rows, row = [], []
    for line in lines:
        row = row + line
        if len(row) >= length:
            rows.append(row[:length])
            row = line if len(row) > length else []
    if not rows:
        raise TrainingError(f"the corpus is too small: it fills no row of {length} tokens")
    return torch.tensor(rows)


def split(
    lines: list[str], tokenizer: PreTrainedTokenizerBase, recipe: Recipe
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows to train on and the held-out rows (one line in fifty)."""
    tokens = tokenizer([line + END for line in lines])["input_ids"]
    held_out = tokens[::HELD_OUT_EVERY]
    kept = [line for i, line in enumerate(tokens) if i % HELD_OUT_EVERY]
    random.Random(recipe.seed).shuffle(kept)
    random.Random(recipe.seed).shuffle(held_out)
    return pack(kept, recipe.length), pack(held_out, recipe.length)


@functools.lru_cache(maxsize=2)
def order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order in which an epoch visits the rows."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    return torch.randperm(count, generator=generator)


def batch(rows: torch.Tensor, count: int, step: int, seed: int) -> torch.Tensor:
    """Return the rows of one step: a function of the seed and the step alone."""
    places = range(step * count, (step + 1) * count)
    return rows[[int(order(len(rows), seed, i // len(rows))[i % len(rows)]) for i in places]]


def new_model(shape: Shape, recipe: Recipe) -> LlamaForCausalLM:
    """Return a Llama model with fresh weights drawn from the recipe's seed."""
    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.hidden * 8 // 3,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=recipe.length,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def logits_of(model: PreTrainedModel, rows: torch.Tensor) -> torch.Tensor:
    """Return the logits at all but the last position, as a (positions, vocabulary) matrix."""
    return model(input_ids=rows, use_cache=False).logits[:, :-1].flatten(0, 1).float()


def text_loss(model: PreTrainedModel, rows: torch.Tensor, _: float) -> torch.Tensor:
    """Cross-entropy of the text, in nats per token."""
    return F.cross_entropy(logits_of(model, rows), rows[:, 1:].flatten())


def imitation_loss(target: PreTrainedModel) -> Loss:
    """Divergence from the target's law: Kullback-Leibler in the first half, then variation."""

    def loss(model: PreTrainedModel, rows: torch.Tensor, done: float) -> torch.Tensor:
        with torch.no_grad():
            p = logits_of(target, rows).softmax(-1)
        logits = logits_of(model, rows)
        if done < 0.5:
            return F.kl_div(logits.log_softmax(-1), p, reduction="batchmean")
        return (p - logits.softmax(-1)).abs().sum(-1).mean() / 2

    return loss


@dataclass
class Run:
    """One training run: what to do, where to write, and the question whether to stop now."""

    recipe: Recipe
    lines: list[str]
    output: Path
    every: int = 200
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        """Name the checkpoint and the terms under which it may be taken up again."""
        self.path = self.output / "checkpoint.pt"
        self.terms = asdict(self.recipe) | {"text": zlib.crc32("\n".join(self.lines).encode())}

    def checkpoint(self) -> dict | None:
        """Read the checkpoint, or None where there is none yet."""
        if not self.path.exists():
            return None
        state = torch.load(self.path, weights_only=True)
        other = [name for name, value in self.terms.items() if state["terms"][name] != value]
        if other:
            raise TrainingError(
                f"{self.path} belongs to a run with another {', '.join(other)}. Repeat that"
                " run's settings and corpus, or choose another --output."
            )
        return state

    def keep(self, **state: object) -> None:
        """Write the checkpoint in one move, so that a crash leaves the one before it."""
        unfinished = self.path.with_suffix(".new")
        torch.save({"terms": self.terms, **state}, unfinished)
        os.replace(unfinished, self.path)

    def stage(self, name: str, rows: torch.Tensor, loss: Loss) -> LlamaForCausalLM:
        """Train one of the two models, from its checkpoint if there is one, and return it."""
        shape: Shape = getattr(self.recipe, name)
        model = new_model(shape, self.recipe).train()
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=shape.rate, betas=(0.9, 0.95), weight_decay=0.1
        )
        first, state = 0, self.checkpoint()
        if state and state["stage"] == name:
            first = state["step"]
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for step, report in progress(name, first, shape.steps):
            set_rate(optimizer, shape, step)
            picked = batch(rows, self.recipe.rows, step, self.recipe.seed)
            mean = loss(model, picked, step / shape.steps)
            optimizer.zero_grad()
            mean.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            report(mean.item())
            stopping, done = self.stop(), step + 1
            if stopping or done % self.every == 0 or done == shape.steps:
                weights, moments = model.state_dict(), optimizer.state_dict()
                self.keep(stage=name, step=done, model=weights, optimizer=moments)
                console.print(f"{name}, step {done}: loss {mean.item():.4f}, checkpoint kept")
            if stopping:
                raise Interrupted(f"stopped after step {done} of the {name}")
        return model


def progress(name: str, first: int, steps: int) -> Iterator[tuple[int, Callable[[float], None]]]:
    """Count the steps on a progress bar; the second of each pair reports the step's loss."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}, left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=steps, completed=first, loss=float("nan"))
        for step in range(first, steps):
            yield step, lambda loss: bar.update(task, advance=1, loss=loss)


def set_rate(optimizer: torch.optim.Optimizer, shape: Shape, step: int) -> None:
    """Set the learning rate of a step: a linear rise over the first 4%, then a linear fall."""
    rise = max(1, shape.steps // 25)
    factor = min((step + 1) / rise, (shape.steps - step) / (shape.steps - rise + 1))
    for group in optimizer.param_groups:
        group["lr"] = shape.rate * factor


@torch.no_grad()
def measure(
    target: PreTrainedModel, draft: PreTrainedModel, rows: torch.Tensor
) -> tuple[float, float, float]:
    """Return the acceptance of plain speculative sampling and both models' cross-entropies.

    The acceptance is the mean over the positions of `rows` of the sum over tokens of
    min(p, q), with p the draft's law and q the target's, both at temperature 1.
    """
    sums = torch.zeros(3, dtype=torch.float64)
    for some in rows.split(16):
        p, q = logits_of(draft, some), logits_of(target, some)
        accepted = torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1)
        labels = some[:, 1:].flatten()
        losses = (F.cross_entropy(logits, labels, reduction="none") for logits in (p, q))
        sums += torch.stack([value.double().sum() for value in (accepted, *losses)])
    acceptance, draft_loss, target_loss = (sums / rows[:, 1:].numel()).tolist()
    return acceptance, target_loss, draft_loss


def publish(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model in bfloat16, and its tokenizer, as a folder in the transformers format."""
    with no_progress_bars():
        model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(run: Run) -> tuple[float, float, float]:
    """Train the pair, or go on where the checkpoint stands, and return what `measure` finds.

    The folders `target` and `draft` appear in the run's output as each stage ends. The draft
    learns from the target as published, so its stage too can be taken up from the files alone.

    Raises
    ------
    Interrupted
        If the run was stopped; its checkpoint is written, and the same call goes on from it.
    TrainingError
        If the checkpoint in the output folder belongs to another recipe or corpus.
    """
    run.output.mkdir(parents=True, exist_ok=True)
    state = run.checkpoint()
    tokenizer = learn_tokenizer(run.lines, run.recipe.vocabulary)
    rows, held_out = split(run.lines, tokenizer, run.recipe)
    if not state or state["stage"] == "target":
        publish(run.stage("target", rows, text_loss), tokenizer, run.output / "target")
    target = load_model(run.output / "target")
    publish(run.stage("draft", rows, imitation_loss(target)), tokenizer, run.output / "draft")
    return measure(target, load_model(run.output / "draft"), held_out)


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
        prog="python -m cactus_runtime.pairs.tiny.train",
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
