"""``cactus demo``: a pair decodes a prompt under a rule, by speculative sampling, and plainly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click

from cactus_runtime.cli.decode import DTYPES, INTERRUPTED, PAIRS
from cactus_runtime.cli.rule_options import rule_options
from cactus_theory.rules import Rule, SpeculativeSampling


@click.command(context_settings={"show_default": True})
@click.argument("prompt", default="Why is the sky blue?")
@click.option("--pair", type=click.Choice(PAIRS), default="smollm2", help="Bundled pair of models.")
@click.option(
    "--drafts",
    type=click.IntRange(1),
    help="Drafted tokens per target pass; default what should be fastest on this machine.",
)
@click.option("--dtype", type=click.Choice(DTYPES), default="auto", help="Type of the weights.")
@click.option("--temperature", default=0.7, help="Temperature of both models.")
@click.option("--tokens", default=96, help="Maximum number of tokens.")
@click.option("--seed", default=1, help="Makes a run with --drafts repeatable.")
@rule_options
def demo(**given: Any) -> int:
    """Decode PROMPT under a rule, then plainly and by speculative sampling, and compare.

    Before that, the passes of both models are timed, and each rule drafts as many tokens as should
    be fastest on this machine; one token where that is none.

    \b
    Example: cactus demo "river:" --pair tiny
    """
    from rich.console import Console

    from cactus_runtime import Decoder, Decoding, Request, SamplingParams
    from cactus_runtime.bench.draft_plan import plan_costs, plan_drafts
    from cactus_runtime.result.terminal import colour, comparison, legend

    options = SimpleNamespace(**given)
    console = Console(highlight=False)
    with console.status(f"loading the pair {options.pair}"):
        decoder = Decoder(options.pair, dtype=options.dtype)
    chat = getattr(decoder.tokenizer, "chat_template", None)
    prompt = [{"role": "user", "content": options.prompt}] if chat else options.prompt

    def asked(rule: Rule, num_draft_tokens: int, tokens: int = options.tokens) -> Request:
        return Request(
            prompt,
            rule=rule,
            num_draft_tokens=num_draft_tokens,
            sampling=SamplingParams(temperature=options.temperature),
            max_new_tokens=tokens,
            seed=options.seed,
        )

    def stream(*request: Any) -> Decoding:
        return decoder.stream(asked(*request))

    chosen, lossless = type(options.rule).__name__, "speculative sampling"
    rules: dict[str, Rule] = {lossless: SpeculativeSampling(), chosen: options.rule}
    drafts: dict[str, int] = dict.fromkeys(rules, options.drafts or 1)
    if options.drafts is None:
        with console.status("timing the models"):
            costs = plan_costs(decoder)
        for name, rule in rules.items():
            with console.status(f"trying {name}"):
                plan = plan_drafts(decoder, asked(rule, 1), costs)
            drafts[name] = max(plan.num_draft_tokens, 1)
            console.print(f"[dim]{name}: {plan}[/dim]", soft_wrap=True)
    else:
        with console.status("warming up"):  # so that the first decode is not slower
            stream(options.rule, options.drafts, 8).finish()
    console.print(f"[dim]{options.prompt}[/dim] (decoded under {options.rule})")
    if console.is_terminal:
        console.print("[dim]tokens:[/dim]", legend())
    result = stream(options.rule, drafts[chosen]).finish(
        lambda token: console.print(colour(token), end="", soft_wrap=True)
    )
    ending = " ..." if result.finish_reason == "length" else ""
    console.print(f"{ending}\n")
    results = {}
    for name, rule, count in (
        ("plain", SpeculativeSampling(), 0),
        (lossless, SpeculativeSampling(), drafts[lossless]),
    ):
        with console.status(f"decoding again: {name}"):
            results[name] = stream(rule, count).finish()
        if results[name].finish_reason == "interrupted":
            return INTERRUPTED
    results[chosen] = result
    console.print(comparison(results))
    for name in (lossless, chosen):
        ratio = results[name].tokens_per_second / results["plain"].tokens_per_second
        count = f"{drafts[name]} drafted token{'s' * (drafts[name] > 1)} per pass"
        console.print(f"{name} ({count}): {ratio:.2f} times the speed of plain decoding")
    console.print(f"[dim]models: {result.dtypes}[/dim]")
    return 0
