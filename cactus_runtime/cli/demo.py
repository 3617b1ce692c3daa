"""``cactus demo``: a pair decodes a prompt under a rule, by speculative sampling, and plainly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click

from cactus_runtime.cli.decode import PAIRS
from cactus_runtime.cli.rule_options import rule_options
from cactus_theory.rules import Rule, SpeculativeSampling


@click.command(context_settings={"show_default": True})
@click.argument("prompt", default="Why is the sky blue?")
@click.option("--pair", type=click.Choice(PAIRS), default="smollm2", help="Bundled pair of models.")
@click.option("--drafts", default=2, help="Drafted tokens per target pass.")
@click.option("--temperature", default=0.7, help="Temperature of both models.")
@click.option("--tokens", default=96, help="Maximum number of tokens.")
@click.option("--seed", default=1, help="Makes a run repeatable.")
@rule_options
def demo(**given: Any) -> int:
    """Decode PROMPT under a rule, then plainly and by speculative sampling, and compare.

    \b
    Example: cactus demo "river:" --pair tiny
    """
    from rich.console import Console

    from cactus_runtime import Decoder, Decoding, Request, SamplingParams
    from cactus_runtime.result.terminal import colour, comparison, legend

    options = SimpleNamespace(**given)
    console = Console(highlight=False)
    with console.status(f"loading the pair {options.pair}"):
        decoder = Decoder(options.pair)
    chat = getattr(decoder.tokenizer, "chat_template", None)
    prompt = [{"role": "user", "content": options.prompt}] if chat else options.prompt

    def stream(rule: Rule, num_draft_tokens: int, tokens: int = options.tokens) -> Decoding:
        return decoder.stream(
            Request(
                prompt,
                rule=rule,
                num_draft_tokens=num_draft_tokens,
                sampling=SamplingParams(temperature=options.temperature),
                max_new_tokens=tokens,
                seed=options.seed,
            )
        )

    with console.status("warming up"):  # so that the first decode is not slower
        stream(options.rule, options.drafts, 8).finish()
    console.print(f"[dim]{options.prompt}[/dim] (decoded under {options.rule})")
    if console.is_terminal:
        console.print("[dim]tokens:[/dim]", legend())
    result = stream(options.rule, options.drafts).finish(
        lambda token: console.print(colour(token), end="", soft_wrap=True)
    )
    ending = " ..." if result.finish_reason == "length" else ""
    console.print(f"{ending}\n")
    results = {}
    rules = {
        "plain": (SpeculativeSampling(), 0),
        "speculative sampling": (SpeculativeSampling(), options.drafts),
    }
    for name, (rule, drafts) in rules.items():
        with console.status(f"decoding again: {name}"):
            results[name] = stream(rule, drafts).finish()
        if results[name].finish_reason == "interrupted":
            return 130
    results[type(options.rule).__name__] = result
    console.print(comparison(results))
    return 0
