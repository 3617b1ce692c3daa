"""From logits to the sampled distribution: bias, penalties, temperature and filters.

They are applied to both models at every drafted and every verified position. Parts that depend on
earlier tokens (penalties, forbidden words, a minimum length) are computed from exactly the tokens
before each position, drafted ones included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from cactus_theory._validate import integer, number

STATEFUL = (UnbatchedClassifierFreeGuidanceLogitsProcessor, SynthIDTextWatermarkLogitsProcessor)
_LARGEST = 1e38
_COLDEST, _HOTTEST = 1e-30, 1e30  # float32 can still divide by them


@dataclass(frozen=True)
class SamplingParams:
    """How logits become a distribution. Order: penalties, temperature, top-k, top-p, min-p.

    Parameters
    ----------
    temperature : float
        0, or in [1e-30, 1e30]. At 0 the distribution is one-hot on the first largest logit: greedy
        decoding.
    top_k : int or None
        Keep the k most probable tokens (and ties of the k-th); None keeps all.
    top_p : float
        In (0, 1]; keep the smallest set of most probable tokens that reaches this mass.
    min_p : float
        In [0, 1); keep tokens at least this fraction as probable as the most probable one.
    repetition_penalty : float
        > 0; positive logits of tokens of prompt or text are divided by it, negative multiplied.
    presence_penalty, frequency_penalty : float
        Subtracted from the logits of tokens of the text (not the prompt): once, and once for
        every occurrence.
    logit_bias : mapping of int to float, or pairs
        Added to the logits of these tokens; -inf forbids one.
    bad_words : sequence of sequences of int
        Token sequences that must not be completed.
    min_new_tokens : int
        Number of tokens before which the text may not end.
    processors : sequence of LogitsProcessor
        Additional transformers processors, applied to both models after these and before the
        temperature. Each gets the ids so far, shape (1, n), and logits of shape (1, V). They must
        keep no state between calls, because they also see drafted tokens that are rejected later.

    Raises
    ------
    TypeError, ValueError
        Naming the parameter and its value.

    Examples
    --------
    >>> SamplingParams(temperature=0).warp(torch.tensor([[1.0, 3.0, 3.0]]))
    tensor([[-inf, 0., -inf]])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Iterable[tuple[int, float]] = ()
    bad_words: Sequence[Sequence[int]] = ()
    min_new_tokens: int = 0
    processors: Sequence[LogitsProcessor] = ()

    def __post_init__(self) -> None:
        for name in (
            *("temperature", "top_p", "min_p"),
            *("repetition_penalty", "presence_penalty", "frequency_penalty"),
        ):
            number(name, getattr(self, name))
        if self.temperature != 0 and not _COLDEST <= self.temperature <= _HOTTEST:
            raise ValueError(
                f"temperature must be 0, or lie in [{_COLDEST}, {_HOTTEST}], "
                f"got {self.temperature!r}"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p!r}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p must lie in [0, 1), got {self.min_p!r}")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty must be > 0, got {self.repetition_penalty!r}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)!r}")
        if self.top_k is not None:
            integer("top_k", self.top_k, 1)
        integer("min_new_tokens", self.min_new_tokens, 0)
        object.__setattr__(self, "logit_bias", _pairs(self.logit_bias))
        object.__setattr__(self, "bad_words", _words(self.bad_words))
        if not isinstance(self.processors, Iterable):
            raise TypeError(f"processors must be LogitsProcessors, got {self.processors!r}")
        object.__setattr__(self, "processors", tuple(self.processors))
        for processor in self.processors:
            if not isinstance(processor, LogitsProcessor):
                raise TypeError(f"processors must be LogitsProcessors, got {processor!r}")
            if isinstance(processor, STATEFUL):
                raise ValueError(
                    f"processors must not have a state of their own, got "
                    f"{type(processor).__name__}, which carries a state that cannot be rewound "
                    "with the text"
                )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def tempers_only(self) -> bool:
        """Whether the distribution is softmax(logits / temperature), and nothing else."""
        return not self.greedy and self == SamplingParams(temperature=self.temperature)

    @cached_property
    def _warpers(self) -> LogitsProcessorList:
        warpers = LogitsProcessorList()
        if self.temperature != 1:
            warpers.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k is not None:
            warpers.append(TopKLogitsWarper(int(self.top_k)))
        if self.top_p < 1:
            warpers.append(TopPLogitsWarper(float(self.top_p)))
        if self.min_p > 0:
            warpers.append(MinPLogitsWarper(float(self.min_p)))
        return warpers

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits, shape (rows, V), whose softmax is the distribution that is sampled.

        Temperature and filters only; `processors_for` has the parts that read earlier tokens.
        """
        if self.greedy:
            best = logits.argmax(dim=-1, keepdim=True)
            return torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)
        if not self._warpers:
            return logits
        no_ids: Any = None  # these warpers do not read ids
        # The peak is subtracted, so that a small temperature sends logits to -inf and never to
        # +inf.
        return self._warpers(no_ids, logits - logits.amax(dim=-1, keepdim=True))

    def processors_for(
        self, prompt_tokens: int, eos_token_ids: Iterable[int]
    ) -> LogitsProcessorList:
        """Processors before `warp` that read the tokens of one request; a new list for each model.

        Called with ids of shape (1, n) and logits of shape (1, V).
        """
        found = LogitsProcessorList()
        if self.logit_bias:
            bias: Any = {(token,): value for token, value in dict(self.logit_bias).items()}
            found.append(SequenceBiasLogitsProcessor(bias))
        if self.repetition_penalty != 1:
            found.append(RepetitionPenaltyLogitsProcessor(float(self.repetition_penalty)))
        if self.presence_penalty or self.frequency_penalty:
            found.append(
                CountPenalty(
                    prompt_tokens, presence=self.presence_penalty, frequency=self.frequency_penalty
                )
            )
        if self.bad_words:
            found.append(NoBadWordsLogitsProcessor([list(word) for word in self.bad_words]))
        ends = sorted(eos_token_ids)
        if self.min_new_tokens and ends:
            least = int(self.min_new_tokens)
            found.append(MinNewTokensLengthLogitsProcessor(prompt_tokens, least, ends))
        found.extend(self.processors)
        return found


class CountPenalty(LogitsProcessor):
    """Subtract `presence` + `frequency` * count from the logit of a token of the text.

    Parameters
    ----------
    prompt_tokens : int
        Number of leading tokens that do not count.
    presence, frequency : float

    Examples
    --------
    >>> penalty = CountPenalty(1, presence=0.5, frequency=1.0)
    >>> penalty(torch.tensor([[0, 1, 1]]), torch.zeros(1, 3))
    tensor([[ 0.0000, -2.5000,  0.0000]])
    """

    def __init__(self, prompt_tokens: int, *, presence: float, frequency: float) -> None:
        self.prompt_tokens, self.presence, self.frequency = prompt_tokens, presence, frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        text = input_ids[:, self.prompt_tokens :]
        counts = torch.zeros_like(scores).scatter_add_(
            -1, text, torch.ones_like(text, dtype=scores.dtype)
        )
        return scores - self.frequency * counts - self.presence * (counts > 0)


def _pairs(bias: Any) -> tuple[tuple[int, float], ...]:
    try:
        items = [(token, value) for token, value in dict(bias).items()]
    except (TypeError, ValueError) as error:
        raise TypeError(f"logit_bias must map token ids to numbers, got {bias!r}") from error
    for token, value in items:
        integer("logit_bias keys", token, 0)
        number("logit_bias values", value)
        if not (value == -math.inf or abs(value) <= _LARGEST):
            raise ValueError(
                f"logit_bias values must be -inf or within float32, got {value!r} for {token}"
            )
    return tuple((int(token), float(value)) for token, value in items)


def _words(words: Any) -> tuple[tuple[int, ...], ...]:
    if isinstance(words, str) or not all(isinstance(word, Sequence) and word for word in words):
        raise TypeError(f"bad_words must be non-empty sequences of token ids, got {words!r}")
    for word in words:
        for token in word:
            integer("bad_words ids", token, 0)
    return tuple(tuple(map(int, word)) for word in words)
