"""Sources of drafts, and two workers, in engines with processes of their own.

Needs the C++ kernels of the CPU build: skipped where Triton is interpreted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cactus_theory import SpeculativeSampling
from cactus_theory.testing import check_counts, samples_needed
from tests.vllm import random_models

pytestmark = pytest.mark.vllm

SIZE = random_models.SIZE
PROMPT = [1, 3, 5, 0, 2, 4, 6, 7, 3, 1, 0, 7, 5, 2, 6, 4]  # prompt lookup finds every token
TEMPERATURE = 0.7
LENGTH = 3
METHODS = {
    "n-grams": {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1},
    "draft model, greedy": {"method": "draft_model", "model": "draft"},
    "draft model": {
        "method": "draft_model",
        "model": "draft",
        "draft_sample_method": "probabilistic",
    },
    "EAGLE": {"method": "eagle", "model": "eagle", "draft_sample_method": "probabilistic"},
    "EAGLE-3": {"method": "eagle3", "model": "eagle3", "draft_sample_method": "probabilistic"},
    "MTP": {"method": "mtp", "draft_sample_method": "probabilistic"},
    "Medusa": {"method": "medusa", "model": "medusa"},
}
TARGETS = {"MTP": "mimo"}  # the predictor lies in the target's own checkpoint


@pytest.fixture(scope="module", autouse=True)
def _compiled(interpreted):
    if interpreted:
        pytest.skip("the CPU build's kernels: needs TRITON_INTERPRET unset")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Random models: see `random_models`."""
    return random_models.written_to(tmp_path_factory.mktemp("models"))


def served(folder, method, requests, *, cactus, drafts=2, **options):
    """What an engine made of the requests."""
    speculation = METHODS[method] | {"num_speculative_tokens": drafts}
    if "model" in speculation:
        speculation["model"] = str(folder / speculation["model"])
    output = folder / "output.json"
    job = {
        "output": str(output),
        "prompt": PROMPT,
        "requests": requests,
        "options": {
            "model": str(folder / TARGETS.get(method, "target")),
            "speculative_config": speculation,
            "additional_config": {"cactus": cactus},
            **options,
        },
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("one_engine.py"))],
        input=json.dumps(job),
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,  # a start takes some 15 seconds of a core, and there may be less of it
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return json.loads(output.read_text())


@pytest.mark.parametrize("method", METHODS)
def test_tokens_are_drawn_from_the_distribution_that_is_returned_with_them(folder, method):
    settings = {"delta": 0.5, "logprobs": "emitted", "ledger": True}
    request = {"max_tokens": 2, "temperature": TEMPERATURE, "logprobs": SIZE}
    plain = {"extra_args": {"cactus_rule": "speculative"}}
    found = served(folder, method, [request | plain] * 50 + [request] * 6_000, cactus=settings)
    firsts = np.bincount([tokens[0] for tokens in found["tokens"]])
    first = int(firsts.argmax())
    rows = zip(found["tokens"], found["logprobs"], strict=True)
    seconds = [(tokens[1], np.exp(at[1])) for tokens, at in rows if tokens[0] == first]
    target, out = seconds[0][1], seconds[-1][1]
    laws = {"draft": target, "target": out / out.sum(), "smallest": 0.1}
    lossy = [(token, law) for token, law in seconds if np.abs(law - out).max() < 1e-4]
    assert len(lossy) > samples_needed(SpeculativeSampling(), **laws)
    assert np.abs(out - target).sum() / 2 > 0.05  # the rule did something
    counts = np.bincount([token for token, _ in lossy], minlength=SIZE)
    check_counts(counts, SpeculativeSampling(), **laws)
    (statistics,) = found["statistics"]
    ledger = statistics["ledger"]
    off = ledger["accepted_tokens"] - ledger["expected_accepted_tokens"]
    assert abs(off) < 3 * ledger["judged_tokens"] ** 0.5  # six standard deviations or more


# A seed does not reach drafts that are drawn: these come from a generator of the whole worker, and
# depend on which requests meet in a step. So there the requests are served one by one.
@pytest.mark.parametrize(
    ("method", "together"), [("draft model", 1), ("draft model, greedy", 8)], ids=str
)
def test_two_tensor_parallel_workers_emit_the_seeded_tokens_of_one(folder, method, together):
    own = (None, {"cactus_rule": "clamp", "cactus_delta": 0.2}, {"cactus_max_kl": 0.1})
    requests = [
        {"max_tokens": 12, "temperature": TEMPERATURE, "seed": seed, "extra_args": extra_args}
        for seed in (3, 4)
        for extra_args in (*own, {"cactus_rule": "speculative"})
    ]
    settings = {"delta": 0.5, "ledger": True}
    one, two = (
        served(
            folder,
            method,
            requests,
            cactus=settings,
            max_num_seqs=together,
            tensor_parallel_size=workers,
        )
        for workers in (1, 2)
    )
    assert one["tokens"] == two["tokens"]
    (alone,), (first, second) = one["statistics"], two["statistics"]
    assert first == second
    ledgers = alone.pop("ledger"), first.pop("ledger")
    assert alone == first
    assert [len(ledger.pop("requests")) for ledger in ledgers] == [len(requests)] * 2
    assert ledgers[0] == pytest.approx(ledgers[1], rel=1e-3)  # float32, summed in another order
    assert ledgers[0]["kl"] > 0
