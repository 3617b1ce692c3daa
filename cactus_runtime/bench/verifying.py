"""Verification from logits, against one log-sum-exp of the same logits and two common methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from cactus_runtime.bench.rounds import interleave, spread
from cactus_runtime.streams import draw_tokens
from cactus_runtime.verification.judge import judge
from cactus_theory import Cactus


def bench_verification(
    *, batch: int, drafts: int, vocabulary: int, delta: float, rounds: int, device: str
) -> Iterator[dict[str, Any]]:
    """Times of `judge` and of what it replaces, as ratios within each round."""
    block: dict[str, Any] = random_block(batch, drafts, vocabulary, device)
    rule = Cactus(delta)
    contenders: dict[str, Callable[[int], Any]] = {
        "logsumexp": lambda _: block["target_logits"].logsumexp(-1),
        "judge": lambda _: judge(rule, **block),
        "without a ledger": lambda _: judge(rule, **block, ledger=False),
        "textbook": lambda _: textbook(rule, **block),
        "materialised candidates": lambda _: materialised(rule, **block),
    }
    timed = {name: _waiting(run, device) for name, run in contenders.items()}
    runs = interleave(timed, rounds=rounds, description="verification")
    seconds = {name: [taken for taken, _ in run] for name, run in runs.items()}
    shape = {"batch": batch, "drafts": drafts, "vocabulary": vocabulary, "delta": delta}
    for name in ("logsumexp", "without a ledger", "textbook", "materialised candidates"):
        ratios = [a / b for a, b in zip(seconds["judge"], seconds[name], strict=True)]
        yield {
            "name": f"verification / {name}",
            "ratio": spread(ratios),
            "seconds": spread(seconds["judge"]),
            "other_seconds": spread(seconds[name]),
            **shape,
        }


def textbook(
    rule: Cactus,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor,
    target_logits: torch.Tensor,
    accept_uniforms: torch.Tensor,
    recover_uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax of all logits, gather, residuals of all positions, multinomial at one of them."""
    target = target_logits.softmax(-1)
    index = tokens.unsqueeze(-1)
    q = target[:, :-1].gather(-1, index).squeeze(-1)
    p = draft_probs.gather(-1, index).squeeze(-1)
    passes = accept_uniforms * p < rule.boost(q.double(), xp=torch)
    accepted = passes.long().cumprod(-1).sum(-1)
    shrink = rule.shrink(q.double(), xp=torch).unsqueeze(-1).to(target.dtype)
    residual = (shrink * target[:, :-1] - draft_probs).clamp(min=0)
    residual.scatter_(-1, index, 0.0)
    weights = torch.cat([residual, target[:, -1:]], dim=1)
    rows = torch.arange(len(tokens), device=tokens.device)
    return accepted, torch.multinomial(weights[rows, accepted], 1).squeeze(-1)


def materialised(
    rule: Cactus,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor,
    target_logits: torch.Tensor,
    accept_uniforms: torch.Tensor,
    recover_uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates h written out as tensors of the logits' size, then plain verification."""
    target = target_logits.softmax(-1)
    index = tokens.unsqueeze(-1)
    q = target[:, :-1].gather(-1, index)
    g = rule.boost(q.double(), xp=torch).to(target.dtype)
    candidate = target[:, :-1] * ((1 - g) / (1 - q))
    candidate = candidate.scatter(-1, index, g)
    p = draft_probs.gather(-1, index).squeeze(-1)
    accepted = (accept_uniforms * p < g.squeeze(-1)).long().cumprod(-1).sum(-1)
    residual = (candidate - draft_probs).clamp(min=0)
    residual = residual / residual.sum(-1, keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)
    laws = torch.cat([residual, target[:, -1:]], dim=1)
    rows = torch.arange(len(tokens), device=tokens.device)
    return accepted, draw_tokens(laws[rows, accepted], recover_uniforms)


def random_block(batch: int, drafts: int, vocabulary: int, device: str) -> dict[str, torch.Tensor]:
    """A random block in which the draft is the target with some noise."""
    rng = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(batch, drafts + 1, vocabulary, generator=rng)
    noise = torch.randn(batch, drafts, vocabulary, generator=rng)
    probs = (logits[:, :-1] + noise).softmax(-1)
    block = {
        "tokens": torch.multinomial(probs.flatten(0, 1), 1, generator=rng).view(batch, drafts),
        "draft_probs": probs,
        "target_logits": logits,
        "accept_uniforms": torch.rand(batch, drafts, generator=rng, dtype=torch.float64),
        "recover_uniforms": torch.rand(batch, generator=rng, dtype=torch.float64),
    }
    return {name: tensor.to(device) for name, tensor in block.items()}


def _waiting(run: Callable[[int], Any], device: str) -> Callable[[int], Any]:
    """The same function, which then waits for the device."""
    if not device.startswith("cuda"):
        return run

    def both(number: int) -> Any:
        result = run(number)
        torch.cuda.synchronize()
        return result

    return both
