"""``cactus audit``: is a sampler what it is said to be, by its transcripts?"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from cactus_runtime.cli.decode import DTYPES, PAIRS
from cactus_runtime.cli.files import Output, read_text
from cactus_runtime.result.strict_json import strict_json

if TYPE_CHECKING:
    from cactus_theory.testing import Audit

CONSISTENT, ACCUSED, UNDECIDED = 0, 1, 3
PROMPTS = ("dog:", "kindness:", "river:", "to run:", "music:", "bright:", "teacher:", "winter:")


@click.command()
@click.argument("transcripts", type=click.File(encoding="utf-8"), required=False)
@click.option("--pair", type=click.Choice(PAIRS), help="Bundled pair: its target and its draft.")
@click.option("--target", help="A folder or hub name: what the sampler is said to sample from.")
@click.option("--draft", help="A smaller model of the same tokenizer, to compare lossy rules.")
@click.option("--device", help="Device of the models; default cpu.")
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="Type of the weights; default float32 for a pair, else that of the checkpoint.",
)
@click.option("--server", metavar="URL", help="An OpenAI-compatible server to ask for transcripts.")
@click.option("--model", help="The name under which it serves the target.")
@click.option("--prompts", type=click.File(encoding="utf-8"), help="Prompts, one per line.")
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Completions of each prompt.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Maximum length of a completion; with --drafts also that of TRANSCRIPTS.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Requests at a time.",
)
@click.option(
    "-o", "--output", type=Output(), help="Append transcripts here; resumes if it exists."
)
@click.option("--temperature", default=1.0, show_default=True)
@click.option("--top-k", type=int, help="Keep the k most probable tokens.")
@click.option("--top-p", default=1.0, show_default=True)
@click.option("--min-p", default=0.0, show_default=True)
@click.option("--repetition-penalty", default=1.0, show_default=True)
@click.option("--presence-penalty", default=0.0, show_default=True)
@click.option("--frequency-penalty", default=0.0, show_default=True)
@click.option("--claim", help="The lossy rule it is said to follow: cactus:delta=0.1.")
@click.option("--drafts", type=int, help="Drafted tokens per block, if they are known and fixed.")
@click.option("--level", default=1e-6, show_default=True, help="Chance of ever accusing wrongly.")
@click.option(
    "--tolerance",
    default="measure",
    show_default=True,
    help="Nats per token allowed for rounding; measure compares the target in bfloat16.",
)
@click.option("--detect", help="A rule that the audit must be able to tell: cactus:delta=0.1.")
@click.option("--power", default=0.9, show_default=True, help="With which chance, for --detect.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--html", type=Output(), help="Write an HTML page with the curve of the evidence.")
def audit(transcripts: TextIO | None, **options: Any) -> int:
    """Test whether TRANSCRIPTS were sampled from the target, with the given parameters.

    A line of TRANSCRIPTS is a JSON object with prompt or prompt_ids, and token_ids or text. With
    --server the command asks for them. The test holds at its level however many tokens are read.

    \b
    Exit status:
      0    consistent with the target (or with --claim)
      1    not consistent, at the level asked
      2    bad usage or bad input, unreachable server, wrong model
      3    consistent, but too few tokens to have seen what --detect names
      130  interrupted; with --output the next run goes on from there

    \b
    Examples:
      cactus audit texts.jsonl --pair tiny --temperature 0.7
      cactus audit --server http://localhost:8000 --model NAME --target NAME -o texts.jsonl
    """
    if (options["pair"] is None) == (options["target"] is None):
        raise click.UsageError("give the target as --pair or as --target")
    if (transcripts is None) == (options["server"] is None):
        raise click.UsageError("give TRANSCRIPTS or --server")
    if options["temperature"] == 0:
        raise ValueError(
            "temperature must be > 0, got 0: a greedy transcript has no distribution to test"
        )
    from cactus_theory.rules.parsing import rule_from

    claim = None if options["claim"] is None else rule_from(options["claim"])
    detect = None if options["detect"] is None else rule_from(options["detect"])
    if (claim or detect) is not None and options["pair"] is None and options["draft"] is None:
        raise click.UsageError("--claim and --detect need --draft: rules read both models")
    if transcripts is None:
        told = _asked(options)
    else:
        _refuse_options_of_a_server(options, claim)
        from cactus_runtime.audit.transcripts import read_transcripts

        told = read_transcripts(read_text(transcripts).split("\n"))
    return _judged(told, options, claim, detect)


def _given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


def _refuse_options_of_a_server(options: dict[str, Any], claim: Any) -> None:
    """TRANSCRIPTS exist already; only their longest length matters, to a claim about blocks."""
    wanted = {"model", "prompts", "samples", "concurrency", "output"}
    if options["drafts"] is None:
        wanted.add("tokens")
    for name in sorted(filter(_given, wanted)):
        raise click.UsageError(f"--{name} needs --server, as TRANSCRIPTS exist already")
    if claim is not None and options["drafts"] is not None and not _given("tokens"):
        raise click.UsageError(
            "--claim with --drafts needs --tokens, the maximum length that TRANSCRIPTS were "
            "sampled with, which shortens the last block of a text"
        )


def _asked(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Transcripts of the server, those of an earlier run first."""
    from cactus_runtime.audit.server import check_model, completions
    from cactus_runtime.audit.transcripts import read_transcripts

    if options["model"] is None:
        raise click.UsageError("--server needs --model")
    check_model(options["server"], options["model"])
    given = options["prompts"]
    prompts = PROMPTS if given is None else [x for x in read_text(given).split("\n") if x]
    wanted = [(p, seed) for seed in range(options["samples"]) for p in prompts]
    output: Path | None = options["output"]
    known = []
    if output is not None and output.exists():
        known = read_transcripts(output.read_text(encoding="utf-8").split("\n"))
    done = {(found["prompt"], found.get("seed")) for found in known if "prompt" in found}
    missing = [one for one in wanted if one not in done]
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    names = (*names, "presence_penalty", "frequency_penalty")
    settings = {name: options[name] for name in names if options[name] is not None}
    settings["max_tokens"] = options["tokens"]
    asked = {"model": options["model"], **settings}
    for found in known:
        if found.get("asked") != asked:
            raise ValueError(
                f"output must hold transcripts asked with {asked}, to be resumed, got "
                f"{found.get('asked')}; name another file"
            )
    answers = completions(
        options["server"],
        options["model"],
        missing,
        settings,
        concurrency=options["concurrency"],
    )
    with click.progressbar(answers, length=len(missing), label="asking", file=sys.stderr) as bar:
        for found in bar:
            found["asked"] = asked
            known.append(found)
            if output is not None:
                with output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
    return known


