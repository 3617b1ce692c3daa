"""The Triton kernels: interpreted, compiled for a GPU that need not be there, and run on one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cactus_runtime.verification import candidates, device_functions, kernels, passes
from cactus_runtime.verification.warp import IdentityWarp
from cactus_theory import Cactus, CactusExact, CactusSafe, SpeculativeSampling

needs_triton = pytest.mark.skipif(not device_functions.AVAILABLE, reason="triton is not installed")


def random_block(*, batch, drafts, vocabulary, dtype=torch.float32, one_hot=False, seed=0):
    rng = torch.Generator().manual_seed(seed)
    logits = (2 * torch.randn(batch, drafts + 1, vocabulary, generator=rng)).to(dtype)
    noise = torch.randn(batch, drafts, vocabulary, generator=rng)
    probs = (logits[:, :-1].float() + noise).softmax(-1)
    tokens = torch.zeros(batch, drafts, dtype=torch.int64)
    if drafts:
        tokens = probs.flatten(0, 1).multinomial(1, generator=rng).view(batch, drafts)
    return {
        "tokens": tokens,
        "draft_probs": None if one_hot else probs,
        "target_logits": logits,
        "accept_uniforms": torch.rand(batch, drafts, generator=rng, dtype=torch.float64),
        "recover_uniforms": torch.rand(batch, generator=rng, dtype=torch.float64),
        "num_drafts": None,
        "limits": None,
    }


def judged(rule, block, *, by=kernels):
    return by.judge_candidates(rule, warp=IdentityWarp(), **block)


@needs_triton
def test_the_interpreted_kernels_pass_their_tests():
    folder = Path(__file__).parent
    files = sorted(map(str, folder.glob("interpreted_*.py")))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=folder.parents[1],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "skipped" not in run.stdout


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Have every launch compiled for sm_90 and not run; the (name, PTX) of each are returned."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    hopper = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: "of this test alone",  # what is compiled is kept by device
        get_current_stream=lambda device: 0,
    )
    launches = []
    run = triton.JITFunction.run

    def compile_only(function, *args, grid, warmup, **options):
        kernel = run(function, *args, grid=grid, warmup=True, **options)
        launches.append((function.fn.__name__, kernel.asm["ptx"]))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", hopper)
    monkeypatch.setattr(triton.JITFunction, "run", compile_only)
    monkeypatch.setattr(device_functions, "interpreted", lambda: True)  # accepts tensors of the CPU
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)  # a token that nothing draws is 0
    return launches


FLOAT32 = {"drafts": 4, "vocabulary": 151_936}


@needs_triton
@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        (Cactus(0.5), FLOAT32),
        (CactusExact(0.5), FLOAT32),
        (
            SpeculativeSampling(),
            {"drafts": 4, "vocabulary": 50_257, "dtype": torch.bfloat16, "one_hot": True},
        ),
        (CactusSafe(0.5), {"drafts": 0, "vocabulary": 5, "dtype": torch.float64}),
    ],
    ids=["float32", "float32, roots", "bfloat16, lossless", "no drafts"],
)
def test_what_is_launched_compiles_for_a_gpu(compiled, rule, shape):
    judged(rule, random_block(batch=2, **shape))
    names = [name for name, _ in compiled]
    weighed = ["weigh_chunk"] if shape["drafts"] else []
    assert names == ["sum_chunk", "combine_chunks", *weighed, "search"]
    assert all(".target sm_90" in ptx for _, ptx in compiled)
    assert not any("atom." in ptx or "red.global" in ptx for _, ptx in compiled)
    if shape["vocabulary"] % 16 == 0:  # rows are aligned: 16 bytes at a time
        assert all("ld.global.v4.b32" in dict(compiled)[name] for name in ("sum_chunk", *weighed))
    if "dtype" not in shape or shape["dtype"] == torch.bfloat16:
        # The pass over all rows has float64 for sums alone, which slow it down elsewhere.
        assert "fma.rn.f64" not in dict(compiled)["sum_chunk"]
    assert "fma.rn.f64" in dict(compiled)["search"]


@needs_triton
def test_budgets_and_rules_of_one_s_own_compile_for_a_gpu(compiled):
    block = random_block(batch=2, **FLOAT32)
    judged(Cactus(0.5), block | {"limits": lambda charges: torch.ones(2, dtype=torch.int64)})
    names = [name for name, _ in compiled]
    assert names == ["sum_chunk", "combine_chunks", "weigh_chunk", "weigh_chunk", "search"]
    compiled.clear()
    judged(type("Own", (Cactus,), {})(0.5), block)  # what is charged is taken from torch
    assert [name for name, _ in compiled] == [
        "sum_chunk",
        "combine_chunks",
        "weigh_chunk",
        "search",
    ]


@needs_triton
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="it would be interpreted")
def test_tensors_of_the_cpu_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"got cpu \(set TRITON_INTERPRET=1"):
        passes.normalise(torch.zeros(1, 1, 3), torch.zeros(1, 0, dtype=torch.int64))


def test_without_triton_the_kernels_are_imported_and_say_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    spec = importlib.util.spec_from_file_location("without_triton", device_functions.__file__)
    assert spec is not None
    assert spec.loader is not None
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    monkeypatch.setattr(passes, "device_functions", without)
    with pytest.raises(ModuleNotFoundError, match="pip install triton"):
        passes.normalise(torch.zeros(1, 1, 3), torch.zeros(1, 0, dtype=torch.int64))


def to(device, block):
    return {
        name: part.to(device) if isinstance(part, torch.Tensor) else part
        for name, part in block.items()
    }


@pytest.mark.gpu
@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(
    "rule", [SpeculativeSampling(), Cactus(0.5), CactusSafe(0.5), CactusExact(0.5)], ids=str
)
def test_a_gpu_agrees_with_torch_token_for_token(rule, one_hot):
    # Float64 logits: the two differ in the last digits only, and no uniform is that near.
    shape = {"batch": 8, "drafts": 3, "vocabulary": 151_936, "dtype": torch.float64}
    block = random_block(**shape, one_hot=one_hot)
    on_gpu = to("cuda", block)
    got, repeated = judged(rule, on_gpu), judged(rule, on_gpu)
    want = judged(rule, block, by=candidates)
    assert torch.equal(got.accepted.cpu(), want.accepted)
    assert torch.equal(got.last_token.cpu(), want.last_token)
    # sums of 151,936 terms
    torch.testing.assert_close(got.packed().cpu(), want.packed(), rtol=1e-9, atol=1e-12)
    assert torch.equal(got.packed(), repeated.packed())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_gpu_s_probabilities_are_as_good_as_float32(dtype):
    block = random_block(batch=8, drafts=3, vocabulary=151_936, dtype=dtype)
    tokens, logits = block["tokens"], block["target_logits"]
    got = passes.normalise(logits.cuda(), tokens.cuda(), temperature=0.6).target_prob
    probs = (logits[:, :-1].double() / 0.6).softmax(-1)
    want = probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    # The device's exponential is good to 2^-22; an argument of 20 rounds it by 1e-6 more.
    torch.testing.assert_close(got.cpu(), want, rtol=2e-6, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 32])
def test_the_time_of_the_kernels_is_shown_beside_that_of_a_copy(batch, record_property):
    from triton.testing import do_bench

    block = to("cuda", random_block(batch=batch, drafts=5, vocabulary=151_936))
    logits, tokens = block["target_logits"], block["tokens"]
    copy = torch.empty_like(logits)
    normalised = passes.normalise(logits, tokens)
    times = {
        "a copy of the logits (reads and writes)": lambda: copy.copy_(logits),
        "the first pass": lambda: passes.normalise(logits, tokens),
    }
    for rule in (SpeculativeSampling(), Cactus(0.5), CactusExact(0.5)):
        times[f"the second pass, {rule}"] = lambda rule=rule: passes.charge_and_weigh(
            logits,
            normalised,
            tokens,
            block["draft_probs"],
            gain=kernels.gain_of(rule),
            shrink=torch.ones_like(normalised.target_prob),
        )
        times[f"a block, {rule}"] = lambda rule=rule: judged(rule, block)
    for name, launch in times.items():
        milliseconds = do_bench(launch)
        record_property(f"{name}, batch {batch} (ms)", milliseconds)
        print(f"{name}, batch {batch}: {1000 * milliseconds:.1f} us")
    assert torch.equal(copy, logits)
    last = judged(Cactus(0.5), block).last_token
    assert ((last >= 0) & (last < 151_936)).all()
