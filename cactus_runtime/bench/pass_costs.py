"""Measured costs of the passes of two models, for `AdaptiveDraft` and the planning functions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from cactus_runtime.models.kv_cache import vocabulary_size
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
    passes: dict[int, Callable[[], float]] = {
        count: _timed(target, count, context_tokens) for count in range(1, max_draft_tokens + 2)
    }
    drafting = _timed(draft, 1, context_tokens)
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


def _timed(model: PreTrainedModel, count: int, context_tokens: int) -> Callable[[], float]:
    """A function that reads `count` tokens after the context and returns the seconds it took."""
    context = open_context(model, rows=1, slots=context_tokens + count)
    ids = torch.arange(context_tokens + count) % vocabulary_size(model)
    context.read([ids[:context_tokens].tolist()])
    new = ids[context_tokens:].tolist()

    def run() -> float:
        context.lengths[0] = context_tokens
        drafts = torch.tensor([new[1:]], device=model.device)
        started = time.perf_counter()
        context.read([new[:1]], drafts)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        return time.perf_counter() - started

    return run
