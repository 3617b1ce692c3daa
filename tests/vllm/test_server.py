"""The plugin in vLLM's HTTP server: clients at once, on loopback, with the bundled tiny pair."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch

import cactus_runtime
from cactus_theory import Cactus, Clamp, SpeculativeSampling
from cactus_theory.testing import check_counts, samples_needed

pytestmark = pytest.mark.vllm

PAIR = Path(cactus_runtime.__file__).parent / "pairs" / "tiny"
TEMPERATURE = 0.7
CLIENTS = 8


@pytest.fixture(scope="module")
def server(interpreted, tmp_path_factory):
    """Address of a server that was started as the docs say, but for its size."""
    if interpreted:
        pytest.skip("the CPU build's kernels: needs TRITON_INTERPRET unset")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    speculation = {
        "method": "draft_model",
        "model": str(PAIR / "draft"),
        "num_speculative_tokens": 2,
        "draft_sample_method": "probabilistic",
    }
    # `vllm serve` itself asks for a package named vllm, which the CPU build is not
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += [
        "--model",
        str(PAIR / "target"),
        "--served-model-name",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--dtype", "float32", "--max-model-len", "64", "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(2**26), "--no-enable-prefix-caching"]
    command += ["--speculative-config", json.dumps(speculation)]
    command += ["--additional-config", '{"cactus": {"delta": 0.0}}']
    command += ["--worker-extension-cls", "cactus_runtime.integrations.vllm.CactusExtension"]
    settings = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    settings["VLLM_LOG_STATS_INTERVAL"] = "1"
    settings.pop("VLLM_ENABLE_V1_MULTIPROCESSING")  # a server has its engine in another process
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=settings, stdout=output, stderr=output)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def wait_for(address, process, log):
    for _ in range(500):  # a start takes half a minute of a core, and there may be less of it
        if process.poll() is not None:
            break
        try:
            urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(1)
        else:
            return
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-4000:]}")


def post(address, **body):
    data = json.dumps(body).encode()
    request = Request(address, data=data, headers={"Content-Type": "application/json"})
    with urlopen(request, timeout=300) as answer:
        return json.load(answer)


def call(server, method, *args):
    (result,) = post(f"{server}/collective_rpc", method=method, args=args)["results"]
    return result


def completions(server, *, count, **params):
    """Answers to clients that ask at once."""

    def client(_):
        body = {"model": "tiny", "return_token_ids": True, "ignore_eos": True, **params}
        return post(f"{server}/v1/completions", **body)["choices"]

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [choice for answer in pool.map(client, range(count)) for choice in answer]


@pytest.fixture(scope="module")
def models():
    from transformers import AutoModelForCausalLM

    names = (str(PAIR / name) for name in ("target", "draft"))
    return [AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32) for name in names]


@torch.no_grad()
def law(model, ids):
    logits = model(torch.tensor([ids])).logits[0, -1].double()
    return (logits / TEMPERATURE).softmax(-1).numpy()


@pytest.mark.parametrize("delta", [0.1, 1.0])
def test_clients_at_once_are_served_the_law_of_the_rule(server, models, delta):
    prompt = [68, 433, 26]  # "dog:"
    call(server, "cactus_configure", {"delta": delta})
    first = int(law(models[0], prompt).argmax())
    target, draft = (law(model, [*prompt, first]) for model in models)
    laws = {"draft": draft, "target": target, "smallest": 0.05}

    rule = Cactus(delta)
    count = samples_needed(rule, **laws)
    seconds = []
    while len(seconds) < count:
        texts = completions(
            server,
            count=2 * CLIENTS,
            prompt=prompt,
            n=100,
            max_tokens=2,
            temperature=TEMPERATURE,
        )
        pairs = (text["token_ids"] for text in texts)
        seconds += [second for token, second in pairs if token == first]
    check_counts(np.bincount(seconds[:count], minlength=target.size), rule, **laws)


def test_clients_at_once_are_served_by_their_own_rules(server, models):
    prompt = [68, 433, 26]  # "dog:"
    call(server, "cactus_configure", {"delta": 0.1})
    first = int(law(models[0], prompt).argmax())
    target, draft = (law(model, [*prompt, first]) for model in models)
    laws = {"draft": draft, "target": target, "smallest": 0.2}
    asked = {
        Cactus(0.1): {},
        Cactus(1.0): {"cactus_rule": "cactus", "cactus_delta": 1},
        Clamp(0.2): {"cactus_rule": "clamp", "cactus_delta": "0.2"},
        SpeculativeSampling(): {"cactus_rule": "speculative"},
    }
    count = max(samples_needed(rule, **laws) for rule in asked)
    body = {"prompt": prompt, "n": 100, "max_tokens": 2, "temperature": TEMPERATURE}

    def client(rule):
        own = {"vllm_xargs": asked[rule]} if asked[rule] else {}
        texts = completions(server, count=1, **body, **own)
        pairs = (text["token_ids"] for text in texts)
        return rule, [second for token, second in pairs if token == first]

    seconds = {rule: [] for rule in asked}
    with ThreadPoolExecutor(CLIENTS) as pool:
        while min(map(len, seconds.values())) < count:
            for rule, found in pool.map(client, list(asked) * 4):
                seconds[rule] += found
    for rule, found in seconds.items():
        check_counts(np.bincount(found[:count], minlength=target.size), rule, **laws)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"cactus_delta": -1}, "cactus_delta: delta must be"),
        ({"cactus_delta": "much"}, "cactus_delta: delta must be a number >= 0, got 'much'"),
        ({"cactus_delta": [1, 2]}, "cactus_delta"),
        ({"cactus_rule": "top-k"}, "cactus_rule: rule must be one of"),
        ({"cactus_dleta": 1}, "cactus_dleta: rule cactus takes delta, got dleta=1"),
    ],
)
def test_wrong_settings_are_answered_by_400_and_the_server_goes_on(server, own, message):
    with pytest.raises(HTTPError) as caught:
        completions(server, count=1, prompt="river:", max_tokens=2, vllm_xargs=own)
    assert caught.value.code == 400
    assert message in json.load(caught.value)["error"]["message"]
    assert completions(server, count=1, prompt="river:", max_tokens=2)


def test_more_is_accepted_with_more_budget_and_texts_are_read_in_words(server):
    rates = []
    call(server, "cactus_configure", {"delta": 0.0})
    for delta in (0.1, 1.0, 0.0):
        texts = completions(server, count=2 * CLIENTS, prompt="river:", n=4, max_tokens=32)
        assert all(len(text["token_ids"]) == 32 and text["text"] for text in texts)
        ended = call(server, "cactus_configure", {"delta": delta})
        rates.append(ended["acceptance_rate"])
    # .69, .92 and .98 on the average; some 1000 drafts each, so within .05
    assert rates[0] + 0.1 < rates[1] < rates[2]


def counter(server, name):
    with urlopen(f"{server}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    name = f'vllm:cactus_{name}_total{{model_name="tiny"}}'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_the_ledger_is_published_beside_the_metrics_of_vllm(server):
    call(server, "cactus_configure", {"delta": 0.3, "ledger": True})
    time.sleep(3)  # statistics of other tests are published
    names = ("accepted_tokens", "charged_tokens", "expected_accepted_tokens", "kl_nats")
    before = [counter(server, name) for name in names]
    completions(
        server,
        count=2 * CLIENTS,
        prompt="river:",
        max_tokens=16,
        vllm_xargs={"cactus_max_kl": "0.5"},
    )
    found = call(server, "cactus_statistics")
    ledger = found["ledger"]
    expected = [found["accepted_tokens"], *(ledger[n] for n in ("judged_tokens", names[2], "kl"))]
    for _ in range(100):
        gained = [counter(server, name) - was for name, was in zip(names, before, strict=True)]
        if gained[1] == expected[1]:
            break
        time.sleep(0.5)
    assert gained == pytest.approx(expected)
    assert 0 < gained[3] <= 0.5 * 2 * CLIENTS
    assert all(each["kl"] <= 0.5 for each in ledger["requests"].values())


def audited(server, *claim):
    """Exit status of `cactus audit` of 1,024 tokens from the server, and what it printed."""
    options = ["--model", "tiny", "--pair", "tiny", "--temperature", str(TEMPERATURE)]
    options += ["--samples", "4", "--tokens", "32", "--concurrency", str(CLIENTS)]
    command = ["from cactus_runtime.cli import main; raise SystemExit(main())", "audit"]
    run = subprocess.run(
        [sys.executable, "-c", *command, "--server", server, *options, *claim],
        capture_output=True,
        text=True,
        timeout=500,
    )
    return run.returncode, run.stdout + run.stderr


def test_an_audit_of_the_server_finds_what_it_is_and_is_not(server):
    call(server, "cactus_configure", {"delta": 0.0})
    assert audited(server)[0] == 0
    call(server, "cactus_configure", {"delta": 0.3})
    status, said = audited(server)
    assert status == 1
    assert "not consistent with the target" in said
    assert audited(server, "--claim", "cactus:delta=0.3", "--drafts", "2")[0] == 0


def test_greedy_clients_get_the_argmax_whatever_the_budget(server, models):
    call(server, "cactus_configure", {"delta": 10.0})
    prompt = [82, 843, 26]
    ids = list(prompt)
    for _ in range(8):
        ids.append(int(law(models[0], ids).argmax()))
    for text in completions(server, count=CLIENTS, prompt=prompt, max_tokens=8, temperature=0):
        assert text["token_ids"] == ids[len(prompt) :]
    assert call(server, "cactus_statistics")["blocks"] == 0
