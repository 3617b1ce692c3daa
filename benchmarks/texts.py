"""What block verification gains, what emitted log-probabilities cost, and what weights correct.

``python -m benchmarks.texts`` prints one table of each, measured with the pair tiny.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from cactus_runtime import Decoder, DecodeResult, Request, SamplingParams
from cactus_theory import Cactus, Clamp, Rule, SpeculativeSampling, effective_sample_size

PROMPTS = ("dog:", "kindness:", "river:", "to run:", "music:", "bright:", "teacher:", "winter:")
SAMPLING = SamplingParams(temperature=0.7)


def main() -> None:
    decoder = Decoder("tiny", dtype="float32")
    print("tokens per target pass, token | block (standard error of the difference)")
    for rule in (SpeculativeSampling(), Cactus(0.1), Clamp(0.05)):
        for k in (2, 5, 8):
            print(f"  {rule} k={k}: {gain(decoder, rule, k)}")
    print("seconds of decoding with emitted_logprobs, relative to without, least of five")
    for rule in (SpeculativeSampling(), Cactus(0.1)):
        for sampling in (SAMPLING, SamplingParams(temperature=0.7, top_k=20)):
            print(f"  {rule} top_k={sampling.top_k}: {cost(decoder, rule, sampling):.2f}")
    print("mean of a reward (spaces in 12 tokens): raw, weighted (standard errors), ESS of n")
    for rule in (SpeculativeSampling(), *map(Cactus, (0.01, 0.03, 0.1, 0.3)), Clamp(0.05)):
        print(f"  {rule}: {correction(decoder, rule)}")


def decoded(decoder: Decoder, request: Request, count: int) -> list[DecodeResult]:
    return decoder.batch(request.samples(count), batch_size=16).finish()


def gain(decoder: Decoder, rule: Rule, k: int, *, count: int = 12) -> str:
    """Ratio of sums over the prompts, with a jackknife over prompts."""
    sums = np.zeros((2, len(PROMPTS), 2))
    for i, verification in enumerate(("token", "block")):
        for j, prompt in enumerate(PROMPTS):
            request = Request(
                prompt, rule=rule, num_draft_tokens=k, sampling=SAMPLING, max_new_tokens=96,
                seed=j, eos_token_id=(), verification=verification,
            )  # fmt: skip
            for result in decoded(decoder, request, count):
                sums[i, j] += len(result.tokens), len(result.blocks)
    token, block = sums.sum(1)[:, 0] / sums.sum(1)[:, 1]
    left = sums.sum(1, keepdims=True) - sums
    ratios = (left[1, :, 0] / left[1, :, 1]) / (left[0, :, 0] / left[0, :, 1])
    error = np.sqrt((len(PROMPTS) - 1) * ratios.var())
    return f"{token:.3f} | {block:.3f}, {block / token - 1:+.1%} ({error:.1%})"


def cost(decoder: Decoder, rule: Rule, sampling: SamplingParams) -> float:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(5):
        for asked in seconds:
            request = Request(
                "river:", rule=rule, sampling=sampling, max_new_tokens=128, seed=1,
                eos_token_id=(), emitted_logprobs=asked,
            )  # fmt: skip
            started = time.perf_counter()
            decoder.stream(request).finish()
            seconds[asked].append(time.perf_counter() - started)
    return min(seconds[True]) / min(seconds[False])


def correction(decoder: Decoder, rule: Rule, *, count: int = 1500) -> str:
    request = Request(
        "dog:", rule=rule, sampling=SAMPLING, max_new_tokens=12, seed=3, eos_token_id=(),
        emitted_logprobs=True,
    )  # fmt: skip
    results = decoded(decoder, request, count)
    rewards = np.array([(result.text or "").count(" ") for result in results], dtype=float)
    logs = np.array([result.log_weight for result in results])
    size = float(effective_sample_size(logs))
    return f"{mean(rewards)}, {mean(np.exp(logs) * rewards)}, {size:.0f} of {count}"


def mean(values: Sequence[float] | np.ndarray) -> str:
    return f"{np.mean(values):.3f} ({np.std(values) / np.sqrt(len(values)):.3f})"


if __name__ == "__main__":
    main()
