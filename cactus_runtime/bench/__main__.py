"""``python -m cactus_runtime.bench``: speeds as ratios within one run, one JSON line each."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from cactus_runtime.bench.decoding import bench_decoding
from cactus_runtime.bench.models import chat_ids, random_pair
from cactus_runtime.bench.verifying import bench_verification
from cactus_runtime.pairs import PAIRS, load_pair
from cactus_runtime.result.strict_json import strict_json

PROMPT = "Why is the sky blue?"


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    for name in ("rounds", "batch", "vocabulary", "tokens", "prompt_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"{name} must be at least 1, got {getattr(options, name)}")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"device={options.device!r} needs a CUDA device, and torch finds none")
    try:
        for line in _lines(options):
            print(strict_json(line), flush=True)
    except KeyboardInterrupt:
        return 130
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        parser.error(str(error))
    return 0


def _lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    yield _machine(options)
    if options.what in ("verification", "all"):
        yield from bench_verification(
            batch=options.batch,
            drafts=options.verified_drafts,
            vocabulary=options.vocabulary,
            delta=options.deltas[-1],
            rounds=options.rounds,
            device=options.device,
        )
    if options.what in ("decoding", "all"):
        target, draft, ids = _models(options)
        yield from bench_decoding(
            target,
            draft,
            ids,
            deltas=options.deltas,
            num_draft_tokens=options.drafts,
            tokens=options.tokens,
            temperature=options.temperature,
            rounds=options.rounds,
            transformers=getattr(options, "transformers", True),
        )


def _models(options: argparse.Namespace) -> tuple[Any, Any, list[int]]:
    if options.config is None:
        pair = load_pair(options.pair, device=options.device)
        return pair.target, pair.draft, chat_ids(pair.tokenizer, options.prompt)
    target, draft = random_pair(
        options.config,
        options.draft_config or options.config,
        agreement=options.agreement,
        device=options.device,
        dtype=getattr(torch, options.dtype),
    )
    return target, draft, list(range(options.prompt_tokens))


def _machine(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "name": "machine",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": (torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu"),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "options": {name: value for name, value in vars(options).items() if name != "what"},
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cactus_runtime.bench",
        description="Measure ratios within one interleaved run; one JSON line each, on stdout. "
        "Medians with least and largest of the rounds. Ctrl-C ends with the whole rounds by then.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("what", nargs="?", choices=["decoding", "verification", "all"], default="all")
    add("--rounds", type=int, default=5, help="repetitions, after one that is not counted")
    add("--device", default="cpu", help="cpu or cuda")
    add(
        "--deltas",
        type=float,
        nargs="+",
        default=[0.0, 0.01, 0.1, 0.5, 0.75, 1.0],
        help="budgets of Cactus, in nats",
    )
    decoding = parser.add_argument_group("decoding")
    add = decoding.add_argument
    add("--pair", choices=sorted(PAIRS), default="smollm2", help="bundled models")
    add("--prompt", default=PROMPT, help="text to continue or answer")
    add("--drafts", type=int, default=2, help="drafted tokens per target pass")
    add("--tokens", type=int, default=96, help="tokens of each decode")
    add("--temperature", type=float, default=0.7, help="of both models")
    add(
        "--no-transformers",
        dest="transformers",
        action="store_false",
        default=argparse.SUPPRESS,
        help="leave transformers' own ways out",
    )
    add("--config", help="time random weights of this transformers configuration instead")
    add("--draft-config", help="and a draft of this one")
    add("--agreement", type=float, default=0.8, help="its acceptance rate, by synthetic logits")
    add("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16", help="of it")
    add("--prompt-tokens", type=int, default=64, help="length of its prompt")
    verification = parser.add_argument_group("verification")
    add = verification.add_argument
    add("--batch", type=int, default=8, help="rows")
    add("--verified-drafts", type=int, default=8, help="drafted tokens per row")
    add("--vocabulary", type=int, default=151_936, help="tokens")
    return parser


if __name__ == "__main__":
    sys.exit(main())