def _judged(told: list[dict[str, Any]], options: dict[str, Any], claim: Any, detect: Any) -> int:
    from cactus_runtime.audit.judging import audit_samples, tokens_for, tolerance_of
    from cactus_runtime.audit.report import audit_page, record
    from cactus_runtime.audit.scoring import Scorer
    from cactus_runtime.audit.transcripts import prepare
    from cactus_runtime.loading import eos_token_ids, resolve
    from cactus_runtime.models.kv_cache import vocabulary_size
    from cactus_runtime.sampling import SamplingParams

    names = ("temperature", "top_k", "top_p", "min_p")
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    sampling = SamplingParams(**{name: options[name] for name in (*names, *penalties)})
    measured = options["tolerance"] == "measure"
    tolerance = 0.0 if measured else _number(options["tolerance"])
    source = options["target"] or options["pair"]
    dtype = options["dtype"] or ("float32" if options["pair"] else None)
    target, draft, tokenizer = resolve(source, options["draft"], None, options["device"], dtype)
    assert tokenizer is not None
    ready = prepare(told, tokenizer, vocabulary=vocabulary_size(target))
    if not ready.samples:
        raise ValueError(
            f"transcripts must hold a sample whose ids are certain, got none of {len(told)}"
            f"{_reasons(ready.dropped)}"
        )
    settings = {
        "sampling": sampling,
        "eos_token_ids": eos_token_ids(target, tokenizer, None),
        "edge": measured or tolerance > 0,
    }
    scorer = Scorer(target, draft=draft, **settings)
    known = options["drafts"] is not None and (options["server"] or _given("tokens"))
    longest = options["tokens"] if known else None
    if measured:
        tolerance = tolerance_of(ready.samples, target, scorer, draft=draft, **settings)
    with click.progressbar(length=len(ready.samples), label="scoring", file=sys.stderr) as bar:
        found, first = audit_samples(
            ready.samples,
            scorer,
            rule=claim,
            num_draft_tokens=options["drafts"],
            max_new_tokens=longest,
            level=options["level"],
            tolerance=tolerance,
            on_sample=lambda: bar.update(1),
        )
    demands = {"level": options["level"], "power": options["power"], "tolerance": tolerance}
    needed = None if detect is None else tokens_for(detect, first, **demands)
    status, verdict = _verdict(found, needed, options, claim)
    if options["as_json"]:
        click.echo(strict_json(record(found, verdict, ready.dropped) | {"exit_status": status}))
    else:
        click.echo(f"{verdict}\n{found}{_reasons(ready.dropped)}")
    if options["html"] is not None:
        figures = _figures(found, ready.dropped)
        options["html"].write_text(audit_page(found, verdict, figures), encoding="utf-8")
        click.echo(f"wrote {options['html']}", err=True)
    return status


def _verdict(
    found: Audit, needed: float | None, options: dict[str, Any], claim: Any
) -> tuple[int, str]:
    null = f"{claim}" if claim is not None else "the target"
    if not found.consistent:
        names = [] if found.likely is None else [found.likely.name, *found.alike]
        looks = f"; it looks like {' or '.join(names)}" if names else ""
        return ACCUSED, f"not consistent with {null} at level {options['level']:g}{looks}"
    if needed is not None and found.tokens < needed:
        return UNDECIDED, (
            f"undecided: {found.tokens} tokens are too few to tell {options['detect']} with power "
            f"{options['power']:g}; it takes {needed:.0f}"
        )
    return CONSISTENT, f"consistent with {null} at level {options['level']:g}"


def _figures(found: Audit, dropped: Counter[str]) -> dict[str, str]:
    shown = {
        "tokens": f"{found.tokens}",
        "decided after": "never" if found.decided_after is None else f"{found.decided_after}",
        "p-value": f"{found.p_value:.3g}",
        "tolerance": f"{found.tolerance:.3g} nats per token",
        "samples dropped": f"{dropped.total()}",
    }
    if found.surprise is not None:
        shown["surprise z"] = f"{found.surprise:+.2f}"
    if found.uniformity_p is not None:
        shown["uniformity p"] = f"{found.uniformity_p:.3g}"
    if found.likely is not None:
        best = found.likely
        interval = f"[{best.low:.4f}, {best.high:.4f}]"
        shown["most likely"] = f"{best.name}: {best.rate:.4f} nats per token {interval}"
    return shown


def _reasons(dropped: Counter[str]) -> str:
    return "".join(f"; {count} dropped: {reason}" for reason, count in dropped.items())


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(
            f"tolerance must be a number of nats or 'measure', got {value!r}"
        ) from None
