"""`decode`, for one call, and `Decoder`, prepared once for many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cactus_runtime.draft_length import AdaptiveDraft
from cactus_runtime.loading import check_together, eos_token_ids, resolve
from cactus_runtime.loop.batch import BatchDecoding, DecodeState
from cactus_runtime.loop.drafting import BatchDrafter, ModelDrafts, NoDrafts, RowDrafts
from cactus_runtime.loop.row import Row
from cactus_runtime.models.compiled import check_compiled
from cactus_runtime.models.kv_cache import vocabulary_size
from cactus_runtime.models.positions import context_length
from cactus_runtime.models.probe import probe, probe_ragged
from cactus_runtime.models.supported import check_ragged, check_supported
from cactus_runtime.pairs import Pair
from cactus_runtime.proposal import Drafter
from cactus_runtime.request import Prompt, Request
from cactus_runtime.result.result import DecodeResult
from cactus_runtime.result.trace import Token
from cactus_runtime.sampling import SamplingParams
from cactus_runtime.verification.method import Verification
from cactus_theory._validate import integer, is_integer
from cactus_theory.rules import BetweenMarkers, Rule, SpeculativeSampling


class Decoding(Iterator[Token]):
    """One request being decoded: iterate over its tokens, ask for its `result` at any time.

    Parameters
    ----------
    batch : BatchDecoding
        Of one request; made by `Decoder.stream`.

    Examples
    --------
    >>> decoding = Decoder("tiny").stream(Request("dog:", max_new_tokens=3, seed=1))
    >>> next(decoding).id == decoding.result.tokens[0]
    True
    >>> len(decoding.finish().tokens)
    3
    """

    def __init__(self, batch: BatchDecoding) -> None:
        self._batch = batch

    def __next__(self) -> Token:
        return next(self._batch)[1]

    def finish(self, on_token: Callable[[Token], object] | None = None) -> DecodeResult:
        """Decode to the end and return the result; on Ctrl-C, the result so far."""
        if on_token is None:
            self._batch.finish()
        else:
            self._batch.finish(lambda _, token: on_token(token))
        return self.result

    @property
    def result(self) -> DecodeResult:
        """The result so far, in whole blocks; finish_reason is "interrupted" until the end."""
        return self._batch.results[0]


class Decoder:
    """A target and a draft, loaded and checked once.

    Caches, and CUDA graphs captured over them, are kept from one decode to the next where they fit:
    the same number of rows, and not much shorter ones.

    When a model is first given to a decoder, it reads six tokens in five passes. This checks that
    cached blocks agree with uncached passes, and that later tokens do not change earlier logits.
    docs/models.md lists the outcome for every class in transformers.

    Parameters
    ----------
    target : str, Path, Pair or PreTrainedModel
        The name of a bundled pair ("tiny", "smollm2"), a folder or hub name, or a loaded model; a
        PEFT model with adapters of weights, such as LoRA, is treated as the model inside it.
    draft : str, Path, PreTrainedModel, Drafter or None
        A smaller model of the same tokenizer (for loaded models only the vocabularies' widths can
        be compared, which may differ by padding), `PromptLookup()`, or any object with a
        ``propose`` method. None: the pair's own draft, or without a pair no draft (plain decoding).
    tokenizer : PreTrainedTokenizerBase, optional
        Needed for text prompts, text and stop strings when `target` is a loaded model.
    device : str or torch.device, optional
        Device of models given by name; default the CPU.
    dtype : str or torch.dtype, optional
        Type of the weights of models given by name: "float32", "bfloat16", "float16", or "auto",
        which is bfloat16 where the processor has it natively and float32 elsewhere. Default "auto"
        for a bundled pair, the checkpoint's own for others. Every distribution and charge is that
        of the models in their type.
    compile : bool
        On the CPU: compile the models' passes by `torch.compile`, with their weights packed for its
        kernels. This takes minutes the first time and much less in later runs, as torch stores
        what it compiled; `DecodeResult.seconds` tells how long. Needs a C++ compiler. Tokens are
        those of passes that are not compiled, except where a sum rounded in another order decides.

    Raises
    ------
    ModelNotFoundError
        If a named model cannot be found.
    ValueError, TypeError
        If a model's cached passes disagree with its uncached ones, its checkpoint lacks weights,
        the two models do not share a tokenizer or a device, or an argument is out of range.

    Examples
    --------
    >>> decoder = Decoder("tiny")
    >>> tokens = list(decoder.stream(Request("dog:", max_new_tokens=5, seed=1)))
    >>> len(tokens)
    5
    >>> results = decoder.batch([Request(p, max_new_tokens=5) for p in ("a:", "river:")]).finish()
    >>> [len(result.tokens) for result in results]
    [5, 5]
    """

    def __init__(
        self,
        target: str | Path | Pair | PreTrainedModel,
        *,
        draft: str | Path | PreTrainedModel | Drafter | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        compile: bool = False,
    ) -> None:
        if not isinstance(compile, bool):
            raise TypeError(f"compile must be True or False, got {compile!r}")
        self._compile = compile
        self.target, self.draft, self.tokenizer = resolve(target, draft, tokenizer, device, dtype)
        self._kept: DecodeState | None = None

    def stream(self, request: Request) -> Decoding:
        """Check a request and return an iterator over its tokens.

        Raises
        ------
        TypeError, ValueError
            If these models cannot serve it, before any work.
        """
        if not isinstance(request, Request):
            raise TypeError(f"request must be a Request, got {request!r}")
        return Decoding(self._start([request], 1))

    def batch(self, requests: Sequence[Request], *, batch_size: int = 8) -> BatchDecoding:
        """Check requests and return an iterator over (index of the request, token).

        Up to `batch_size` are decoded together, in order; one that ends makes room for the next. A
        seeded request gives the same tokens as alone, except where a model's kernels differ in
        their last bits between batch shapes.

        Raises
        ------
        TypeError, ValueError
            If these models cannot serve one of them, or not several at once; before any work.
        """
        if isinstance(requests, Request) or not isinstance(requests, Iterable):
            raise TypeError(f"requests must be a sequence of Requests, got {requests!r}")
        requests = list(requests)
        if not all(isinstance(request, Request) for request in requests):
            raise TypeError(f"requests must be a sequence of Requests, got {requests!r}")
        if not requests:
            raise ValueError("requests must have at least one Request, got none")
        return self._start(requests, min(integer("batch_size", batch_size, 1), len(requests)))

    def _start(self, requests: Sequence[Request], batch_size: int) -> BatchDecoding:
        self._check_models(ragged=batch_size > 1)
        rows = [self._row(request) for request in requests]
        longest = max(len(row.ids) + row.request.max_new_tokens for row in rows)
        slots = longest + max(row.draft_limit() for row in rows)
        state = self._state(rows=batch_size, slots=slots)
        return BatchDecoding(state, rows, batch_size=batch_size, on_end=self._keep)

    def _state(self, *, rows: int, slots: int) -> DecodeState:
        """The stored state, if it fits, or a new one; a batch that ends stores its own."""
        kept, self._kept = self._kept, None
        if kept is not None and kept.can_reuse(self.target, self.draft, rows=rows, slots=slots):
            return kept
        drafter = self._drafter(rows=rows, slots=slots)
        return DecodeState(
            self.target, self.draft, drafter, rows=rows, slots=slots, compiled=self._compile
        )

    def _keep(self, state: DecodeState) -> None:
        self._kept = state

    def _drafter(self, *, rows: int, slots: int) -> BatchDrafter:
        vocabulary = vocabulary_size(self.target)
        if self.draft is None:
            return NoDrafts(self.target.device)
        if isinstance(self.draft, PreTrainedModel):
            return ModelDrafts(
                self.draft,
                rows=rows,
                slots=slots,
                vocabulary=vocabulary,
                compiled=self._compile,
            )
        return RowDrafts(self.draft, vocabulary=vocabulary, device=self.target.device)

    @property
    def _models(self) -> dict[str, PreTrainedModel]:
        models = {"target": self.target, "draft": self.draft}
        return {k: model for k, model in models.items() if isinstance(model, PreTrainedModel)}

    def _check_models(self, *, ragged: bool) -> None:
        """Repeat the checks made at loading, because the models may have been changed since."""
        models = self._models
        for role, model in models.items():
            check_supported(model, role)
            probe(model, role)
            if self._compile:
                check_compiled(model, role)
            if ragged:
                check_ragged(model, role)
                probe_ragged(model, role)
        if len(models) > 1:
            check_together(**models)

    def _row(self, request: Request) -> Row:
        ids = self.encode(request.prompt)
        self._check_room(len(ids), request.max_new_tokens)
        self._check_ids(request.sampling)
        if request.stop:
            self._need_tokenizer("stop strings")
        if isinstance(request.rule, BetweenMarkers):
            request = replace(request, rule=self._with_ids(request.rule))
        ends = eos_token_ids(self.target, self.tokenizer, request.eos_token_id)
        size = vocabulary_size(self.target)
        if request.eos_token_id is not None and ends and max(ends) >= size:
            raise ValueError(f"eos_token_id must be in [0, {size}), got {max(ends)}")
        return Row(request, ids, self.tokenizer, ends)

    def _with_ids(self, rule: BetweenMarkers) -> BetweenMarkers:
        """The rule with markers that are token ids of the target."""

        def encode(marker: str) -> list[int]:
            tokenizer = self._need_tokenizer("a marker of text")
            ids: list[int] = tokenizer.encode(marker, add_special_tokens=False)
            text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            if text != marker:
                raise ValueError(
                    f"a marker must be text that the tokenizer gives back, got {marker!r}, "
                    f"which becomes {text!r}"
                )
            return ids

        rule, size = rule.with_ids(encode), vocabulary_size(self.target)
        for name in ("start", "end"):
            if max(getattr(rule, name)) >= size:
                found = max(getattr(rule, name))
                raise ValueError(f"{name} ids must be in [0, {size}), got {found}")
        return rule

    def encode(self, prompt: Prompt, *, name: str = "prompt") -> tuple[int, ...]:
        """Check a prompt, and return its token ids; errors call it `name`."""
        ids: Any
        if isinstance(prompt, torch.Tensor):
            ids = prompt.tolist()
        elif isinstance(prompt, str):
            tokenizer = self._need_tokenizer(f"a text {name}")
            try:
                ids = tokenizer(prompt)["input_ids"]
            except TypeError as error:  # tokenizers refuse a lone surrogate
                raise ValueError(f"{name} must be encodable text, got {prompt!r}") from error
        elif isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], dict):
            messages: Any = prompt
            template = self._need_tokenizer("a chat prompt").apply_chat_template
            try:
                ids = template(messages, add_generation_prompt=True, return_dict=False)
            except TemplateError as error:
                raise ValueError(
                    f"prompt must be messages that the chat template takes: {error}, got {prompt!r}"
                ) from error
        elif isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes):
            ids = list(prompt)
        else:
            raise TypeError(
                f"{name} must be text, a sequence of token ids or of messages, got {prompt!r}"
            )
        if len(ids) == 0:
            raise ValueError(f"{name} must have at least one token, got {prompt!r}")
        size = vocabulary_size(self.target)
        for token in ids:
            if not is_integer(token) or not 0 <= token < size:
                raise ValueError(f"{name} ids must be integers in [0, {size}), got {token!r}")
        return tuple(map(int, ids))

    def _need_tokenizer(self, what: str) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise ValueError(f"tokenizer must be given for {what} when target is a loaded model")
        return self.tokenizer

    def _check_room(self, prompt_tokens: int, max_new_tokens: int) -> None:
        for role, model in self._models.items():
            length = context_length(model)
            if length is not None and prompt_tokens + max_new_tokens > length:
                raise ValueError(
                    f"prompt ({prompt_tokens} tokens) and max_new_tokens={max_new_tokens} must "
                    f"fit the {role}'s context of {length} tokens; at most "
                    f"{max(length - prompt_tokens, 0)} new tokens fit"
                )

    def _check_ids(self, sampling: SamplingParams) -> None:
        size = vocabulary_size(self.target)
        named = {
            "logit_bias": [token for token, _ in sampling.logit_bias],  # type: ignore[misc]
            "bad_words": [token for word in sampling.bad_words for token in word],
        }
        for name, ids in named.items():
            if ids and max(ids) >= size:
                raise ValueError(f"{name} ids must be in [0, {size}), got {max(ids)}")


def decode(
    target: str | Path | Pair | PreTrainedModel,
    prompt: Prompt,
    *,
    draft: str | Path | PreTrainedModel | Drafter | None = None,
    rule: Rule | BetweenMarkers = SpeculativeSampling(),
    num_draft_tokens: int | AdaptiveDraft = 4,
    sampling: SamplingParams = SamplingParams(),
    max_new_tokens: int = 128,
    seed: int | None = None,
    stop: Sequence[str] = (),
    eos_token_id: int | Sequence[int] | None = None,
    max_total_variation: float = math.inf,
    max_kl: float = math.inf,
    verification: Verification = "token",
    emitted_logprobs: bool = False,
    ledger: bool = True,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    compile: bool = False,
    on_token: Callable[[Token], object] | None = None,
) -> DecodeResult:
    """Decode one prompt speculatively, and report what it cost.

    Parameters
    ----------
    target, draft, tokenizer, device, dtype, compile
        As for `Decoder`.
    prompt, rule, num_draft_tokens, sampling, max_new_tokens, seed, stop, eos_token_id
        As for `Request`.
    max_total_variation, max_kl
        Budgets of the whole text, as for `Request`.
    verification, emitted_logprobs, ledger
        As for `Request`.
    on_token : callable, optional
        Called with each `Token` as it is committed.

    Returns
    -------
    DecodeResult
        After Ctrl-C: the result so far, with finish_reason "interrupted".

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
    request = Request(
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
        verification=verification,
        emitted_logprobs=emitted_logprobs,
        ledger=ledger,
    )
    decoder = Decoder(
        target, draft=draft, tokenizer=tokenizer, device=device, dtype=dtype, compile=compile
    )
    return decoder.stream(request).finish(on_token)
