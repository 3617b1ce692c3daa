"""One request under way: its tokens, its text, its randomness and its account."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from cactus_runtime.request import Request
from cactus_runtime.result.result import (
    Block,
    DecodeResult,
    FinishReason,
    Origin,
    Seconds,
    Token,
    Verdict,
)
from cactus_runtime.streams import Streams
from cactus_runtime.text import TextStream
from cactus_runtime.verification.verify import Position, as_they_are

Role = Literal["draft", "target"]


@dataclass(frozen=True)
class Outcome:
    """What a block's verification says of one row.

    Attributes
    ----------
    tokens : list of int
        Accepted drafts and one more.
    accepted : int
    verdicts : list of Verdict
        Of all drafted tokens, refused ones included.
    logprobs : list of float
        Of `tokens`, under the target itself.
    lawless : int or None
        The first position at which the processors left no token.
    """

    tokens: list[int]
    accepted: int
    verdicts: list[Verdict]
    logprobs: list[float]
    lawless: int | None = None

    @property
    def finite(self) -> bool:
        """False if logits that mattered were not."""
        judged = [verdict.draft_prob for verdict in self.verdicts]
        return all(map(math.isfinite, [*self.logprobs, *judged]))


class Row:
    """A request and all that has happened to it; knows nothing of models and of other rows.

    Parameters
    ----------
    request : Request
    prompt_ids : sequence of int
    tokenizer : PreTrainedTokenizerBase or None
    eos_token_ids : collection of int
    """

    def __init__(
        self,
        request: Request,
        prompt_ids: Sequence[int],
        tokenizer: PreTrainedTokenizerBase | None,
        eos_token_ids: Iterable[int],
    ) -> None:
        self.request = request
        self.index = 0  # among the requests of a batch
        self.ids = list(prompt_ids)
        self.trace: list[Token] = []
        self.blocks: list[Block] = []
        self.seconds = Seconds()
        self.ledger = request.budget
        self.length = request.draft_length.start()
        self.finish_reason: FinishReason | None = None
        self.eos_token_ids = frozenset(eos_token_ids)
        self.streams = Streams(request.seed, request.number)
        self.processors = {
            role: request.sampling.processors_for(len(self.ids), self.eos_token_ids)
            for role in ("draft", "target")
        }
        self._text = TextStream(tokenizer, prompt_ids, request.stop)
        self._has_text = tokenizer is not None
        self._prompt_tokens = len(self.ids)

    @property
    def has_budget(self) -> bool:
        return min(self.ledger.max_total_variation, self.ledger.max_kl) < math.inf

    def draft_limit(self) -> int:
        """Tokens that may be drafted for the next block; one more is always emitted."""
        left = self.request.max_new_tokens - len(self.trace)
        return min(self.length.longest, left - 1)

    def uniforms(self, count: int) -> np.ndarray:
        """Uniforms of the next `count` positions; see `Streams.uniforms`."""
        return self.streams.uniforms(position=len(self.trace), count=count)

    def commit(self, outcome: Outcome) -> list[Token]:
        """Append a block's tokens up to the one that ends the text."""
        if outcome.lawless == 0:
            raise ValueError(
                f"the processors of request {self.index} left no token to follow "
                f"its {len(self.ids)} tokens"
            )
        held = len(self.ids), len(self.trace)
        try:
            emitted = self._emit(outcome)
        except BaseException:  # of stop_when: what is told is whole blocks
            del self.ids[held[0] :], self.trace[held[1] :]
            raise
        spent = [token.verdict for token in emitted if token.verdict is not None]
        self.ledger = self.ledger.spend(
            total_variations=[verdict.total_variation for verdict in spent],
            kls=[verdict.kl_bound for verdict in spent],
        )
        self.length.learn(spent)
        kept = min(outcome.accepted, len(emitted))
        self.blocks.append(Block(len(outcome.verdicts), kept, len(emitted)))
        return emitted

    def _emit(self, outcome: Outcome) -> list[Token]:
        """Append tokens up to the one that ends the text."""
        accepted, verdicts = outcome.accepted, outcome.verdicts
        tokens = outcome.tokens[: outcome.lawless]  # the next block begins where there is no law
        drafted = len(verdicts)
        last: Origin = "plain" if drafted == 0 else "bonus" if accepted == drafted else "recovered"
        emitted: list[Token] = []
        for i, (token, logprob) in enumerate(zip(tokens, outcome.logprobs, strict=False)):
            self.ids.append(token)
            reason = self._end(token)
            piece = self._text.push(token, last=reason is not None)
            self.finish_reason = "stop" if self._text.stopped else reason
            emitted.append(
                Token(
                    id=token,
                    text=piece,
                    origin="accepted" if i < accepted else last,
                    logprob=logprob,
                    verdict=verdicts[i] if i < drafted else None,
                )
            )
            self.trace.append(emitted[-1])
            if self.finish_reason is not None:
                break
        return emitted

    def _end(self, token: int) -> FinishReason | None:
        """Why the text ends with this token, its stop strings aside."""
        stop_when = self.request.stop_when
        if stop_when is not None and stop_when(self.ids):
            return "stop"
        if token in self.eos_token_ids:
            return "eos"
        return "length" if len(self.trace) + 1 == self.request.max_new_tokens else None

    @property
    def result(self) -> DecodeResult:
        """The result so far, in whole blocks; finish_reason is "interrupted" until the end."""
        return DecodeResult(
            text="".join(token.text for token in self.trace) if self._has_text else None,
            trace=tuple(self.trace),
            prompt_tokens=self._prompt_tokens,
            finish_reason=self.finish_reason or "interrupted",
            seed=self.streams.seed,
            number=self.streams.request,
            rule=self.request.rule,
            blocks=tuple(self.blocks),
            seconds=self.seconds,
        )


