"""``model.generate(..., custom_generate=cactus_generate)``: this decoder inside transformers.

Knows what `generate` prepares (padded ids, processors, stopping criteria, a configuration) and
translates it into requests. Does not know how to decode.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import (
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from cactus_runtime import (
    AdaptiveDraft,
    BatchDecoding,
    Decoder,
    DecodeResult,
    Drafter,
    Request,
    SamplingParams,
)
from cactus_runtime.sampling import STATEFUL
from cactus_theory.rules import Rule, SpeculativeSampling

_NOT_OURS = {  # values of a generation configuration that change nothing, and why others fail
    "num_beams": ((1,), "beams are not sampled"),
    "constraints": ((), "constraints need beams"),
    "force_words_ids": ((), "forced words need beams"),
    "penalty_alpha": ((0,), "contrastive search is another method"),
    "dola_layers": ((), "DoLa is another method"),
    "guidance_scale": ((1,), "guidance carries a state that cannot be rewound"),
    "prompt_lookup_num_tokens": ((), "pass draft_model=PromptLookup()"),
    "assistant_early_exit": ((), "pass a draft_model"),
    "use_mtp": ((False,), "pass a draft_model"),
    "use_cache": ((True,), "the decoder keeps a cache of its own"),
    "output_scores": ((False,), "a result's trace has log-probabilities of the emitted tokens"),
    "output_logits": ((False,), "a result's trace has log-probabilities of the emitted tokens"),
    "output_attentions": ((False,), "they are not kept"),
    "output_hidden_states": ((False,), "they are not kept"),
}
_DROPPED = {  # arguments that `generate` does not pass on, and what to do instead
    "assistant_model": "pass it as draft_model",
    "streamer": "bind it: custom_generate=functools.partial(cactus_generate, streamer=...)",
    "synced_gpus": "rows of several processes are not synchronised",
}
_READ = {"attention_mask", "position_ids", "cache", "past_key_values"}
_INPUT_METHODS = ("prepare_inputs_for_generation", "_prepare_model_inputs")
_MOOT = {"use_cache", "logits_to_keep"}  # set by `generate` for its own loop, which does not run
_WARPERS = (  # those of SamplingParams, in the same order as transformers'
    (TemperatureLogitsWarper, "temperature"),
    (TopKLogitsWarper, "top_k"),
    (TopPLogitsWarper, "top_p"),
    (MinPLogitsWarper, "min_p"),
)
_ALIKE = (  # treat every row of a batch alike, so they can be called for one row
    *(kind for kind, _ in _WARPERS),
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)


@dataclass
class CactusOutput(GenerateDecoderOnlyOutput):
    """What `generate` returns with ``return_dict_in_generate=True``.

    Attributes
    ----------
    sequences : int64 tensor, shape (rows, length)
        Prompts and texts, padded on both sides.
    results : tuple of DecodeResult
        One per row: acceptance, blocks, and the ledger.

    Examples
    --------
    >>> CactusOutput(sequences=[[1, 2]]).results is None
    True
    """

    results: tuple[DecodeResult, ...] | None = None


def cactus_generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    *,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    draft_model: str | Path | PreTrainedModel | Drafter | None = None,
    rule: Rule = SpeculativeSampling(),
    num_draft_tokens: int | AdaptiveDraft = 4,
    seed: int | None = None,
    max_total_variation: float = math.inf,
    max_kl: float = math.inf,
    batch_size: int | None = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    streamer: BaseStreamer | None = None,
    **model_kwargs: Any,
) -> torch.Tensor | CactusOutput:
    """Decode what `generate` has prepared: pass it as ``custom_generate``.

    Every option that `generate` turns into a logits processor or a stopping criterion is applied at
    drafted and verified positions. Processors see each row with its padding, as usual. They are
    called for both models and must be functions of ids and logits alone. The decoder uses its own
    cache and ignores the configuration's ``cache_implementation``.

    Parameters
    ----------
    model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs
        Passed by `generate`.
    draft_model : str, Path, PreTrainedModel, Drafter or None
        As for `Decoder`; None means plain decoding.
    rule, num_draft_tokens, max_total_variation, max_kl
        As for `Request`.
    seed : int, optional
        Row i is decoded with this seed and number i. By default the seed is drawn from torch's
        generator, so `transformers.set_seed` makes a call repeatable.
    batch_size : int, optional
        Rows decoded together; default all.
    stop_strings : str or sequence of str, optional
        As for `generate`. Needs `tokenizer`.
    tokenizer : PreTrainedTokenizerBase, optional
        Bind it by `functools.partial`, because `generate` does not pass its own on. Results then
        have text.
    streamer : BaseStreamer, optional
        For a single row only. Bind it by `functools.partial` too, and do not pass it to `generate`.

    Returns
    -------
    int64 tensor, shape (rows, length), or CactusOutput
        Prompts and texts as `generate` returns them; with the configuration's
        ``return_dict_in_generate``, also the results.

    Raises
    ------
    NonFiniteLogitsError, TypeError, ValueError
        Naming the option that cannot be served, and why.

    Examples
    --------
    >>> from cactus_runtime import load_pair
    >>> from cactus_theory import Cactus
    >>> pair = load_pair("tiny")
    >>> output = pair.target.generate(
    ...     **pair.tokenizer(["dog:"], return_tensors="pt"),
    ...     custom_generate=cactus_generate,
    ...     draft_model=pair.draft,
    ...     rule=Cactus(0.1),
    ...     seed=1,
    ...     do_sample=True,
    ...     temperature=0.8,
    ...     max_new_tokens=8,
    ...     return_dict_in_generate=True,
    ... )
    >>> output.sequences.shape[0], len(output.results[0].tokens), output.results[0].kl_bound >= 0
    (1, 8, True)
    """
    dropped = _dropped()
    try:
        _check_nothing_dropped(dropped)
        _check_served(model, generation_config, logits_processor, model_kwargs)
        prompts = _prompts(input_ids, **{name: model_kwargs.get(name) for name in _READ})
        if streamer is not None and len(prompts) > 1:
            raise ValueError(
                f"streamer must be None for more than one row, got {len(prompts)} rows"
            )
        criteria = [*stopping_criteria, *_stop_string_criteria(stop_strings, tokenizer)]
        eos_token_ids, max_length, others = _split_criteria(criteria, generation_config)
        ends_apart = len(prompts) > 1 and bool(eos_token_ids or others)
        pad = _pad_token(generation_config, needed=ends_apart)
        sampling, processors = _split_processors(
            logits_processor, sample=generation_config.do_sample
        )
        asked = Request(
            prompts[0],
            rule=rule,
            num_draft_tokens=num_draft_tokens,
            sampling=sampling,
            max_new_tokens=max_length - input_ids.shape[1],
            seed=int(torch.randint(2**63 - 1, ())) if seed is None else seed,
            eos_token_id=eos_token_ids,
            max_total_variation=max_total_variation,
            max_kl=max_kl,
        )
        requests = _rows(asked, prompts, input_ids, processors, others)
        decoder = Decoder(model, draft=draft_model, tokenizer=tokenizer)
        together = len(requests) if batch_size is None else batch_size
        decoding = decoder.batch(requests, batch_size=together)
        _stream(decoding, input_ids, streamer)
    finally:  # otherwise a thread that reads from the streamer waits forever
        for one in (streamer, dropped.get("streamer")):
            if one is not None:
                one.end()
    results = decoding.results
    sequences: Any = _sequences(input_ids, [result.tokens for result in results], pad)
    if not generation_config.return_dict_in_generate:
        return sequences
    return CactusOutput(sequences=sequences, results=tuple(results))


def _rows(
    asked: Request,
    prompts: Sequence[Sequence[int]],
    input_ids: torch.Tensor,
    processors: Sequence[LogitsProcessor],
    criteria: Sequence[StoppingCriteria],
) -> list[Request]:
    """The request of each row, with its number, and its padding where a processor sees it."""
    requests = []
    for number, prompt in enumerate(prompts):
        padding = input_ids[number : number + 1, : input_ids.shape[1] - len(prompt)]
        sampling = asked.sampling
        if processors:
            own = _RowProcessor(processors, padding, row=number, rows=len(prompts))
            sampling = replace(sampling, processors=[own])
        stop_when = _stop_when(criteria, padding)
        changed = {"number": number, "sampling": sampling, "stop_when": stop_when}
        requests.append(replace(asked, prompt=prompt, **changed))
    return requests


class _RowProcessor(LogitsProcessor):
    """The processors of a padded batch, for one of its rows.

    Some treat rows differently. They are given a batch filled with this row, and only its place is
    read.
    """

    def __init__(
        self, processors: Sequence[LogitsProcessor], padding: torch.Tensor, *, row: int, rows: int
    ) -> None:
        self._processors, self._padding, self._row, self._rows = processors, padding, row, rows

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ids: Any = torch.cat([self._padding.to(input_ids.device), input_ids], dim=1)
        given: Any = scores
        for process in self._processors:
            if self._rows == 1 or type(process) in _ALIKE:
                given = process(ids, given)
            else:
                copies: Any = [x.repeat(self._rows, 1) for x in (ids, given)]
                given = process(*copies)[self._row : self._row + 1]
        return given


def _dropped() -> dict[str, Any]:
    """Arguments that `generate` was given and silently did not pass on.

    They can only be found in its frame.
    """
    frame: Any = inspect.currentframe()
    caller = frame.f_back.f_back
    if caller is None or caller.f_code.co_name != "generate":
        return {}
    given = {name: caller.f_locals.get(name) for name in _DROPPED}
    return {name: value for name, value in given.items() if value not in (None, False)}


def _check_nothing_dropped(dropped: dict[str, Any]) -> None:
    for name, value in dropped.items():
        raise ValueError(
            f"{name} does not reach cactus_generate, got {type(value).__name__}; {_DROPPED[name]}"
        )


def _check_served(
    model: PreTrainedModel,
    config: GenerationConfig,
    processors: Iterable[LogitsProcessor],
    model_kwargs: dict[str, Any],
) -> None:
    if model.config.is_encoder_decoder:
        raise ValueError(f"model must be a decoder alone, got {type(model).__name__}")
    _check_inputs_unchanged(model)
    for name, (neutral, why) in _NOT_OURS.items():
        value = getattr(config, name, None)
        if value is not None and value not in neutral:
            raise ValueError(f"{name}={value!r} cannot be served: {why}")
    for processor in processors:
        if isinstance(processor, STATEFUL):
            raise ValueError(
                f"{type(processor).__name__} carries a state that cannot be rewound with the text"
            )
    for name, value in model_kwargs.items():
        if name not in _READ | _MOOT and value is not None:
            raise TypeError(f"cactus_generate takes no {name}, got {type(value).__name__}")


def _check_inputs_unchanged(model: PreTrainedModel) -> None:
    """Raise ValueError where a wrapper makes `generate` read other inputs than the token ids."""
    for name in _INPUT_METHODS:
        own = getattr(type(model), name, None)
        if name in vars(model) and getattr(vars(model)[name], "__func__", None) is not own:
            wrapper = type(getattr(vars(model)[name], "__self__", vars(model)[name])).__name__
            raise ValueError(
                f"model must read its token ids alone, but its {name} was replaced by a "
                f"{wrapper}'s (as PEFT does to put a learned prompt before them); use the model "
                "without it, or adapters of weights, such as LoRA"
            )


def _prompts(
    input_ids: torch.Tensor,
    *,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cache: Any,
    past_key_values: Any,
) -> list[list[int]]:
    """The rows without their padding."""
    for name, held in (("cache", cache), ("past_key_values", past_key_values)):
        if held is not None and (getattr(held, "_is_user_defined", False) or held.get_seq_length()):
            raise ValueError(f"{name} cannot be served: the decoder keeps a cache of its own")
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if mask.shape != input_ids.shape or not (mask.diff(dim=1) >= 0).all():
        raise ValueError(
            f"attention_mask must hide padding on the left and nothing else, got {mask.tolist()} "
            f"for ids of shape {tuple(input_ids.shape)}"
        )
    places = (mask.cumsum(1) - 1).clamp(min=0)
    if position_ids is not None and not _equals_rows(position_ids, places):
        raise ValueError(f"position_ids must count from 0 in each row, got {position_ids.tolist()}")
    lengths = mask.sum(1).tolist()
    rows = zip(input_ids.tolist(), lengths, strict=True)
    return [ids[len(ids) - length :] for ids, length in rows]


def _equals_rows(values: torch.Tensor, wanted: torch.Tensor) -> bool:
    return values.shape[-1:] == wanted.shape[-1:] and bool((values == wanted[: len(values)]).all())


def _stop_string_criteria(
    stop_strings: str | Sequence[str] | None, tokenizer: PreTrainedTokenizerBase | None
) -> list[StoppingCriteria]:
    if not stop_strings:
        return []
    if tokenizer is None:
        raise ValueError(
            f"stop_strings={stop_strings!r} need a tokenizer, which generate() does not pass on: "
            "custom_generate=functools.partial(cactus_generate, tokenizer=...)"
        )
    texts = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
    return [StopStringCriteria(tokenizer, texts)]


def _split_criteria(
    criteria: Iterable[StoppingCriteria], config: GenerationConfig
) -> tuple[tuple[int, ...], int, list[StoppingCriteria]]:
    """Ids that end a text, the maximum length with prompt and padding, and all other criteria."""
    ends: list[int] = []
    lengths: list[int] = []
    others = []
    for criterion in criteria:
        if type(criterion) is EosTokenCriteria:
            ends += criterion.eos_token_id.reshape(-1).tolist()
        elif type(criterion) is MaxLengthCriteria:
            lengths.append(criterion.max_length)
        else:
            others.append(criterion)
    return tuple(ends), min(lengths, default=config.max_length), others  # type: ignore[type-var]


def _stop_when(
    criteria: Sequence[StoppingCriteria], padding: torch.Tensor
) -> Callable[[Sequence[int]], bool] | None:
    if not criteria:
        return None
    front, listed = padding[0].tolist(), StoppingCriteriaList(criteria)

    def stop(ids: Sequence[int]) -> bool:
        whole: Any = torch.tensor([[*front, *ids]], device=padding.device)
        return bool(listed(whole, None))  # type: ignore[arg-type]

    return stop


def _pad_token(config: GenerationConfig, *, needed: bool) -> int:
    pad = config._pad_token_tensor
    if pad is None and needed:
        raise ValueError(
            "pad_token_id must be given where rows may end at different lengths, got None"
        )
    return 0 if pad is None else int(pad)


def _split_processors(
    processors: Sequence[LogitsProcessor], *, sample: bool | None
) -> tuple[SamplingParams, list[LogitsProcessor]]:
    """The trailing warpers as parameters, which the decoder applies to all rows at once."""
    if not sample:
        return SamplingParams(temperature=0), list(processors)
    left, found = list(processors), {}
    for kind, name in reversed(_WARPERS):
        if left and type(left[-1]) is kind and _plain(left[-1]):
            found[name] = getattr(left.pop(), name)
    return SamplingParams(**found), left


def _plain(warper: Any) -> bool:
    """Whether a warper removes tokens with -inf and may keep a single one."""
    removes = getattr(warper, "filter_value", -math.inf) == -math.inf
    return removes and getattr(warper, "min_tokens_to_keep", 1) == 1


def _stream(
    decoding: BatchDecoding, input_ids: torch.Tensor, streamer: BaseStreamer | None
) -> None:
    """Decode to the end; Ctrl-C is raised again."""
    if streamer is not None:
        streamer.put(input_ids.cpu())
    for _, token in decoding:
        if streamer is not None:
            streamer.put(torch.tensor([token.id]))


def _sequences(input_ids: torch.Tensor, texts: Sequence[Sequence[int]], pad: int) -> torch.Tensor:
    longest = max(map(len, texts))
    padded = [[*text, *[pad] * (longest - len(text))] for text in texts]
    return torch.cat([input_ids, torch.tensor(padded, device=input_ids.device)], dim=1)
