"""Blocks that the interpreted kernels judge, in chunks small enough for the interpreter."""

import os
from dataclasses import fields

import numpy as np
import torch

from cactus_runtime import SamplingParams
from cactus_runtime.loop.warp import SamplingWarp
from cactus_runtime.verification import candidates, kernels, passes
from cactus_theory.rules import CandidateRule

CHUNK = 64
if os.environ.get("TRITON_INTERPRET") == "1":  # the interpreter takes its time
    passes._CHUNK = CHUNK
LAST_UNIFORM = 1 - 2.0**-53


class HalfWay(CandidateRule):
    """A rule of the user's, which emits a rational distribution."""

    def boost(self, target_prob, *, xp=np):
        return (1 + target_prob) / 2

    def shrink(self, target_prob, *, xp=np):
        return 0.5 * xp.ones_like(target_prob)


def random_block(
    seed,
    *,
    batch=3,
    drafts=2,
    vocabulary=9,
    draft="noisy",
    dtype=torch.float32,
    temperature=1.0,
    kept=None,
):
    """Keyword arguments of `judge_candidates`; `kept` is the number of finite logits of a row."""
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch, drafts + 1, vocabulary, generator=rng)
    if kept is not None:
        lowest = logits.topk(min(kept, vocabulary)).values[..., -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    logits = logits.to(dtype)
    noise = 2 * torch.randn(batch, drafts, vocabulary, generator=rng)
    if draft == "target":
        noise = 0.0
    probs = (logits[:, :-1].double() / temperature + noise).softmax(-1).float()
    tokens = torch.empty(batch, drafts, dtype=torch.int64)
    if drafts:
        tokens = probs.flatten(0, 1).multinomial(1, generator=rng).view(batch, drafts)
    return {
        "tokens": tokens,
        "draft_probs": None if draft == "one-hot" else probs,
        "target_logits": logits,
        "accept_uniforms": torch.rand(batch, drafts, generator=rng, dtype=torch.float64),
        "recover_uniforms": torch.rand(batch, generator=rng, dtype=torch.float64),
        "num_drafts": None,
        "limits": None,
        "warp": tempered(temperature),
    }


def tempered(temperature=1.0):
    return SamplingWarp(SamplingParams(temperature))


BARE = {"num_drafts": None, "limits": None, "warp": tempered()}


def assert_agrees_with_torch(rule, block):
    """With what torch finds by float64 formulas over the same numbers."""
    exact = block["target_logits"].dtype == torch.float64
    got = kernels.judge_candidates(rule, **block)
    for name in ("target_logits", "draft_probs"):
        if block[name] is not None:
            block = block | {name: block[name].double()}
    want = candidates.judge_candidates(rule, **block)
    # float32: exponentials of exponents up to 20, in the normaliser alone for charges
    rtol, atol = (1e-9, 1e-14) if exact else (2e-6, 1e-7)
    for field in fields(got):
        found, wanted = getattr(got, field.name), getattr(want, field.name)
        if found is None and wanted is None:  # asked for by nobody
            continue
        if field.name == "logprobs":  # those after the last token have no meaning
            after = torch.arange(found.shape[1]) > got.accepted.unsqueeze(-1)
            found, wanted = (part.masked_fill(after, 0.0) for part in (found, wanted))
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(
            found, wanted, rtol=rtol, atol=atol, msg=lambda why, n=field.name: f"{n}: {why}"
        )
    return got
