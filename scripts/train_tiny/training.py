"""The two models of the tiny pair, what each of them minimises, and a run that can be cut.

The target learns the text (cross-entropy). The draft then learns the target: first its distribution
by the Kullback-Leibler divergence, which finds the region, then by the total variation distance,
which is one minus the probability that plain speculative sampling accepts a draft token.

Every batch and every learning rate is a function of the seed and the step alone, so a
checkpoint needs no more than a step, the weights and the state of the optimizer. The weights at the
end of a run do not depend on where it was cut.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cactus_runtime.models.quiet import no_progress_bars
from cactus_runtime.pairs.tiny import load_model
from scripts.train_tiny.text import TrainingError, learn_tokenizer, split

console = Console()

Loss = Callable[[PreTrainedModel, torch.Tensor, float], torch.Tensor]


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
    rows, held_out = split(run.lines, tokenizer, length=run.recipe.length, seed=run.recipe.seed)
    if not state or state["stage"] == "target":
        publish(run.stage("target", rows, text_loss), tokenizer, run.output / "target")
    target = load_model(run.output / "target")
    publish(run.stage("draft", rows, imitation_loss(target)), tokenizer, run.output / "draft")
    return measure(target, load_model(run.output / "draft"), held_out)
