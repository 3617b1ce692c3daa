"""Transcripts of other decoders over the tiny pair, as JSON lines for `cactus audit`.

python scripts/audit_engines.py ENGINE > texts.jsonl
cactus audit texts.jsonl --pair tiny --temperature 0.7
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator

import torch

from cactus_runtime import Decoder, Request, SamplingParams, load_pair
from cactus_runtime.recording import PROMPTS
from cactus_theory import Cactus

TEMPERATURE, TOKENS = 0.7, 24


def ours(rule: str) -> Callable[[int], Iterator[dict]]:
    def texts(samples: int) -> Iterator[dict]:
        decoder = Decoder("tiny", dtype="float32")
        for prompt in PROMPTS:
            request = Request(
                prompt,
                num_draft_tokens=3,
                sampling=SamplingParams(temperature=TEMPERATURE),
                max_new_tokens=TOKENS,
                seed=0,
                eos_token_id=(),
                **({"rule": Cactus(0.1)} if rule == "cactus" else {}),
            )
            for result in decoder.batch(request.samples(samples), batch_size=samples).finish():
                yield {"prompt": prompt, "token_ids": list(result.tokens)}

    return texts


def transformers(**how: object) -> Callable[[int], Iterator[dict]]:
    def texts(samples: int) -> Iterator[dict]:
        pair = load_pair("tiny", dtype="float32")
        settings = {"assistant_model": pair.draft} if how.get("assisted") else {}
        if how.get("lookup"):
            settings = {"prompt_lookup_num_tokens": 3}
        if "weight" in how:
            settings["assistant_ensemble_weight"] = how["weight"]
        torch.manual_seed(0)
        for prompt in PROMPTS:
            read = pair.tokenizer(prompt, return_tensors="pt")
            for _ in range(samples):
                ids = pair.target.generate(
                    input_ids=read["input_ids"],
                    attention_mask=torch.ones_like(read["input_ids"]),
                    do_sample=True,
                    temperature=TEMPERATURE,
                    top_k=0,
                    max_new_tokens=TOKENS,
                    **settings,
                )
                found = ids[0, read["input_ids"].shape[1] :].tolist()
                yield {"prompt": prompt, "token_ids": found}

    return texts


ENGINES = {
    "ours": ours("speculative"),
    "ours-cactus": ours("cactus"),
    "transformers": transformers(),
    "transformers-assisted": transformers(assisted=True),
    "transformers-lookup": transformers(lookup=True),
    "transformers-ensemble": transformers(assisted=True, weight=0.5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--samples", type=int, default=6, help="texts of each prompt")
    given = parser.parse_args()
    for found in ENGINES[given.engine](given.samples):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
