"""The loop: propose, verify, commit, until every text has ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from cactus_runtime.loop.block_program import BlockProgram, open_programs
from cactus_runtime.loop.drafting import BatchDrafter, Drafts, ModelDrafts
from cactus_runtime.loop.judging import check_finite, judge_rows
from cactus_runtime.loop.row import Row
from cactus_runtime.models.compiled import CompiledContext, rounded_slots
from cactus_runtime.models.device import to_device
from cactus_runtime.models.fingerprint import fingerprint
from cactus_runtime.models.int4 import weight_types
from cactus_runtime.models.static_kv_cache import open_context
from cactus_runtime.proposal import Drafter
from cactus_runtime.result.result import DecodeResult
from cactus_runtime.result.trace import Token
from cactus_runtime.streams import Purpose
from cactus_runtime.verification.judgement import RowJudgement

_SPARE_SLOTS = 256


class DecodeState:
    """What a batch is decoded with: both models' caches, and the block programs that use them.

    Parameters
    ----------
    target : PreTrainedModel
    draft : PreTrainedModel, Drafter or None
    drafter : BatchDrafter
        Proposes the drafts, with caches of the same numbers of rows and slots.
    rows : int
        Maximum number of rows decoded together.
    slots : int
        Maximum number of tokens of a row, drafts included.
    compiled : bool
        Whether the target's passes are compiled; see `CompiledContext`.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel | Drafter | None,
        drafter: BatchDrafter,
        *,
        rows: int,
        slots: int,
        compiled: bool = False,
    ) -> None:
        opened = CompiledContext if compiled else open_context
        self.target = opened(target, rows=rows, slots=slots)
        self.drafter = drafter
        self.programs = open_programs(self.target, drafter)
        self._rows, self._slots = rows, rounded_slots(slots) if compiled else slots
        self.dtypes = weight_types(target, draft)
        self._models = fingerprint(target), fingerprint(draft)

    def prepare(self, rows: Sequence[Row]) -> float:
        """Compile what these rows need, where passes are compiled; the seconds that it took."""
        if not isinstance(self.target, CompiledContext):
            return 0.0
        longest = {row.longest_draft for row in rows}
        seconds = self.target.prepare({k + 1 for k in longest})
        if isinstance(self.drafter, ModelDrafts):
            seconds += self.drafter.prepare(max(longest))
        return seconds

    def can_reuse(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel | Drafter | None,
        *,
        rows: int,
        slots: int,
    ) -> bool:
        """Whether it fits another batch of these models, without much unused room.

        Unused room costs time, because the passes of a static context read all slots.
        """
        fits = rows == self._rows and slots <= self._slots <= 2 * slots + _SPARE_SLOTS
        return fits and self._models == (fingerprint(target), fingerprint(draft))


