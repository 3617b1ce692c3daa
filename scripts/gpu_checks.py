"""``python scripts/gpu_checks.py OUT.json``: what only a GPU can tell, in under eight minutes.

Compares the kernels with torch on the same device, in every combination of rule, precision and
draft; compares decodes through CUDA graphs with the same on the CPU, and whole blocks in one launch
with pass after pass; times the kernels against a device copy of the same bytes and against torch;
times decoding of a 0.6B + 14B shape with random weights against plain decoding, against its bound,
and with a launch a block against a launch a pass; runs the tests marked gpu.
Every part has its own verdict, recorded as it ends; a part that fails says how far the two sides
agreed, and the next part runs. The exit status is 1 if one failed. No part starts after
``--seconds``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from cactus_runtime import Decoder, DecodeResult, Request, SamplingParams
from cactus_runtime.bench.decoding import bench_decoding
from cactus_runtime.bench.models import random_pair
from cactus_runtime.bench.rounds import interleave, spread
from cactus_runtime.bench.verifying import bench_verification, random_block
from cactus_runtime.loop import batch as loop_batch
from cactus_runtime.pairs import load_pair
from cactus_runtime.verification import candidates, kernels
from cactus_runtime.verification.judgement import Judgement
from cactus_runtime.verification.warp import IdentityWarp
from cactus_theory import Cactus, CactusExact, CactusSafe, SpeculativeSampling

os.environ["CACTUS_DTYPE"] = "float32"  # for pairs that are compared with the CPU
CONFIGS = Path(__file__).parent / "configs"
# What a block computes, in this order: the first of them that is wrong says where to look.
STEPS = {
    "log_normaliser": "the first pass (sum_chunk, combine_chunks)",
    "target_prob": "the first pass (sum_chunk, combine_chunks)",
    "boosted": "the rule, in torch on the device",
    "acceptance_rate": "the second pass (weigh_chunk)",
    "total_variation": "the second pass (weigh_chunk): the gain g - q",
    "kl_bound": "the second pass (weigh_chunk): logarithms",
    "accepted": "acceptance, in torch on the device",
    "last_token": "the residual sums of weigh_chunk, or search",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="where the JSON goes")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--target", default=str(CONFIGS / "qwen3-14b.json"))
    parser.add_argument("--draft", default=str(CONFIGS / "qwen3-0.6b.json"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=440, help="no part starts later")
    parser.add_argument("--without", nargs="*", default=[], help="parts to leave out")
    options = parser.parse_args(arguments)
    parts: dict[str, Callable[[argparse.Namespace], Any]] = {
        "device": describe,
        "kernels agree with torch": kernels_agree,
        "graphs agree with the CPU": graphs_agree,
        "float64 decodes agree with the CPU": float64_agrees,
        "blocks agree with passes": blocks_agree,
        "kernel": kernel_times,
        "verification": verification_times,
        "decoding": decoding_times,
        "tests": run_tests,
    }
    record: dict[str, Any] = {}
    begun = time.perf_counter()
    for name, part in parts.items():
        if name in options.without:
            continue
        started = time.perf_counter()
        if started - begun > options.seconds:
            record[name] = {"ok": False, "error": f"not run: {options.seconds:g} s had passed"}
            continue
        try:
            record[name] = {"ok": True, "found": part(options)}
        except Exception as error:  # the other parts are worth having
            record[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        record[name]["seconds"] = round(time.perf_counter() - started, 1)
        print(name, json.dumps(record[name])[:400], flush=True)
        options.output.write_text(json.dumps(record, indent=1))
    return 0 if all(part["ok"] for part in record.values()) else 1


def describe(options: argparse.Namespace) -> dict[str, Any]:
    cuda = options.device.startswith("cuda")
    return {
        "name": torch.cuda.get_device_name() if cuda else options.device,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def kernels_agree(options: argparse.Namespace) -> dict[str, Any]:
    """Judgements by the kernels and by torch, of the same blocks on the same device."""
    rules = SpeculativeSampling(), Cactus(0.1), CactusSafe(0.1), CactusExact(0.1)
    verdicts: dict[str, str] = {}
    for dtype, one_hot, budget, rule in itertools.product(
        (torch.float64, torch.float32, torch.bfloat16), (False, True), (False, True), rules
    ):
        block: dict[str, Any] = random_block(4, 3, options.vocabulary, options.device)
        block["target_logits"] = block["target_logits"].to(dtype)
        if one_hot:
            block["draft_probs"] = None
        block |= {"num_drafts": None, "warp": IdentityWarp(), "limits": None}
        if budget:
            block["limits"] = lambda charges: torch.ones_like(charges.kl_bound[:, 0]).long()
        name = f"{rule}, {dtype}, one-hot {one_hot}, budget {budget}"
        try:
            verdicts[name] = _compared(rule, block, exact=dtype == torch.float64)
        except Exception as error:  # the other combinations say more
            verdicts[name] = f"{type(error).__name__}: {error}"
    wrong = [f"{name}: {verdict}" for name, verdict in verdicts.items() if verdict != "agree"]
    if wrong:
        raise AssertionError(f"{len(wrong)} of {len(verdicts)} differ\n" + "\n".join(wrong))
    return {"combinations": len(verdicts)}


def _compared(rule: Any, block: dict[str, Any], *, exact: bool) -> str:
    logits = block["target_logits"]
    wanted = {**block, "target_logits": logits.double()}
    want = candidates.judge_candidates(rule, **wanted)
    by = kernels if kernels.applies(logits) else candidates
    got, again = (by.judge_candidates(rule, **block) for _ in range(2))
    if not torch.equal(got.packed(), again.packed()):
        return "the same block was judged in two ways: a race"
    # In float32 a uniform may be as near to one of 150,000 thresholds as these are rounded.
    return first_difference(got, want, rtol=1e-9 if exact else 1e-5, others=0 if exact else 1)


def first_difference(got: Judgement, want: Judgement, *, rtol: float, others: int = 0) -> str:
    """ "agree", or the first step of a block at which two judgements differ.

    So many last tokens may be `others`.
    """
    for field, step in STEPS.items():
        found, wanted = getattr(got, field).double(), getattr(want, field).double()
        if field == "last_token" and (found != wanted).sum() <= others:
            continue
        if not torch.allclose(found, wanted, rtol=rtol, atol=rtol / 10):
            largest = (found - wanted).abs().max().item()
            return f"{field} differs by {largest:.3g}, and all before it agrees: look at {step}"
    return "agree"


def graphs_agree(options: argparse.Namespace) -> dict[str, Any]:
    """Greedy decodes of the tiny pair, alone and in a batch, on both devices."""
    greedy = SamplingParams(temperature=0)
    prompts = ("dog:", "kindness: the", "a river of")
    requests = [
        Request(prompt, sampling=greedy, max_new_tokens=24, num_draft_tokens=drafts, seed=1)
        for prompt in prompts
        for drafts in (0, 3)
    ]
    host, device = Decoder("tiny"), Decoder("tiny", device=options.device)
    wanted = [host.stream(request).finish().tokens for request in requests]
    alone = [device.stream(request).finish().tokens for request in requests]
    together = [result.tokens for result in device.batch(requests, batch_size=4).finish()]
    if not wanted == alone == together:
        raise AssertionError(f"{wanted} on the CPU, {alone} alone, {together} in a batch")
    return {"requests": len(requests)}


def float64_agrees(options: argparse.Namespace) -> dict[str, Any]:
    """Sampled decodes of the tiny pair in float64 have the same tokens on both devices."""
    pairs = [load_pair("tiny", device=device) for device in ("cpu", options.device)]
    for pair in pairs:
        pair.target.double()
        pair.draft.double()
    host, device = (Decoder(pair) for pair in pairs)
    compared = 0
    for rule, temperature in itertools.product(
        (SpeculativeSampling(), Cactus(0.2), CactusExact(0.2)), (1.0, 0.7)
    ):
        sampling = SamplingParams(temperature)
        request = Request(
            "kindness: the", rule=rule, sampling=sampling, max_new_tokens=24, seed=compared
        )
        wanted = host.stream(request).finish().tokens
        found = {"blocks in one launch": device.stream(request).finish().tokens}
        if found["blocks in one launch"] != wanted:
            with by_turns():
                found["a launch a pass"] = Decoder(pairs[1]).stream(request).finish().tokens
            equal = {name: _common(tokens, wanted) for name, tokens in found.items()}
            raise AssertionError(
                f"{rule}, temperature {temperature}: of {len(wanted)} tokens of the CPU so many "
                f"agree before the first that does not: {equal}"
            )
        compared += 1
    return {"requests": compared}


def _common(one: list[int], other: list[int]) -> int:
    """Length of the longest common prefix."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