class BlockWarp:
    """Bias, penalties, temperature and filters of several rows, at the positions of one block.

    Parameters
    ----------
    rows : sequence of B Rows
    role : "draft" or "target"
        Whose logits are warped.
    drafts : int64 tensor, shape (B, k)
        The tokens that follow those of the rows; position j is after j of them.
    """

    def __init__(self, rows: Sequence[Row], role: Role, drafts: torch.Tensor) -> None:
        self._rows, self._role, self._drafts = rows, role, drafts
        self._samplings = distinct(row.request.sampling for row in rows)
        self._known: dict[tuple[int, int], torch.Tensor] = {}  # processed logits of row, position
        self.lawless: dict[int, int] = {}  # of a row the first position where no token is left

    def __call__(self, logits: torch.Tensor, position: Position) -> torch.Tensor:
        logits = as_they_are(logits, position)
        if any(row.processors[self._role] for row in self._rows):
            logits = self._process(logits, position)
        if len(self._samplings) == 1:
            return self._samplings[0].warp(logits)
        warped = torch.empty_like(logits)
        for sampling in self._samplings:
            own = [i for i, row in enumerate(self._rows) if row.request.sampling == sampling]
            warped[own] = sampling.warp(logits[own])
        return warped

    def _process(self, logits: torch.Tensor, position: Position) -> torch.Tensor:
        places = [position] * len(logits) if isinstance(position, int) else position.tolist()
        return torch.cat(
            [self._processed(i, place, logits[i : i + 1]) for i, place in enumerate(places)]
        )

    def _processed(self, i: int, place: int, logits: torch.Tensor) -> torch.Tensor:
        """One row, once: processors are slow, and may count their calls or write into logits."""
        row = self._rows[i]
        processors = row.processors[self._role]
        if not processors:
            return logits
        if (i, place) not in self._known:
            own = torch.tensor([row.ids], device=logits.device)
            ids: Any = torch.cat([own, self._drafts[i : i + 1, :place]], dim=1)
            found = processors(ids, logits.clone())
            self._check(found, row, logits)
            if found.amax() == -torch.inf:  # an error where the text comes to that position
                self.lawless[i] = min(place, self.lawless.get(i, place))
                found = logits
            self._known[i, place] = found.detach()
        return self._known[i, place]

    def _check(self, found: Any, row: Row, logits: torch.Tensor) -> None:
        wanted = f"{logits.dtype} of shape {tuple(logits.shape)}"
        if not isinstance(found, torch.Tensor) or not found.is_floating_point():
            raise TypeError(
                f"the processors of request {row.index} must return logits, {wanted}, got "
                f"{type(found).__name__ if not isinstance(found, torch.Tensor) else found.dtype}"
            )
        if found.shape != logits.shape:
            raise ValueError(
                f"the processors of request {row.index} must return logits, {wanted}, got shape "
                f"{tuple(found.shape)}"
            )
        if not found.amax() < torch.inf:
            raise ValueError(
                f"the processors of request {row.index} must return logits below inf, got a "
                f"largest one of {float(found.amax())} to follow its {len(row.ids)} tokens"
            )


def distinct(values: Iterable[Any]) -> list[Any]:
    """The values without repetitions; they need not be hashable."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
