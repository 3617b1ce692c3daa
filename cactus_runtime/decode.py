"""`decode`, for one call, and `Decoder`, prepared once for many."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cactus_runtime.context import vocabulary_size
from cactus_runtime.decoding import Decoding, Request
from cactus_runtime.models import context_length, eos_token_ids, resolve
from cactus_runtime.pairs import Pair
from cactus_runtime.proposal import Drafter, ModelDraft
from cactus_runtime.sampling import SamplingParams
from cactus_runtime.statistics import DecodeResult, Token
from cactus_theory.ledger import Ledger
from cactus_theory.rules import CandidateRule, SpeculativeSampling

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


class Decoder:
    """A target and a draft, loaded and checked once.

    Parameters
    ----------
    target : str, Path, Pair or PreTrainedModel
        The name of a bundled pair ("tiny", "smollm2"), a folder or hub name, or a loaded model.
    draft : str, Path, PreTrainedModel, Drafter or None
        A smaller model of the same tokenizer, `PromptLookup()`, or any object with a ``propose``
        method. None: the pair's own draft, or none at all (plain decoding).
    tokenizer : PreTrainedTokenizerBase, optional
        Needed for text prompts, text and stop strings when `target` is a loaded model.
    device : str or torch.device, optional
        Where named models are put; default the CPU.

    Raises
    ------
    ModelNotFoundError
        If a named model cannot be had.
    ValueError, TypeError
        If the two models do not share a tokenizer or a device, or an argument has no meaning.

    Examples
    --------
    >>> decoder = Decoder("tiny")
    >>> tokens = list(decoder.stream("dog:", max_new_tokens=5, seed=1))
    >>> len(tokens)
    5
    """

    def __init__(
        self,
        target: str | Path | Pair | PreTrainedModel,
        *,
        draft: str | Path | PreTrainedModel | Drafter | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self.target, self.draft, self.tokenizer = resolve(target, draft, tokenizer, device)

    def stream(
        self,
        prompt: Prompt,
        *,
        rule: CandidateRule = SpeculativeSampling(),
        num_draft_tokens: int = 4,
        sampling: SamplingParams = SamplingParams(),
        max_new_tokens: int = 128,
        seed: int | None = None,
        stop: Sequence[str] = (),
        eos_token_id: int | Sequence[int] | None = None,
        max_total_variation: float = math.inf,
        max_kl: float = math.inf,
    ) -> Decoding:
        """Check a request and return an iterator over its tokens; see `decode`."""
        ids = self._encode(prompt)
        num_draft_tokens = _check_count("num_draft_tokens", num_draft_tokens, 0)
        max_new_tokens = _check_count("max_new_tokens", max_new_tokens, 1)
        self._check_room(len(ids), max_new_tokens)
        if not isinstance(rule, CandidateRule):
            raise TypeError(
                "rule must be a rule with candidates (SpeculativeSampling, Cactus, CactusSafe, "
                f"CactusExact), got {rule!r}"
            )
        rule.boost(torch.ones(1, dtype=torch.float64), xp=torch)  # or it says why it cannot
        if not isinstance(sampling, SamplingParams):
            raise TypeError(f"sampling must be SamplingParams, got {sampling!r}")
        request = Request(
            prompt_ids=ids,
            rule=rule,
            num_draft_tokens=num_draft_tokens,
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            seed=seed,
            stop=self._check_stop(stop),
            eos_token_ids=eos_token_ids(self.target, self.tokenizer, eos_token_id),
            budget=Ledger(max_total_variation=max_total_variation, max_kl=max_kl),
        )
        vocabulary = vocabulary_size(self.target)
        drafter = self.draft
        if isinstance(drafter, PreTrainedModel):
            drafter = ModelDraft(drafter, sampling, vocabulary)
        return Decoding(self.target, drafter, self.tokenizer, vocabulary, request)

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        ids: Any
        if isinstance(prompt, torch.Tensor):
            ids = prompt.tolist()
        elif isinstance(prompt, str):
            ids = self._need_tokenizer("a text prompt")(prompt)["input_ids"]
        elif isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
            messages: Any = prompt
            ids = self._need_tokenizer("a chat prompt").apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False
            )
        elif isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes):
            ids = list(prompt)
        else:
            raise TypeError(
                f"prompt must be text, a sequence of token ids or of messages, got {prompt!r}"
            )
        if len(ids) == 0:
            raise ValueError(f"prompt must have at least one token, got {prompt!r}")
        size = vocabulary_size(self.target)
        for token in ids:
            if not _is_integer(token) or not 0 <= token < size:
                raise ValueError(f"prompt ids must be integers in [0, {size}), got {token!r}")
        return tuple(map(int, ids))

    def _need_tokenizer(self, what: str) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise ValueError(f"tokenizer must be given for {what} when target is a loaded model")
        return self.tokenizer

    def _check_stop(self, stop: Sequence[str]) -> tuple[str, ...]:
        texts = isinstance(stop, Sequence) and not isinstance(stop, str)
        if not texts or not all(isinstance(text, str) and text for text in stop):
            raise TypeError(f"stop must be a sequence of non-empty strings, got {stop!r}")
        if stop:
            self._need_tokenizer("stop strings")
        return tuple(stop)

    def _check_room(self, prompt_tokens: int, max_new_tokens: int) -> None:
        models = {"target": self.target, "draft": self.draft}
        for role, model in models.items():
            length = context_length(model) if isinstance(model, PreTrainedModel) else None
            if length is not None and prompt_tokens + max_new_tokens > length:
                raise ValueError(
                    f"prompt ({prompt_tokens} tokens) and max_new_tokens={max_new_tokens} must "
                    f"fit the {role}'s context of {length} tokens; at most "
                    f"{max(length - prompt_tokens, 0)} new tokens fit"
                )


def decode(
    target: str | Path | Pair | PreTrainedModel,
    prompt: Prompt,
    *,
    draft: str | Path | PreTrainedModel | Drafter | None = None,
    rule: CandidateRule = SpeculativeSampling(),
    num_draft_tokens: int = 4,
    sampling: SamplingParams = SamplingParams(),
    max_new_tokens: int = 128,
    seed: int | None = None,
    stop: Sequence[str] = (),
    eos_token_id: int | Sequence[int] | None = None,
    max_total_variation: float = math.inf,
    max_kl: float = math.inf,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device | None = None,
    on_token: Callable[[Token], object] | None = None,
) -> DecodeResult:
    """Decode one prompt speculatively, and say what it cost.

    Parameters
    ----------
    target, draft, tokenizer, device
        As for `Decoder`.
    prompt : str, sequence of int, or sequence of messages
        Text, token ids, or chat messages (mappings with "role" and "content") for the
        tokenizer's chat template.
    rule : CandidateRule
        When a drafted token is kept. `SpeculativeSampling()` emits exactly the target's law;
        `Cactus(delta)` keeps more, and what is emitted then differs from the target's law by
        what the result accounts for. `delta` itself is no bound on that difference.
    num_draft_tokens : int
        Tokens drafted per target pass; 0 is plain decoding.
    sampling : SamplingParams
        Applied to both models at every drafted and every verified position.
    max_new_tokens : int
        Never passed, also inside a block.
    seed : int, optional
        In [0, 2**64). Equal seeds give equal results; default a fresh one, told in the result.
    stop : sequence of str
        The text ends before the first of them.
    eos_token_id : int or sequence of int, optional
        Default the target's own; an empty sequence never ends the text.
    max_total_variation, max_kl : float
        Budgets of the whole text: positions are verified losslessly where its account would pass
        one. Then TV(law of the text, target's law) <= max_total_variation, and
        KL(law of the text || target's law) <= max_kl nats; see `cactus_theory.ledger`.
    on_token : callable, optional
        Called with each `Token` as it is committed.

    Returns
    -------
    DecodeResult
        After Ctrl-C: what was decoded by then, with finish_reason "interrupted".

    Raises
    ------
    ModelNotFoundError, NonFiniteLogitsError, TypeError, ValueError
        Naming the argument and its value, before any work where that is possible.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> result = decode("tiny", "kindness:", rule=Cactus(0.1), max_new_tokens=8, seed=1)
    >>> len(result.tokens), 1 <= result.block_efficiency <= 5, result.total_variation >= 0
    (8, True, True)
    """
    decoding = Decoder(target, draft=draft, tokenizer=tokenizer, device=device).stream(
        prompt,
        rule=rule,
        num_draft_tokens=num_draft_tokens,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop,
        eos_token_id=eos_token_id,
        max_total_variation=max_total_variation,
        max_kl=max_kl,
    )
    return decoding.finish(on_token)


def _check_count(name: str, value: int, least: int) -> int:
    if not _is_integer(value):
        raise TypeError(f"{name} must be an integer >= {least}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value}")
    return int(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
