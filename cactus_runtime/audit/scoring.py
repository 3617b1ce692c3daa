"""Distributions of the positions of a transcript, as the sampler should have had them.

Knows models and sampling parameters. A position keeps its most probable tokens; the others are one
token to the test, which stays exact, since the choice does not depend on the token sampled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch

from cactus_runtime.audit.transcripts import Scorable
from cactus_runtime.models.kv_cache import vocabulary_size
from cactus_runtime.sampling import SamplingParams
from cactus_runtime.teacher_forcing import logits_of_text
from cactus_theory.testing import ALTERNATIVES, Alternative

KEPT = 256
EDGE = 1e-3  # of the unfiltered distribution, where a filter's edge may round the other way
_FACTORS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.43, 2.0, 3.0)


class Scored(NamedTuple):
    """One position: the column of its token, and distributions over the columns."""

    token: int
    target: np.ndarray
    draft: np.ndarray | None
    others: dict[str, np.ndarray]
    kept: torch.Tensor  # the ids of all columns but the last


class Scorer:
    """Scores transcripts with a target, and perhaps a draft.

    Parameters
    ----------
    target, draft : PreTrainedModel
    sampling : SamplingParams
        What the sampler is said to apply.
    eos_token_ids : iterable of int
    edge : bool
        Whether a share of `EDGE` of the distribution before the filters is mixed into q.

    Raises
    ------
    ValueError
        If the temperature is 0.

    Examples
    --------
    >>> from cactus_runtime import load_pair
    >>> scorer = Scorer(load_pair("tiny").target, sampling=SamplingParams(temperature=0.7))
    >>> [round(float(row.target.sum()), 6) for row in scorer.score(Scorable([5], [9, 9]))]
    [1.0, 1.0]
    """

    def __init__(
        self,
        target: Any,
        *,
        draft: Any = None,
        sampling: SamplingParams,
        eos_token_ids: Any = (),
        edge: bool = False,
    ) -> None:
        if sampling.greedy:
            raise ValueError(
                "temperature must be > 0, got 0: a greedy transcript has no distribution to test"
            )
        self._target, self._draft, self._sampling = target, draft, sampling
        self._ends = frozenset(eos_token_ids)
        bare = SamplingParams(temperature=sampling.temperature)
        same = dataclasses.replace
        self._filtered = (sampling.top_k, sampling.top_p, sampling.min_p) != (None, 1.0, 0.0)
        self._edge = edge and self._filtered
        self._variants: dict[str, tuple[SamplingParams, bool]] = {}
        for factor in _FACTORS:
            hotter = same(sampling, temperature=sampling.temperature * factor)
            self._variants[_hot(hotter.temperature)] = (hotter, True)
        if sampling.temperature != 1:
            self._variants["temperature not applied"] = (same(sampling, temperature=1.0), True)
            twice = same(sampling, temperature=sampling.temperature**2)
            self._variants["temperature applied twice"] = (twice, True)
        if self._filtered:
            self._variants["filters not applied"] = (bare, True)
        if sampling.processors_for(0, self._ends):
            self._variants["penalties not applied"] = (sampling, False)

    @property
    def alternatives(self) -> list[Alternative]:
        """The catalogue, with temperatures of the logits in place of those of merged tokens."""
        found = [a for a in ALTERNATIVES if not a.family.startswith("temperature")]
        for name, (params, _) in self._variants.items():
            hot = name == _hot(params.temperature)
            found.append(_reading(name, params.temperature if hot else None))
        return found

    @torch.no_grad()
    def score(
        self, sample: Scorable, kept: Sequence[torch.Tensor] | None = None
    ) -> Iterator[Scored]:
        """The positions of a transcript, in order.

        Parameters
        ----------
        sample : Scorable
        kept : sequence of tensors, optional
            The ids of each position's columns; by default those of the most probable tokens.
        """
        ids = torch.tensor([[*sample.prompt_ids, *sample.token_ids]], device=self._target.device)
        start, width = len(sample.prompt_ids), vocabulary_size(self._target)
        rows, drafts = (
            repeat(None) if model is None else logits_of_text(model, *sample, width=width)
            for model in (self._target, self._draft)
        )
        for i, (token, row, draft) in enumerate(zip(sample.token_ids, rows, drafts, strict=False)):
            given = None if kept is None else kept[i]
            yield self._position(ids[:, : start + i], token, start, row, draft, given)

    def _position(
        self,
        before: Any,  # LongTensor, says transformers
        token: int,
        start: int,
        logits: Any,
        draft: Any,
        kept: torch.Tensor | None,
    ) -> Scored:
        processors = self._sampling.processors_for(start, self._ends)
        processed = processors(before, logits.clone()) if processors else logits
        q = _law(self._sampling, processed)
        if self._edge:
            bare = _law(SamplingParams(temperature=self._sampling.temperature), processed)
            q = (1 - EDGE) * q + EDGE * bare
        rows = {
            name: _law(params, processed if with_processors else logits)
            for name, (params, with_processors) in self._variants.items()
        }
        p = None
        if draft is not None:
            shaped = processors(before, draft.clone()) if processors else draft
            p = _law(self._sampling, shaped)
        ranked = q if p is None else torch.maximum(p, q)
        if kept is None:
            kept = torch.topk(ranked, min(KEPT, q.numel())).indices
        at = (kept == token).nonzero()
        column = int(at[0]) if len(at) else len(kept)
        take = lambda law: _merged(law, kept)  # noqa: E731
        return Scored(
            column,
            take(q),
            None if p is None else take(p),
            {name: take(row) for name, row in rows.items()},
            kept,
        )


def _hot(temperature: float) -> str:
    return f"temperature {temperature:.3g}"


def _reading(name: str, value: float | None) -> Alternative:
    family = name if value is None else "temperature {:.3g}"
    return Alternative(family, lambda s: s.others[name], value, name)


def _law(params: SamplingParams, logits: torch.Tensor) -> torch.Tensor:
    return params.warp(logits.double()).softmax(-1)[0]


def _merged(law: torch.Tensor, kept: torch.Tensor) -> np.ndarray:
    held = law[kept]
    row = torch.cat([held, (1 - held.sum()).clamp(min=0)[None]]).cpu().numpy()
    return row / row.sum()
