"""What is asked of a decoder: one prompt and all that determines its text besides the models."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from cactus_runtime.draft_length import AdaptiveDraft, FixedLength
from cactus_runtime.sampling import SamplingParams
from cactus_runtime.streams import Streams
from cactus_theory.ledger import Ledger
from cactus_theory.rules import Rule, SpeculativeSampling

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Request:
    """A prompt, and how it is to be continued.

    Parameters
    ----------
    prompt : str, sequence of int, or sequence of messages
        Text, token ids, or chat messages (mappings with "role" and "content") for the
        tokenizer's chat template.
    rule : Rule
        When a drafted token is kept. `SpeculativeSampling()` emits exactly the target's law;
        `Cactus(delta)` keeps more, and what is emitted then differs from the target's law by
        what the result accounts for. `delta` itself is no bound on that difference. Rules that
        read whole laws (`Clamp`, `Lenience`, ...) are evaluated on the host, in float64.
    num_draft_tokens : int or AdaptiveDraft
        Tokens drafted per target pass, 0 being plain decoding; or how to choose their number.
    sampling : SamplingParams
        Applied to both models at every drafted and every verified position.
    max_new_tokens : int
        Never passed, also inside a block, whatever `min_new_tokens` says: the last block is
        shortened to it, so that under another number the last tokens of a sampled text may differ.
    seed : int, optional
        In [0, 2**64). Equal seeds give equal results; default a fresh one, told in the result,
        whatever torch's own generator is set to.
    number : int
        Requests of one seed and different numbers have independent randomness.
    stop : sequence of str
        The text ends before the first of them.
    eos_token_id : int or sequence of int, optional
        Default the target's own; an empty sequence never ends the text.
    stop_when : callable, optional
        Called after each emitted token with all ids so far, prompt included; the text ends, by
        "stop", where it returns something true.
    max_total_variation, max_kl : float
        Budgets of the whole text: positions are verified losslessly where its account would pass
        one. Then TV(law of the text, target's law) <= max_total_variation, and
        KL(law of the text || target's law) <= max_kl nats; see `cactus_theory.ledger`.

    Raises
    ------
    TypeError, ValueError
        Naming the argument and its value.

    Examples
    --------
    >>> [request.number for request in Request("dog:", seed=1).samples(3)]
    [0, 1, 2]
    """

    prompt: Prompt
    _: KW_ONLY
    rule: Rule = SpeculativeSampling()
    num_draft_tokens: int | AdaptiveDraft = 4
    sampling: SamplingParams = SamplingParams()
    max_new_tokens: int = 128
    seed: int | None = None
    number: int = 0
    stop: Sequence[str] = ()
    eos_token_id: int | Sequence[int] | None = None
    stop_when: Callable[[Sequence[int]], Any] | None = None
    max_total_variation: float = math.inf
    max_kl: float = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.num_draft_tokens, AdaptiveDraft):
            _check_count("num_draft_tokens", self.num_draft_tokens, 0)
        _check_count("max_new_tokens", self.max_new_tokens, 1)
        if not isinstance(self.rule, Rule):
            raise TypeError(f"rule must be one of cactus_theory's rules, got {self.rule!r}")
        if not isinstance(self.sampling, SamplingParams):
            raise TypeError(f"sampling must be SamplingParams, got {self.sampling!r}")
        stop = self.stop
        texts = isinstance(stop, Sequence) and not isinstance(stop, str)
        if not texts or not all(isinstance(text, str) and text for text in stop):
            raise TypeError(f"stop must be a sequence of non-empty strings, got {stop!r}")
        if self.stop_when is not None and not callable(self.stop_when):
            raise TypeError(f"stop_when must be callable, got {self.stop_when!r}")
        if isinstance(self.number, bool) or not isinstance(self.number, numbers.Integral):
            raise TypeError(f"number must be an integer, got {self.number!r}")
        if not 0 <= self.number < 2**64:
            raise ValueError(f"number must lie in [0, 2**64), got {self.number}")
        # Either says what is wrong with its arguments.
        Streams(0 if self.seed is None else self.seed, self.number)
        _ = self.budget

    @property
    def draft_length(self) -> AdaptiveDraft | FixedLength:
        """`num_draft_tokens` as a policy."""
        length = self.num_draft_tokens
        return length if isinstance(length, AdaptiveDraft) else FixedLength(int(length))

    @property
    def budget(self) -> Ledger:
        """An empty ledger with this request's budgets."""
        return Ledger(max_total_variation=self.max_total_variation, max_kl=self.max_kl)

    def samples(self, count: int) -> list[Request]:
        """This request `count` times, with one seed and the numbers from its own on."""
        _check_count("count", count, 1)
        seed = Streams(self.seed).seed
        return [replace(self, seed=seed, number=self.number + i) for i in range(count)]


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer >= {least}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value}")
