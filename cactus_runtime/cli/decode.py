"""``cactus decode``: a prompt in, text and its ledger out."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from cactus_runtime.cli.files import Output, read_text
from cactus_runtime.cli.rule_options import rule_options
from cactus_runtime.result.strict_json import strict_json
from cactus_theory.rules import BetweenMarkers, Rule

if TYPE_CHECKING:
    from cactus_runtime.result.result import DecodeResult
    from cactus_runtime.result.trace import Token

# Repeated here, for help and completion without model code.
PAIRS = ("smollm2", "tiny")
DTYPES = ("auto", "float32", "bfloat16", "float16")
INTERRUPTED = 130


@click.command()
@click.argument("prompt", required=False)
@click.option("--file", type=click.File(encoding="utf-8"), help="Read the prompt; - is stdin.")
@click.option(
    "--pair",
    type=click.Choice(PAIRS),
    default="smollm2",
    show_default=True,
    help="Bundled pair of models.",
)
@click.option("--target", help="A folder or hub name instead of a pair.")
@click.option("--draft", help="A smaller model of the same tokenizer, for --target.")
@click.option("--device", help="Device for models named by --target; default cpu.")
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="Type of the weights; default auto for a pair, else that of the checkpoint.",
)
@click.option("--compile", is_flag=True, help="Compile the models' passes first, for the CPU.")
@rule_options
@click.option(
    "--between",
    nargs=2,
    metavar="START END",
    help="Use the rule between these markers only, and plain speculative sampling elsewhere.",
)
@click.option("--drafts", default=2, show_default=True, help="Drafted tokens per target pass.")
@click.option("--tokens", default=96, show_default=True, help="Maximum number of tokens.")
@click.option("--temperature", default=0.7, show_default=True, help="Temperature of both models.")
@click.option("--top-k", type=int, help="Keep the k most probable tokens.")
@click.option(
    "--top-p", default=1.0, show_default=True, help="Keep the most probable tokens up to this mass."
)
@click.option("--seed", type=int, help="Makes a run repeatable.")
@click.option("--max-kl", default=float("inf"), help="KL budget of the whole text, in nats.")
@click.option("--max-tv", default=float("inf"), help="Total variation budget of the text.")
@click.option(
    "--verification",
    type=click.Choice(("token", "block")),
    default="token",
    show_default=True,
    help="Verify drafts one by one, or a block together.",
)
@click.option(
    "--emitted-logprobs", is_flag=True, help="Record what each token was really drawn from."
)
@click.option("--ledger/--no-ledger", default=True, help="Whether to account for the rule's cost.")
@click.option("--raw", is_flag=True, help="Do not apply the chat template.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object; null means infinite or undefined.",
)
@click.option("--html", type=Output(), help="Write an HTML page.")
@click.option("--quiet", is_flag=True, help="Do not print the ledger on stderr.")
def decode(
    prompt: str | None,
    file: TextIO | None,
    pair: str,
    target: str | None,
    draft: str | None,
    device: str | None,
    dtype: str | None,
    compile: bool,
    rule: Rule,
    between: tuple[str, str] | None,
    drafts: int,
    tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int | None,
    max_kl: float,
    max_tv: float,
    verification: Literal["token", "block"],
    emitted_logprobs: bool,
    ledger: bool,
    raw: bool,
    as_json: bool,
    html: Path | None,
    quiet: bool,
) -> int:
    """Decode PROMPT, stream the text, and report what it cost.

    The prompt is the argument, --file, or standard input. Text goes to stdout (coloured by origin
    on a terminal), the ledger to stderr. Ctrl-C ends the text early: what was decoded is reported,
    and the exit status is 130.

    \b
    Examples:
      cactus decode "Why is the sky blue?"
      cactus decode "dog:" --pair tiny --rule clamp --epsilon 0.05
      echo "river:" | cactus decode --pair tiny --delta 0.5 --html page.html
      cactus decode "dog:" --pair tiny --max-kl 1 --json | jq .total_variation
    """
    if draft is not None and target is None:
        raise click.UsageError("--draft needs --target; a pair has its own draft")
    text = _prompt(prompt, file)
    from rich.console import Console

    from cactus_runtime import Decoder, Request, SamplingParams, html_page
    from cactus_runtime.result.terminal import colour

    request = Request(
        text,
        rule=BetweenMarkers(rule, *between) if between else rule,
        num_draft_tokens=drafts,
        sampling=SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p),
        max_new_tokens=tokens,
        seed=seed,
        max_kl=max_kl,
        max_total_variation=max_tv,
        verification=verification,
        emitted_logprobs=emitted_logprobs,
        ledger=ledger,
    )
    decoder = Decoder(target or pair, draft=draft, device=device, dtype=dtype, compile=compile)
    if getattr(decoder.tokenizer, "chat_template", None) and not raw:
        request = dataclasses.replace(request, prompt=[{"role": "user", "content": text}])
    console = Console(highlight=False)
    result = decoder.stream(request).finish(
        None if as_json else lambda token: console.print(colour(token), end="", soft_wrap=True)
    )
    click.echo(strict_json(record(result)) if as_json else "")
    if not quiet and not as_json:
        click.echo(f"\n{result}", err=True)
    if html is not None:
        html.write_text(html_page(result), encoding="utf-8")
        click.echo(f"wrote {html}", err=True)
    return INTERRUPTED if result.finish_reason == "interrupted" else 0


def record(result: DecodeResult) -> dict[str, Any]:
    """What ``--json`` prints for a result, as data for `strict_json`.

    Parameters
    ----------
    result : DecodeResult

    Returns
    -------
    dict

    Examples
    --------
    >>> from cactus_runtime import decode
    >>> data = record(decode("tiny", "dog:", max_new_tokens=3, seed=1))
    >>> len(data["tokens"]), sorted(data["tokens"][0])
    (3, ['id', 'logprob', 'origin', 'text', 'verdict'])
    """
    logs = ("emitted_logprob", "warped_logprob", "log_weight")
    sums = result.sums()
    return {
        "text": result.text,
        "rule": f"{result.rule}",
        "seed": result.seed,
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "acceptance_rate": result.acceptance_rate if result.accounted else None,
        "block_efficiency": result.block_efficiency,
        "total_variation": sums["total_variation"],
        "kl_bound_nats": sums["kl_bound"],
        "tokens_per_second": result.tokens_per_second,
        "dtype": result.dtypes.target,
        "draft_dtype": result.dtypes.draft,
        "compile_seconds": result.seconds.compilation,
        "warnings": list(result.warnings),
        **{name: sums[name] for name in logs if name in sums},
        "tokens": [_shown(token) for token in result.trace],
    }


def _shown(token: Token) -> dict[str, Any]:
    """A token as data, without what was not asked for."""
    fields = dataclasses.asdict(token)
    if token.emitted_logprob is None:
        del fields["emitted_logprob"], fields["warped_logprob"]
    return fields


def _prompt(argument: str | None, file: TextIO | None) -> str:
    if argument is not None and file is not None:
        raise click.UsageError("give the prompt as an argument or as --file, not both")
    if argument is not None:
        return argument
    if file is None and sys.stdin.isatty():
        raise click.UsageError("there is no prompt: give it as an argument, as --file, or pipe it")
    text = read_text(file or sys.stdin).removesuffix("\n")
    if not text:
        raise click.UsageError("the prompt is empty")
    return text
