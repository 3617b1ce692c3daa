"""Measured costs of the passes of two models, for `AdaptiveDraft` and the planning functions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from cactus_runtime.models.compiled import CompiledContext
from cactus_runtime.models.kv_cache import Context, vocabulary_size
from cactus_runtime.models.static_kv_cache import open_context
from cactus_theory._validate import integer


@dataclass(frozen=True)
class PassCosts:
    """Measured costs in plain target passes, for `AdaptiveDraft` and the planning functions.

    Attributes
    ----------
    draft_cost : float
        One drafted token.
    verify_cost : tuple of float
        Entry k: a target pass over k + 1 tokens. The first is 1 by definition.
    seconds : float
        One plain target pass.
    """

    draft_cost: float
    verify_cost: tuple[float, ...]
    seconds: float


def measure_costs(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    *,
    max_draft_tokens: int = 8,
    context_tokens: int = 128,
    repetitions: int = 7,
    compile: bool = False,
) -> PassCosts:
    """Time bare forward passes of two models: medians of interleaved repetitions.

    Parameters
    ----------
    target, draft : PreTrainedModel
    max_draft_tokens : int
        The table of verifying passes goes up to this many drafted tokens.
    context_tokens : int
        Tokens in the cache before each pass.
    repetitions : int
    compile : bool
        Time compiled passes, as a decoder with ``compile=True`` makes them.

    Returns
    -------
    PassCosts

    Raises
    ------
    TypeError, ValueError
        If a number has no meaning.

    Examples
    --------
    >>> from cactus_runtime import load_pair
    >>> pair = load_pair("tiny")
    >>> costs = measure_costs(pair.target, pair.draft, max_draft_tokens=2, repetitions=2)
    >>> costs.verify_cost[0], len(costs.verify_cost)
    (1.0, 3)
    """
    for name, value, least in (
        ("max_draft_tokens", max_draft_tokens, 0),
        ("context_tokens", context_tokens, 1),
        ("repetitions", repetitions, 1),
    ):
        integer(name, value, least)
    most = max_draft_tokens + 1
    held, drafted = (
        _context(model, context_tokens, widths, compile)
        for model, widths in ((target, (1, most)), (draft, (1,)))
    )
    passes = {count: _timed(held, count, context_tokens) for count in range(1, most + 1)}
    drafting = _timed(drafted, 1, context_tokens)
    taken: dict[int, list[float]] = {count: [] for count in [0, *passes]}
    for _ in range(repetitions + 1):
        taken[0].append(drafting())
        for count, run in passes.items():
            taken[count].append(run())
    medians = {count: statistics.median(times[1:]) for count, times in taken.items()}
    plain = medians[1]
    return PassCosts(
        draft_cost=medians[0] / plain,
        verify_cost=tuple(medians[count] / plain for count in passes),
        seconds=plain,
    )


def _context(
    model: PreTrainedModel, tokens: int, widths: tuple[int, ...], compile: bool
) -> Context:
    """A context that has read some tokens, and has room for the widest pass."""
    opened = CompiledContext if compile else open_context
    context = opened(model, rows=1, slots=tokens + max(widths))
    context.read([_ids(model, tokens)])
    if isinstance(context, CompiledContext):
        context.prepare(widths)
    return context


def _timed(context: Context, count: int, held: int) -> Callable[[], float]:
    """A function that reads `count` tokens after those held, and returns the seconds it took."""
    device = context.model.device
    new = _ids(context.model, held + count)[held:]

    def run() -> float:
        context.lengths[0] = held
        drafts = torch.tensor([new[1:]], device=device)
        started = time.perf_counter()
        context.read([new[:1]], drafts)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    return run


def _ids(model: PreTrainedModel, count: int) -> list[int]:
    return (torch.arange(count) % vocabulary_size(model)).tolist()