@contextlib.contextmanager
def by_turns() -> Iterator[None]:
    """Host and models take turns, pass after pass, also where a block could be one launch."""
    with mock.patch.object(loop_batch, "open_programs", return_value=None):
        yield


def blocks_agree(options: argparse.Namespace) -> dict[str, Any]:
    """Sampled decodes of the tiny pair in a batch, with a launch a block and with one a pass."""
    at_once, in_parts = (Decoder("tiny", device=options.device) for _ in range(2))
    samplings = (SamplingParams(), SamplingParams(temperature=0.8, top_k=20, top_p=0.9))
    laws = itertools.product((SpeculativeSampling(), Cactus(0.2), CactusSafe(0.2)), samplings)
    compared, largest = 0, 0.0
    for seed, (rule, sampling) in enumerate(laws):
        requests = [
            Request(prompt, rule=rule, sampling=sampling, max_new_tokens=length, seed=seed)
            for prompt, length in (("dog:", 12), ("kindness: the", 24), ("a river of", 9))
        ]
        found = at_once.batch(requests, batch_size=2).finish()
        with by_turns():
            wanted = in_parts.batch(requests, batch_size=2).finish()
        for one, other in zip(found, wanted, strict=True):
            if options.device.startswith("cuda") and not one.seconds.fused:
                raise AssertionError(f"no block of {rule}, {sampling} was one launch")
            if other.seconds.fused:
                raise AssertionError(f"a block of {rule}, {sampling} was not decoded by turns")
            if (one.tokens, one.blocks) != (other.tokens, other.blocks):
                raise AssertionError(f"{rule}, {sampling}: {one.tokens} and {other.tokens}")
            largest = max(largest, _largest_difference(one, other))
            compared += 1
    if not largest < 1e-3:
        raise AssertionError(f"a probability or log-probability differs by {largest}")
    return {"requests": compared, "largest difference": largest}


