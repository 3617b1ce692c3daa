"""One request being decoded: its tokens, text, random stream and ledger."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from cactus_runtime.request import Request
from cactus_runtime.result.result import DecodeResult
from cactus_runtime.result.trace import Block, Dtypes, FinishReason, Origin, Seconds, Token
from cactus_runtime.streams import Streams
from cactus_runtime.text import TextStream
from cactus_runtime.verification.judgement import RowJudgement
from cactus_runtime.verification.method import Method
from cactus_theory.rules import BetweenMarkers


class Row:
    """The state of one request; knows nothing of models and other rows.

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
        self.dtypes = Dtypes("unknown")  # set by the batch, which has the models
        self.ledger = request.budget
        self.length = request.draft_length.start()
        self.finish_reason: FinishReason | None = None
        self.eos_token_ids = frozenset(eos_token_ids)
        self.streams = Streams(request.seed, request.number)
        self.processors = {
            role: request.sampling.processors_for(len(self.ids), self.eos_token_ids)
            for role in ("draft", "target")
        }
        self._inside = self._is_inside()
        self._text = TextStream(tokenizer, prompt_ids, request.stop)
        self._has_text = tokenizer is not None
        self._prompt_tokens = len(self.ids)

    @property
    def has_budget(self) -> bool:
        return min(self.ledger.max_total_variation, self.ledger.max_kl) < math.inf

    @property
    def changes_rule(self) -> bool:
        """Whether the rule depends on the text so far."""
        return isinstance(self.request.rule, BetweenMarkers)

    @property
    def method(self) -> Method:
        """How the next block is verified."""
        rule = self.request.rule
        if isinstance(rule, BetweenMarkers):
            rule = rule.rule if self._inside else rule.outside
        return self.request.method_under(rule)

    def steps(self, drafted: Sequence[int]) -> int:
        """How many of these tokens are drafted at positions of the next block's rule."""
        rule = self.request.rule
        if not isinstance(rule, BetweenMarkers):
            return len(drafted)
        return rule.steps(self.ids, drafted, inside=self._inside)

    def _is_inside(self, *, begun: int = 0, inside: bool = False) -> bool:
        rule = self.request.rule
        if not isinstance(rule, BetweenMarkers):
            return False
        return rule.is_inside(self.ids, begun=begun, inside=inside)

    @property
    def longest_draft(self) -> int:
        """The largest number of tokens that can be drafted in any block."""
        return min(self.length.longest, self.request.max_new_tokens - 1)

    def draft_limit(self) -> int:
        """Tokens that may be drafted for the next block; one more is always emitted."""
        left = self.request.max_new_tokens - len(self.trace)
        return min(self.length.longest, left - 1)

    def uniforms(self, count: int) -> np.ndarray:
        """Uniforms of the next `count` positions; see `Streams.uniforms`."""
        return self.streams.uniforms(position=len(self.trace), count=count)

    def commit(self, judgement: RowJudgement) -> list[Token]:
        """Append a block's tokens up to the one that ends the text."""
        if judgement.empty_at == 0:
            raise ValueError(
                f"the processors of request {self.index} left no token to follow "
                f"its {len(self.ids)} tokens"
            )
        held = len(self.ids), len(self.trace)
        try:
            emitted = self._emit(judgement)
        except BaseException:  # raised by stop_when: results hold complete blocks only
            del self.ids[held[0] :], self.trace[held[1] :]
            raise
        self._inside = self._is_inside(begun=held[0], inside=self._inside)
        spent = [token.verdict for token in emitted if token.verdict is not None]
        costs = [verdict.charges for verdict in spent if verdict.charges is not None]
        self.ledger = self.ledger.spend(
            total_variations=[distance for distance, _ in costs], kls=[nats for _, nats in costs]
        )
        self.length.learn(spent)
        kept = min(judgement.accepted, len(emitted))
        self.blocks.append(Block(len(judgement.verdicts), kept, len(emitted)))
        return emitted

    def _emit(self, judgement: RowJudgement) -> list[Token]:
        """Append tokens up to the one that ends the text."""
        accepted, verdicts = judgement.accepted, judgement.verdicts
        # Where the processors left no token, the next block raises the error.
        tokens = judgement.tokens[: judgement.empty_at]
        drafted = len(verdicts)
        last: Origin = "plain" if drafted == 0 else "bonus" if accepted == drafted else "recovered"
        nothing: list[float | None] = [None] * len(tokens)
        logprobs = (
            judgement.logprobs,
            judgement.emitted_logprobs or nothing,
            judgement.warped_logprobs or nothing,
        )
        emitted: list[Token] = []
        for i, (token, logprob, drawn, warped) in enumerate(zip(tokens, *logprobs, strict=False)):
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
                    emitted_logprob=drawn,
                    warped_logprob=warped,
                )
            )
            self.trace.append(emitted[-1])
            if self.finish_reason is not None:
                break
        return emitted

    def _end(self, token: int) -> FinishReason | None:
        """Why the text ends with this token, apart from stop strings."""
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
            dtypes=self.dtypes,
        )


def distinct(values: Iterable[Any]) -> list[Any]:
    """The distinct values; they need not be hashable."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