class BatchDecoding(Iterator[tuple[int, Token]]):
    """Requests being decoded together: iterate over (index of the request, token).

    A row that ends makes room for the next request that waits. What a row emits does not depend on
    the others, except where a model's kernels differ in their last bits between batch shapes.

    Parameters
    ----------
    state : DecodeState
    rows : sequence of Rows
        One for each request.
    batch_size : int
        Rows decoded together.
    on_end : callable
        Called with the state when all texts have ended.

    Examples
    --------
    >>> from cactus_runtime import Decoder, Request
    >>> requests = Request("dog:", max_new_tokens=3, seed=1).samples(2)
    >>> batch = Decoder("tiny").batch(requests)
    >>> sorted({index for index, token in batch}), [len(r.tokens) for r in batch.results]
    ([0, 1], [3, 3])
    """

    def __init__(
        self,
        state: DecodeState,
        rows: Sequence[Row],
        *,
        batch_size: int,
        on_end: Callable[[DecodeState], object],
    ) -> None:
        compilation = state.prepare(rows)
        self._state, self._on_end = state, on_end
        self._target, self._drafter = state.target, state.drafter
        self._programs = state.programs
        self._rows = list(rows)
        for index, row in enumerate(rows):
            row.index = index
            row.dtypes = state.dtypes
            row.seconds.compilation = compilation
        self._batch_size = batch_size
        self._waiting = deque(range(len(rows)))
        self._active: list[int] = []
        self._failure: Exception | None = None
        self._pending = self._run()

    def __next__(self) -> tuple[int, Token]:
        if self._failure is not None:
            raise self._failure
        try:
            return next(self._pending)
        except StopIteration:
            raise
        except Exception as failure:
            self._failure = failure  # otherwise the next call would look like the end of the text
            raise

    def finish(self, on_token: Callable[[int, Token], object] | None = None) -> list[DecodeResult]:
        """Decode to the end and return the results; on Ctrl-C, the results so far.

        An exception of `on_token` passes through, and the decode can be continued. An exception
        inside a block (from a model, a drafter, a processor) ends the decode, and every later call
        raises it again.
        """
        try:
            for index, token in self:
                if on_token is not None:
                    on_token(index, token)
        except KeyboardInterrupt:
            pass
        return self.results

    def completed(self) -> Iterator[tuple[int, DecodeResult]]:
        """Decode to the end, and yield (index, result) of each request as its text ends.

        Examples
        --------
        >>> from cactus_runtime import Decoder, Request
        >>> requests = [Request("dog:", max_new_tokens=n, seed=1) for n in (9, 1)]
        >>> [index for index, result in Decoder("tiny").batch(requests).completed()]
        [1, 0]
        """
        for index, token in self:
            row = self._rows[index]
            if row.finish_reason is not None and token is row.trace[-1]:
                yield index, row.result

    @property
    def results(self) -> list[DecodeResult]:
        """Results so far, in whole blocks, in the order of the requests."""
        return [row.result for row in self._rows]

    def _run(self) -> Iterator[tuple[int, Token]]:
        while self._waiting or self._active:
            yield from self._block()
        self._on_end(self._state)

    def _block(self) -> list[tuple[int, Token]]:
        started = time.perf_counter()
        self._admit()
        rows = [self._rows[index] for index in self._active]
        program = None if self._programs is None else self._programs.find(rows)
        judged = self._in_parts(rows) if program is None else self._at_once(program, rows)
        emitted = [
            (index, token)
            for index, row, judgement in zip(self._active, rows, judged, strict=True)
            for token in row.commit(judgement)
        ]
        self._settle(rows)
        seconds = time.perf_counter() - started
        for row in rows:
            row.seconds.total += seconds
        return emitted

    def _in_parts(self, rows: Sequence[Row]) -> list[RowJudgement]:
        clock = [time.perf_counter()]
        counts = [self._target.limited(row.draft_limit(), len(row.ids)) for row in rows]
        uniforms = self._uniforms(rows, max(counts) + 1)
        drafts = self._drafter.propose(rows, counts, uniforms[:, :-1, Purpose.DRAFT])
        drafts = _under_one_rule(rows, drafts)
        clock.append(time.perf_counter())
        logits = self._target.read(self._unread(rows), drafts.tokens)
        clock.append(time.perf_counter())
        judged = judge_rows(rows, drafts, logits, uniforms)
        clock.append(time.perf_counter())
        for row in rows:
            row.seconds.draft += clock[1] - clock[0]
            row.seconds.target += clock[2] - clock[1]
            row.seconds.verification += clock[3] - clock[2]
        return judged

    def _at_once(self, program: BlockProgram, rows: Sequence[Row]) -> list[RowJudgement]:
        started = time.perf_counter()
        judged, drafts, normaliser = program(rows)
        if not all(row.finite for row in judged):
            check_finite(rows, drafts, normaliser)
        seconds = time.perf_counter() - started
        for row in rows:
            row.seconds.fused += seconds
        return judged

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self._batch_size:
            place = len(self._active)
            self._target.lengths[place] = 0
            self._drafter.clear(place)
            self._active.append(self._waiting.popleft())

    def _settle(self, rows: Sequence[Row]) -> None:
        """Rewind to what was emitted, and fill the places of rows that have ended."""
        for i, row in enumerate(rows):
            self._target.lengths[i] = len(row.ids) - 1
        self._drafter.settle(rows)
        for place in reversed(range(len(rows))):
            if rows[place].finish_reason is not None:
                last = len(self._active) - 1
                self._target.move(last, place)
                self._drafter.move(last, place)
                self._active[place] = self._active[last]
                self._active.pop()

    def _unread(self, rows: Sequence[Row]) -> list[Sequence[int]]:
        return [self._target.unread(i, row.ids) for i, row in enumerate(rows)]

    def _uniforms(self, rows: Sequence[Row], count: int) -> torch.Tensor:
        drawn = np.stack([row.uniforms(count) for row in rows])
        return to_device(drawn, self._target.model.device)


def _under_one_rule(rows: Sequence[Row], drafts: Drafts) -> Drafts:
    """The drafts up to the first that completes a marker at which the row's rule changes.

    Whether a position has a draft then depends on the tokens before it only, as ledgers ask.
    """
    if not any(row.changes_rule for row in rows):
        return drafts
    drafted = zip(rows, drafts.tokens.tolist(), drafts.counts, strict=True)
    return drafts.first([row.steps(tokens[:count]) for row, tokens, count in drafted])
