"""``python -m cactus_runtime.cli.demo``: a real pair decodes a prompt, with its account."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from cactus_runtime.decoder import Decoder, Decoding
from cactus_runtime.pairs import PAIRS
from cactus_runtime.request import Request
from cactus_runtime.result.terminal import colour, comparison, legend
from cactus_runtime.sampling import SamplingParams
from cactus_theory import Cactus, CandidateRule, SpeculativeSampling

PROMPT = "Why is the sky blue?"


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return _show(options)
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        parser.error(str(error))


def _show(options: argparse.Namespace) -> int:
    console = Console(highlight=False)
    with console.status(f"loading the pair {options.pair}"):
        decoder = Decoder(options.pair)
    chat = getattr(decoder.tokenizer, "chat_template", None)
    prompt = [{"role": "user", "content": options.prompt}] if chat else options.prompt

    def stream(
        rule: CandidateRule, num_draft_tokens: int, tokens: int = options.tokens
    ) -> Decoding:
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

    cactus = Cactus(options.delta)
    with console.status("warming up"):  # or the first decode would pay for it alone
        stream(cactus, options.drafts, 8).finish()
    console.print(f"[dim]{options.prompt}[/dim] (decoded under {cactus})")
    if console.is_terminal:
        console.print("[dim]tokens:[/dim]", legend())
    result = stream(cactus, options.drafts).finish(
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
    results[f"Cactus({options.delta:g})"] = result
    console.print(comparison(results))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cactus_runtime.cli.demo",
        description="Decode a prompt under Cactus, then plainly and by speculative sampling.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="text to continue or answer")
    parser.add_argument("--pair", choices=sorted(PAIRS), default="smollm2", help="models")
    parser.add_argument("--delta", type=float, default=0.1, help="budget of one candidate, nats")
    parser.add_argument("--drafts", type=int, default=2, help="drafted tokens per target pass")
    parser.add_argument("--temperature", type=float, default=0.7, help="of both models")
    parser.add_argument("--tokens", type=int, default=96, help="most tokens to decode")
    parser.add_argument("--seed", type=int, default=1, help="repeats a run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
