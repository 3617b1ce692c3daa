"""A request: one prompt and everything that determines its text besides the models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from cactus_runtime.draft_length import AdaptiveDraft, FixedLength
from cactus_runtime.sampling import SamplingParams
from cactus_runtime.streams import Streams
from cactus_runtime.verification.method import Method, Verification
from cactus_theory._validate import integer, word
from cactus_theory.ledger import Ledger
from cactus_theory.rules import BetweenMarkers, Rule, SpeculativeSampling

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Request:
    """A prompt, and how to continue it.

    Parameters
    ----------
    prompt : str, sequence of int, or sequence of messages
        Text, token ids, or chat messages (mappings with "role" and "content") for the
        tokenizer's chat template.
    rule : Rule or BetweenMarkers
        Decides when a drafted token is kept. `SpeculativeSampling()` emits exactly the target's
        distribution. `Cactus(delta)` keeps more tokens, and what is emitted then differs from the
        target's distribution; the result's ledger reports by how much. `delta` itself does not
        bound that difference. Rules that read whole distributions (`Clamp`, `Lenience`, ...) are
        evaluated in float64, on the host where their formulas need numpy.
        `BetweenMarkers` gives a part of the text a rule of its own.
    num_draft_tokens : int or AdaptiveDraft
        Tokens drafted per target pass (0 is plain decoding), or a policy that chooses their number.
    sampling : SamplingParams
        Applied to both models at every drafted and every verified position.
    max_new_tokens : int
        Never exceeded, not even inside a block or to reach `min_new_tokens`. The last block is
        shortened to fit, so the last tokens of a sampled text may depend on this number.
    seed : int, optional
        In [0, 2**64). Equal seeds give equal results. By default it is drawn at random,
        independently of torch's generator, and recorded in the result.
    number : int
        Requests with the same seed and different numbers have independent randomness.
    stop : sequence of str
        The text ends before the first occurrence of any of them.
    eos_token_id : int or sequence of int, optional
        Default the target's own; with an empty sequence no token ends the text.
    stop_when : callable, optional
        Called after each emitted token with all ids so far, prompt included; the text ends, with
        finish_reason "stop", when it returns a true value.
    max_total_variation, max_kl : float
        Budgets of the whole text: positions are verified losslessly where its ledger would
        exceed one. Then TV(text, target's text) <= max_total_variation and
        KL(text || target's text) <= max_kl nats, between the distributions of whole texts; see
        `cactus_theory.ledger`.
    verification : {"token", "block"}
        Verify drafts one after the other, or all of a block together. Blocks are then as long or
        longer, and each position emits the same distribution for the same charge. This needs an
        ordered rule, and costs whole rows of the emitted distribution; see
        `cactus_theory.verify_block`.
    emitted_logprobs : bool
        Record for every token the log-probabilities under what it was really drawn from, and under
        the target after `sampling`: `Token.emitted_logprob` and `Token.warped_logprob`. Their
        difference makes `DecodeResult.log_weight`.
    ledger : bool
        Compute acceptance rates and charges, which read whole rows of both models' distributions.
        False reads one probability per drafted token, as the paper promises, and the result then
        says that nothing was accounted for. The tokens are the same. A budget needs the ledger.

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
    rule: Rule | BetweenMarkers = SpeculativeSampling()
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
    verification: Verification = "token"
    emitted_logprobs: bool = False
    ledger: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.num_draft_tokens, AdaptiveDraft):
            integer("num_draft_tokens", self.num_draft_tokens, 0)
        integer("max_new_tokens", self.max_new_tokens, 1)
        for rule in self.rule.rules if isinstance(self.rule, BetweenMarkers) else (self.rule,):
            self.method_under(rule).check()
        if not isinstance(self.sampling, SamplingParams):
            raise TypeError(f"sampling must be SamplingParams, got {self.sampling!r}")
        stop = self.stop
        texts = isinstance(stop, Sequence) and not isinstance(stop, str)
        if not texts or not all(isinstance(text, str) and text for text in stop):
            raise TypeError(f"stop must be a sequence of non-empty strings, got {stop!r}")
        if self.stop_when is not None and not callable(self.stop_when):
            raise TypeError(f"stop_when must be callable, got {self.stop_when!r}")
        word("number", self.number)
        # Both raise on bad arguments.
        Streams(0 if self.seed is None else self.seed, self.number)
        budget = self.budget
        for name in ("max_total_variation", "max_kl"):
            if not self.ledger and getattr(budget, name) < math.inf:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is kept by the ledger: "
                    "it needs ledger=True, got ledger=False"
                )

    @property
    def draft_length(self) -> AdaptiveDraft | FixedLength:
        """`num_draft_tokens` as a policy."""
        length = self.num_draft_tokens
        return length if isinstance(length, AdaptiveDraft) else FixedLength(int(length))

    def method_under(self, rule: Rule) -> Method:
        """How drafts are verified under this rule, and what is recorded of it."""
        return Method(rule, self.verification, self.emitted_logprobs, self.ledger)

    @property
    def budget(self) -> Ledger:
        """An empty ledger with this request's budgets."""
        return Ledger(max_total_variation=self.max_total_variation, max_kl=self.max_kl)

    def samples(self, count: int) -> list[Request]:
        """This request `count` times, with one seed and the numbers from its own on."""
        integer("count", count, 1)
        seed = Streams(self.seed).seed
        return [replace(self, seed=seed, number=self.number + i) for i in range(count)]
