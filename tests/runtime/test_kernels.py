"""The Triton kernels: interpreted, compiled for a GPU that need not be there, and run on one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cactus_runtime.verification import device_functions, kernels
from cactus_runtime.verification import verify as verification
from cactus_theory import Cactus, CactusExact, SpeculativeSampling

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
    }


@needs_triton
def test_the_interpreted_kernels_pass_their_tests():
    path = Path(__file__).with_name("interpreted_kernels.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=path.parents[2],
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
    return launches


@needs_triton
@pytest.mark.parametrize(
    "shape",
    [
        {"drafts": 4, "vocabulary": 151_936},
        {"drafts": 4, "vocabulary": 50_257, "dtype": torch.bfloat16, "one_hot": True},
        {"drafts": 0, "vocabulary": 5, "dtype": torch.float64},
    ],
    ids=["float32", "bfloat16", "no drafts"],
)
def test_what_is_launched_compiles_for_a_gpu(compiled, shape):
    block = random_block(batch=2, **shape)
    kernels.verify(Cactus(0.5), block.pop("tokens"), **block)
    names = [name for name, _ in compiled]
    assert names == ["sum_chunk", "combine_chunks", "weigh_chunk", "search"]
    assert all(".target sm_90" in ptx for _, ptx in compiled)
    if shape["vocabulary"] % 16 == 0:  # rows are aligned: 16 bytes at a time
        assert all("ld.global.v4.b32" in dict(compiled)[name] for name in (names[0], names[2]))
    if "dtype" not in shape or shape["dtype"] == torch.bfloat16:
        # The pass over all rows has float64 for sums alone, which slow it down elsewhere.
        assert "fma.rn.f64" not in dict(compiled)["sum_chunk"]
    assert "fma.rn.f64" in dict(compiled)["weigh_chunk"]


@needs_triton
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="it would be interpreted")
def test_tensors_of_the_cpu_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"got cpu \(set TRITON_INTERPRET=1"):
        kernels.token_probs(torch.zeros(1, 1, 3), torch.zeros(1, 0, dtype=torch.int64))


def test_without_triton_the_kernels_are_imported_and_say_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    spec = importlib.util.spec_from_file_location("without_triton", device_functions.__file__)
    assert spec is not None
    assert spec.loader is not None
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    monkeypatch.setattr(kernels, "device_functions", without)
    with pytest.raises(ModuleNotFoundError, match="pip install triton"):
        kernels.token_probs(torch.zeros(1, 1, 3), torch.zeros(1, 0, dtype=torch.int64))


def to(device, block):
    return {name: None if tensor is None else tensor.to(device) for name, tensor in block.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("rule", [SpeculativeSampling(), Cactus(0.5), CactusExact(0.5)])
def test_a_gpu_agrees_with_torch_token_for_token(rule, one_hot):
    # Float64 logits: the two differ in the last digits only, and no uniform is that near.
    shape = {"batch": 8, "drafts": 3, "vocabulary": 151_936, "dtype": torch.float64}
    block = random_block(**shape, one_hot=one_hot)
    on_gpu = to("cuda", block)
    got = kernels.verify(rule, on_gpu.pop("tokens"), **on_gpu)
    again = to("cuda", block)
    want = verification.verify(rule, block.pop("tokens"), **block)
    assert torch.equal(got.accepted.cpu(), want.accepted)
    assert torch.equal(got.last_token.cpu(), want.last_token)
    repeated = kernels.verify(rule, again.pop("tokens"), **again)
    assert torch.equal(got.last_token, repeated.last_token)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_gpu_s_probabilities_are_as_good_as_float32(dtype):
    block = random_block(batch=8, drafts=3, vocabulary=151_936, dtype=dtype)
    tokens, logits = block["tokens"], block["target_logits"]
    got, _ = kernels.token_probs(logits.cuda(), tokens.cuda(), temperature=0.6)
    law = (logits[:, :-1].double() / 0.6).softmax(-1)
    want = law.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    # The device's exponential is good to 2^-22; an argument of 20 rounds it by 1e-6 more.
    torch.testing.assert_close(got.cpu(), want, rtol=2e-6, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 32])
def test_the_time_of_the_kernels_is_shown_beside_that_of_a_copy(batch, record_property):
    from triton.testing import do_bench

    block = to("cuda", random_block(batch=batch, drafts=5, vocabulary=151_936))
    logits, tokens = block["target_logits"], block["tokens"]
    copy = torch.empty_like(logits)
    _, normaliser = kernels.token_probs(logits, tokens)
    row = torch.zeros(batch, dtype=torch.int64, device="cuda")

    def draw():
        return kernels.draw(
            logits,
            normaliser,
            row,
            shrink=torch.ones_like(block["recover_uniforms"]),
            draft_probs=block["draft_probs"],
            rejected_token=tokens[:, 0],
            uniforms=block["recover_uniforms"],
        )

    times = {
        "a copy of the logits (reads and writes)": lambda: copy.copy_(logits),
        "token_probs": lambda: kernels.token_probs(logits, tokens),
        "draw": draw,
    }
    for name, launch in times.items():
        milliseconds = do_bench(launch)
        record_property(f"{name}, batch {batch} (ms)", milliseconds)
        print(f"{name}, batch {batch}: {1000 * milliseconds:.1f} us")
    assert torch.equal(copy, logits)
    assert ((draw() >= 0) & (draw() < 151_936)).all()
