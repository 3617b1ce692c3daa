"""One engine of vLLM in processes of its own: a program that test_methods.py and others start.

Reads a JSON object from its standard input, and writes one to the file named there: the options of
``LLM``, the requests, and for each the tokens and log-probabilities that came back.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    from vllm import LLM, SamplingParams

    job = json.load(sys.stdin)
    engine = LLM(
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=2**26,
        logprobs_mode="processed_logprobs",
        worker_extension_cls="cactus_runtime.integrations.vllm.CactusExtension",
        **job["options"],
    )
    outputs = engine.generate(
        [{"prompt_token_ids": job["prompt"]}] * len(job["requests"]),
        [SamplingParams(detokenize=False, ignore_eos=True, **each) for each in job["requests"]],
        use_tqdm=False,
    )
    texts = [output.outputs[0] for output in outputs]
    found = {
        "tokens": [list(text.token_ids) for text in texts],
        "logprobs": [
            [[at[token].logprob for token in sorted(at)] for at in text.logprobs or ()]
            for text in texts
        ],
        "statistics": engine.collective_rpc("cactus_statistics"),
    }
    with open(job["output"], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
