"""IFEval under many rules: answers, results and a picture in one folder, which can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from transformers import PreTrainedModel

from benchmarks.quality.answers import Settings, answers_to, write_answers
from benchmarks.quality.arms import PLAIN, Arm, all_arms, place
from benchmarks.quality.ifeval import ifeval_checks, load_prompts
from benchmarks.quality.layers import dropped_layers, without_layers
from benchmarks.quality.picture import METRIC
from benchmarks.quality.picture import quality as draw_quality
from benchmarks.quality.summary import summarise
from benchmarks.quality.table import table
from cactus_runtime.bench.models import chat_ids
from cactus_runtime.cli.lists import budgets
from cactus_runtime.decoder import Decoder
from cactus_runtime.pairs import Pair
from cactus_runtime.recording import record_distributions
from cactus_runtime.result.strict_json import strict_json
from cactus_runtime.sampling import SamplingParams
from cactus_theory._validate import LARGEST_BUDGET
from cactus_theory.recording import load_recording

_RECORDED_PROMPTS, _RECORDED_TOKENS = 16, 24
_FREE = ("folder", "prompts", "limit", "batch_size", "device", "report")  # may differ on resuming

_METRICS = {
    "prompt_level_strict_acc": "prompts, strict",
    "inst_level_strict_acc": "instructions, strict",
    METRIC: "instructions, loose",
}
_COSTS = ("acceptance_rate", "block_efficiency", "total_variation_per_token")
_COSTS += ("kl_bound_per_token", "tokens_per_answer", "cut_short")
_POSITIVE = click.IntRange(1)


@click.command(context_settings={"show_default": True})
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--prompts", type=click.Path(path_type=Path), help="IFEval's, as JSON lines.")
@click.option("--limit", type=_POSITIVE, help="The first prompts only; may grow.")
@click.option("--report", is_flag=True, help="Decode nothing, report what there is.")
@click.option("--target", default="smollm2", help="A bundled pair, a folder or a hub name.")
@click.option("--draft", help="A folder or hub name; default the pair's own.")
@click.option("--drop-layers", type=dropped_layers(), help="Draft: the target less these layers.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="Default as loaded.")
@click.option("--device", default="cpu", help="cpu or cuda.")
@click.option("--drafts", type=_POSITIVE, default=4, help="Drafted tokens per target pass.")
@click.option("--max-new-tokens", type=_POSITIVE, default=1280, help="Of an answer.")
@click.option("--temperature", default=0.6, help="Of both models.")
@click.option("--top-p", default=0.95, help="Of both models.")
@click.option("--top-k", default=20, help="Of both models.")
@click.option("--deltas", type=budgets(), default="0.01,0.1,0.5,0.75,1,10", help="Nats.")
@click.option(
    "--match",
    default=1.0,
    help="Delta of the Cactus whose acceptance is matched.",
)
@click.option("--seed", default=1, help="Of all answers.")
@click.option("--batch-size", type=_POSITIVE, default=16, help="Answers decoded together.")
def ifeval(**given: Any) -> int:
    """Answer IFEval's prompts by many rules, and check the answers with lm_eval.

    Plain decoding, speculative sampling, Cactus, and rules that accept as much as one Cactus.
    FOLDER keeps answers, results and a picture. Ctrl-C, or a fall of the machine, loses the answers
    under way only: the same command goes on.

    \b
    Example: python -m benchmarks.quality ifeval runs/smollm2 --limit 8
    """
    options = SimpleNamespace(**given)
    if not 0 <= options.match <= LARGEST_BUDGET:
        raise ValueError(f"match must be in [0, {LARGEST_BUDGET:g}] nats, got {options.match}")
    try:
        _run(options)
    except KeyboardInterrupt:
        click.echo("interrupted; the same command goes on", err=True)
        return 130
    return 0


def _run(options: SimpleNamespace) -> None:
    checks = ifeval_checks()
    prompts = load_prompts(options.prompts)[: options.limit]
    folder: Path = options.folder
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder must be a folder or new, got the file {folder}")
    answers = folder / "answers.jsonl"
    if _has_answers(answers):
        check_settings(folder / "settings.json", _settings(options))
    if not options.report:
        _answer(answers, prompts, options)
    by_key = {prompt["key"]: prompt for prompt in prompts}
    lines = sorted(answers_to(prompts, answers), key=lambda line: place(line["arm"]))
    summary = summarise(
        lines, lambda line: checks(by_key[line["key"]], line["answer"]), baseline=PLAIN
    )
    result = strict_json({"settings": _settings(options), **summary}, indent=1)
    (folder / "results.json").write_text(result + "\n", encoding="utf-8")
    left, _ = draw_quality(summary)
    left.figure.savefig(folder / "results.png", dpi=150)
    click.echo(table(summary, _METRICS, _COSTS))


def _answer(path: Path, prompts: Sequence[Mapping[str, Any]], options: SimpleNamespace) -> None:
    decoder = load_decoder(options)
    sampling = SamplingParams(
        temperature=options.temperature, top_k=options.top_k, top_p=options.top_p
    )
    settings = Settings(options.drafts, options.max_new_tokens, sampling, options.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    arms = _arms(path.with_name("laws.npz"), decoder, prompts, sampling, options)
    asked = strict_json(_settings(options), indent=1)
    path.with_name("settings.json").write_text(asked + "\n", encoding="utf-8")
    write_answers(path, decoder, prompts, arms, settings, batch_size=options.batch_size)


def load_decoder(options: SimpleNamespace) -> Decoder:
    """Models by the options target, draft, drop_layers, dtype and device."""
    loaded = Decoder(
        options.target, draft=options.draft, device=options.device, dtype=options.dtype
    )
    target, draft = loaded.target, loaded.draft
    if options.drop_layers:
        draft = without_layers(target, options.drop_layers)
    if not isinstance(draft, PreTrainedModel):
        raise ValueError(f"draft must be a model, or layers be dropped, got {options.draft!r}")
    return Decoder(target, draft=draft, tokenizer=loaded.tokenizer)


def _arms(
    path: Path,
    decoder: Decoder,
    prompts: Sequence[Mapping[str, Any]],
    sampling: SamplingParams,
    options: SimpleNamespace,
) -> dict[str, Arm]:
    """The arms, by laws recorded once and then read from the file, so that they stay the same."""
    if not path.exists() or not _has_answers(path.with_name("answers.jsonl")):
        tokenizer: Any = decoder.tokenizer
        draft: Any = decoder.draft
        read = [chat_ids(tokenizer, prompt["prompt"]) for prompt in prompts[:_RECORDED_PROMPTS]]
        pair = Pair(decoder.target, draft, tokenizer)
        record_distributions(
            pair, read, tokens=_RECORDED_TOKENS, sampling=sampling, seed=options.seed
        ).save(path)
    return all_arms(options.deltas, matched=options.match, laws=load_recording(path))


def _settings(options: SimpleNamespace) -> dict[str, Any]:
    kept = {name: value for name, value in vars(options).items() if name not in _FREE}
    return json.loads(strict_json(kept))  # as it is read back


def _has_answers(path: Path) -> bool:
    """Whether there is anything that binds the next run."""
    return path.exists() and path.stat().st_size > 0


def check_settings(path: Path, asked: Mapping[str, Any]) -> None:
    """Results of unlike settings do not belong in one file."""
    try:
        held = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} must hold the settings of its run: {error}") from error
    wrong = [name for name in asked if held.get(name) != asked[name]]
    if wrong:
        told = ", ".join(f"{name}={held.get(name)!r} (not {asked[name]!r})" for name in wrong)
        raise ValueError(f"{path.parent} holds results with {told}; name another folder")
