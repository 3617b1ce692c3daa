"""Whole blocks without decisions on the host: draft loop, target pass, verification, charges.

A few numbers are copied to the device, and the result is copied back. Between the two, such a block
is one function of fixed buffers, so a CUDA device launches one graph for it. On other devices the
function runs directly, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from cactus_runtime.draft_length import FixedLength
from cactus_runtime.loop.drafting import (
    BatchDrafter,
    Drafts,
    FusedDrafter,
    ModelDrafts,
    NoDrafts,
)
from cactus_runtime.loop.row import Row, distinct
from cactus_runtime.loop.warp import SamplingWarp
from cactus_runtime.models.device import fill
from cactus_runtime.models.kv_cache import Context
from cactus_runtime.models.static_kv_cache import StaticContext
from cactus_runtime.sampling import SamplingParams
from cactus_runtime.streams import Purpose
from cactus_runtime.verification.judge import judge, judged_in_torch
from cactus_runtime.verification.judgement import RowJudgement, unpacked
from cactus_runtime.verification.method import Method

_KEPT = 16  # programs


class Judged(NamedTuple):
    """Judgements of a block's rows, and the numbers that reveal non-finite logits."""

    judgements: list[RowJudgement]
    drafts: Drafts
    normaliser: torch.Tensor


class BlockPrograms:
    """The most recently used block programs; each may hold a graph, so their number is limited.

    Parameters
    ----------
    target : StaticContext
    drafter : FusedDrafter
    """

    def __init__(self, target: StaticContext, drafter: FusedDrafter) -> None:
        self._target, self._drafter = target, drafter
        self._programs: list[tuple[tuple[Method, SamplingParams, int], BlockProgram | None]] = []

    def find(self, rows: Sequence[Row]) -> BlockProgram | None:
        """The program for the next block of these rows, made if necessary;

        None if there is none. There is one if the rows share method and sampling, if no rule,
        marker, budget, processor or adaptive draft length needs the host, and if the models have
        only the last tokens left to read.
        """
        lengths = self._target.lengths
        methods = distinct(row.method for row in rows)
        samplings = distinct(row.request.sampling for row in rows)
        k = max(row.longest_draft for row in rows)
        if (
            len(methods) > 1
            or len(samplings) > 1
            or any(row.has_budget or row.changes_rule for row in rows)
            or any(any(row.processors.values()) for row in rows)
            or not all(isinstance(row.length, FixedLength) for row in rows)
            or not all(lengths[i] == len(row.ids) - 1 > 0 for i, row in enumerate(rows))
            or not self._drafter.ready(rows, k)
        ):
            return None
        return self._known((methods[0], samplings[0], k))

    def _known(self, key: tuple[Method, SamplingParams, int]) -> BlockProgram | None:
        for known, program in self._programs:
            if known == key:
                return program
        program = None
        if judged_in_torch(key[0].rule):
            program = BlockProgram(self._target, self._drafter, *key)
        self._programs.append((key, program))
        del self._programs[:-_KEPT]
        return program


def open_programs(target: Context, drafter: BatchDrafter) -> BlockPrograms | None:
    """Programs for contexts of fixed shapes; None for others, whose blocks run step by step."""
    if isinstance(target, StaticContext) and isinstance(drafter, NoDrafts | ModelDrafts):
        return BlockPrograms(target, drafter)
    return None


class BlockProgram:
    """Blocks of up to k drafted tokens, under one method and one sampling.

    A row that may draft fewer tokens still computes k of them, and the extra ones are not used.
    Unused rows of the batch are computed too, and their results are dropped.

    Parameters
    ----------
    target : StaticContext
    drafter : FusedDrafter
    method : Method
        Of a rule for which `judged_in_torch` holds.
    sampling : SamplingParams
        Only its temperature and filters are applied, and nothing that reads earlier tokens.
    k : int
    """

    def __init__(
        self,
        target: StaticContext,
        drafter: FusedDrafter,
        method: Method,
        sampling: SamplingParams,
        k: int,
    ) -> None:
        self._target, self._drafter = target, drafter
        self._method, self._warp, self._k = method, SamplingWarp(sampling), k
        shape = len(target.lengths), 4 + len(Purpose) * (k + 1)
        self._given = torch.zeros(shape, dtype=torch.float64, device=target.model.device)
        self._given[:, 2] = 2  # dummy tokens for unused rows: the last two, which are zeros
        self._launch: Callable[[], tuple[torch.Tensor, Drafts, torch.Tensor]] | None = None

    def __call__(self, rows: Sequence[Row]) -> Judged:
        """Compute the next block of the first rows of the batch.

        Their last tokens are copied to the device, one launch follows, and one copy back, the only
        time that the host waits.
        """
        counts = self._drafter.limited(rows, [row.draft_limit() for row in rows])
        given = [_given(row, count, self._k) for row, count in zip(rows, counts, strict=True)]
        fill(self._given[: len(rows)], np.stack(given))
        if self._launch is None:
            self._launch = self._target.recorder(self._compute)
        packed, drafts, normaliser = self._launch()
        self._drafter.drafted(rows, self._k)
        judgements = unpacked(packed[: len(rows)].tolist(), counts, self._method)
        return Judged(judgements, drafts.of(slice(len(rows)), counts), normaliser[: len(rows)])

    @torch.no_grad()
    def _compute(self) -> tuple[torch.Tensor, Drafts, torch.Tensor]:
        """The packed judgement of all rows, their drafts, and the log-sum-exps of the target."""
        last, length, count = self._given[:, :4].long().split([2, 1, 1], dim=-1)
        uniforms = self._given[:, 4:].unflatten(-1, (self._k + 1, len(Purpose)))
        drafts = self._drafter.draft_all(last, length, uniforms[:, :-1, Purpose.DRAFT], self._warp)
        tokens = torch.cat([last[:, 1:], drafts.tokens], dim=-1)
        steps = torch.arange(self._k + 1, device=tokens.device)
        logits = self._target.read_at(tokens, length - 1 + steps)
        judgement = judge(
            self._method.rule,
            drafts.tokens,
            draft_probs=drafts.probs,
            target_logits=logits,
            accept_uniforms=uniforms[:, : drafts.tokens.shape[1], Purpose.ACCEPT],
            recover_uniforms=uniforms[:, 0, Purpose.RECOVER],
            num_drafts=count.squeeze(-1),
            warp=self._warp,
            verification=self._method.verification,
            emitted_logprobs=self._method.emitted_logprobs,
            ledger=self._method.ledger,
        )
        return judgement.packed(), drafts, judgement.log_normaliser


def _given(row: Row, count: int, k: int) -> np.ndarray:
    """One row of a program's input: last two ids, number of ids, drafts that count, uniforms."""
    head = [*row.ids[-2:], len(row.ids), count]
    return np.concatenate([head, row.uniforms(k + 1).ravel()])