def _largest_difference(one: DecodeResult, other: DecodeResult) -> float:
    """Of the log-probabilities of the same tokens, and of the figures of their verdicts."""
    pairs = [(a.logprob, b.logprob) for a, b in zip(one.trace, other.trace, strict=True)]
    for a, b in zip(one.verdicts, other.verdicts, strict=True):
        pairs += zip(vars(a).values(), vars(b).values(), strict=True)
    return max(abs(a - b) for a, b in pairs)


def kernel_times(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Blocks judged by the kernels and by torch, against one device copy of the logits."""
    lines = []
    plain: dict[str, Any] = {"num_drafts": None, "limits": None, "warp": IdentityWarp()}
    for dtype, rule in itertools.product(
        (torch.bfloat16, torch.float32), (SpeculativeSampling(), Cactus(0.1), CactusExact(0.1))
    ):
        block = random_block(8, 8, options.vocabulary, options.device) | plain
        logits = block["target_logits"] = block["target_logits"].to(dtype)
        copy = torch.empty_like(logits)
        contenders = {"torch": candidates}
        if kernels.applies(logits):
            contenders["kernels"] = kernels
        sources: dict[str, Callable[[], Any]] = {
            "copy": lambda copy=copy, logits=logits: copy.copy_(logits)
        }
        for name, by in contenders.items():
            sources[name] = lambda by=by, rule=rule, block=block: by.judge_candidates(rule, **block)
        times = {name: _device_seconds(run, options.device) for name, run in sources.items()}
        lines.append(
            {"rule": str(rule), "dtype": str(dtype)}
            | {"seconds": {name: spread(found) for name, found in times.items()}}
            | {
                f"{name} / copy": spread(
                    [a / b for a, b in zip(times[name], times["copy"], strict=True)]
                )
                for name in contenders
            }
        )
    return lines


def verification_times(options: argparse.Namespace) -> list[dict[str, Any]]:
    return list(
        bench_verification(
            batch=8,
            drafts=8,
            vocabulary=options.vocabulary,
            delta=0.1,
            rounds=options.rounds,
            device=options.device,
        )
    )


def decoding_times(options: argparse.Namespace) -> list[dict[str, Any]]:
    target, draft = random_pair(
        options.target,
        options.draft,
        agreement=0.8,
        device=options.device,
        dtype=torch.bfloat16 if options.device.startswith("cuda") else torch.float32,
    )
    rounds = max(options.rounds // 3, 1)
    lines = bench_decoding(
        target,
        draft,
        list(range(64)),
        deltas=(0.1, 0.75),
        num_draft_tokens=4,
        tokens=96,
        temperature=1.0,
        rounds=rounds,
        transformers=False,
    )
    decoders = [Decoder(target, draft=draft) for _ in range(2)]
    return [*lines, launch_times(*decoders, rounds=rounds)]


def launch_times(at_once: Decoder, in_parts: Decoder, *, rounds: int) -> dict[str, Any]:
    """Decoding with a launch a block and with one a pass, once all graphs are captured."""

    def rate(decoder: Decoder) -> Callable[[int], float]:
        def run(number: int) -> float:
            request = Request(
                list(range(64)), rule=Cactus(0.1), max_new_tokens=96, seed=number, eos_token_id=()
            )
            return decoder.stream(request).finish().tokens_per_second

        return run

    contenders = {"block": rate(at_once), "pass": by_turns()(rate(in_parts))}
    runs = interleave(contenders, rounds=rounds, description="launches")
    rates = {name: [rate for _, rate in run] for name, run in runs.items()}
    ratios = [a / b for a, b in zip(rates["block"], rates["pass"], strict=True)]
    return {
        "name": "a launch a block over a launch a pass, Cactus(0.1), captures aside",
        "tokens_per_second": {name: spread(found) for name, found in rates.items()},
        "ratio": spread(ratios),
    }


def run_tests(options: argparse.Namespace) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    last = (done.stdout.strip().splitlines() or ["nothing"])[-1]
    if done.returncode:
        raise AssertionError(done.stdout[-2000:] + done.stderr[-500:])
    return last


def _device_seconds(run: Callable[[], Any], device: str, repetitions: int = 30) -> list[float]:
    """Times by device events where there are some."""
    if not device.startswith("cuda"):
        runs = interleave({"": lambda _: run()}, rounds=3, description="kernels")
        return [seconds for seconds, _ in runs[""]]
    for _ in range(3):
        run()
    found = []
    for _ in range(repetitions):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1000)
    return found


if __name__ == "__main__":
    sys.exit(main())
