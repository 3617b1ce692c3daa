"""vLLM's two model runners: where each calls its rejection sampler, and what the arguments mean.

Written for vLLM 0.30 to 0.33, whose signatures `tests/vllm/test_versions.py` records. A parameter
that is not known here must be optional, and must keep its default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType
from typing import Any

import torch

from cactus_runtime.integrations.vllm.requests import Requests, RequestsV1, RequestsV2

KNOWN_VERSIONS = "0.30 to 0.33"


@dataclass(frozen=True)
class DraftedRows:
    """A batch of drafted tokens, one per row of the target's logits, as passed to a sampler.

    Attributes
    ----------
    logits : float32 tensor, shape (R, V)
        The target's logits, as the sampler reads them.
    tokens : int64 tensor, shape (R,)
        The token that a row judges.
    drafted : bool tensor, shape (R,)
        False where a row judges no drafted token: bonus rows and placeholders.
    request : int64 tensor, shape (R,)
        Index in the batch of the request that a row belongs to.
    temperature : float tensor, shape (B,)
        Of each request; 0 is greedy.
    draft : callable, optional
        Maps row indices, shape (n,), to the distributions that their tokens were drawn from,
        float64 of shape (n, V). None where each token counts as certain.
    beyond : float32 tensor, shape (R, W), optional
        Logits of tokens that the draft's vocabulary lacks, which the sampler does not read.
    read_again : bool
        Whether the engine may read the logits after the sampler, for log-probabilities.
    """

    logits: torch.Tensor
    tokens: torch.Tensor
    drafted: torch.Tensor
    request: torch.Tensor
    temperature: torch.Tensor
    draft: Callable[[torch.Tensor], torch.Tensor] | None = None
    beyond: torch.Tensor | None = None
    read_again: bool = True


@dataclass(frozen=True)
class Runner:
    """One of the two runners: names of module, method and parameters, and how to read them.

    Attributes
    ----------
    module : str
        Module of the class ``RejectionSampler``.
    method : str
        Its method that calls ``rejection_sample``, a function in its module's namespace.
    needed, other : tuple of str
        Parameters of that function: those that are read, and the other known ones.
    drafts : callable
        Makes the batch from the named arguments; None where no row is sampled at random.
    accepted : callable
        Number of accepted drafted tokens per request, from the function's return value.
    requests : callable
        Makes `Requests` from a model runner.
    slots : str or None
        Argument of the method that has each request's slot, on the host.
    """

    module: str
    method: str
    needed: tuple[str, ...]
    other: tuple[str, ...]
    drafts: Callable[[Mapping[str, Any]], DraftedRows | None]
    accepted: Callable[[Any], torch.Tensor]
    requests: Callable[[Any], Requests]
    slots: str | None = None

    def signature(self, function: Callable[..., Any]) -> inspect.Signature:
        """Signature of the runner's ``rejection_sample``.

        Raises
        ------
        RuntimeError
            If a needed parameter is missing, or it requires one that is not known.
        """
        signature = inspect.signature(function)
        missing = set(self.needed) - set(signature.parameters)
        empty = inspect.Parameter.empty
        new = {name for name, default in self._unknown(signature).items() if default is empty}
        if missing or new:
            raise RuntimeError(
                f"cactus does not know this rejection_sample of {self.module}: its parameters "
                f"differ in {', '.join(sorted(missing | new))}. {advice()}"
            )
        return signature

    def check_unknown(self, bound: inspect.BoundArguments) -> None:
        """Refuse a call that sets a parameter that is not known.

        Raises
        ------
        RuntimeError
            If such a parameter does not have its default.
        """
        for name, default in self._unknown(bound.signature).items():
            value = bound.arguments.get(name, default)
            plain = isinstance(value, bool | int | float | str)
            if value is not default and not (plain and value == default):
                raise RuntimeError(
                    f"cactus does not know the parameter {name} of rejection_sample of "
                    f"{self.module}, which must keep its default {default!r}, got {value!r}. "
                    f"{advice()}"
                )

    def _unknown(self, signature: inspect.Signature) -> dict[str, Any]:
        """The defaults of parameters that are neither needed nor known."""
        known = {*self.needed, *self.other}
        return {name: p.default for name, p in signature.parameters.items() if name not in known}


def advice() -> str:
    """What to install where this version of vLLM is not the known one."""
    version = getattr(import_module("vllm"), "__version__", "of unknown version")
    return (
        f"This is vLLM {version}; cactus was written for {KNOWN_VERSIONS}: install one of these, "
        "or remove 'cactus' from additional_config."
    )


def runner_of(sampler: Any) -> Runner:
    """The runner a rejection sampler belongs to.

    Raises
    ------
    RuntimeError
        If it belongs to neither: the model has its own sampler, or vLLM has another version.
    """
    kind = type(sampler)
    for runner in RUNNERS:
        if (kind.__module__, kind.__name__) == (runner.module, "RejectionSampler"):
            return runner
    raise RuntimeError(
        f"cactus does not know the rejection sampler {kind.__module__}.{kind.__name__}. {advice()}"
    )


def rebound(function: Any, name: str, change: Callable[[Any], Any]) -> FunctionType:
    """A copy of the function in which one global name has another meaning.

    Parameters
    ----------
    function : function
    name : str
    change : callable
        Maps the old meaning of the name to the new one.

    Raises
    ------
    RuntimeError
        If the function does not use that name.

    Examples
    --------
    >>> rebound(advice, "KNOWN_VERSIONS", str.title).__name__
    'advice'
    >>> rebound(advice, "RUNNERS", tuple)
    Traceback (most recent call last):
    ...
    RuntimeError: advice does not use RUNNERS
    """
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None or name not in code.co_names or name not in known:
        raise RuntimeError(f"{getattr(function, '__qualname__', function)} does not use {name}")
    names = {**known, name: change(known[name])}
    again = FunctionType(code, names, code.co_name, function.__defaults__, function.__closure__)
    again.__kwdefaults__ = function.__kwdefaults__
    return again


def _requests(ends: torch.Tensor, rows: int) -> torch.Tensor:
    """Request of each row, where those of request i end before row ``ends[i]``."""
    row = torch.arange(rows, device=ends.device)
    return torch.searchsorted(ends.long(), row, right=True).clamp(max=len(ends) - 1)


def _normalised(probs: torch.Tensor) -> torch.Tensor:
    return probs / probs.sum(-1, keepdim=True)


def _drafts_v1(arguments: Mapping[str, Any]) -> DraftedRows | None:
    """One row per drafted token; no bonus rows."""
    metadata, tokens = arguments["sampling_metadata"], arguments["draft_token_ids"]
    if metadata.all_greedy or not len(tokens):
        return None
    probs = arguments.get("draft_probs")
    return DraftedRows(
        arguments["target_logits"],
        tokens.long(),
        tokens >= 0,
        _requests(arguments["cu_num_draft_tokens"], len(tokens)),
        metadata.temperature,
        None if probs is None else lambda rows: _normalised(probs[rows].double()),
        read_again=getattr(metadata, "max_num_logprobs", 0) is not None,
    )


def _drafts_v2(arguments: Mapping[str, Any]) -> DraftedRows | None:
    """One row per drafted token (the token itself is in the next row), then the bonus row."""
    logits, draft = arguments["target_logits"], arguments["draft_logits"]
    ends, rows, beyond = arguments["cu_num_logits"][1:].long(), len(logits), None
    if draft is not None and draft.shape[-1] < logits.shape[-1]:
        # the kernels read only the first
        logits, beyond = logits[:, : draft.shape[-1]], logits[:, draft.shape[-1] :]
    tokens = arguments["draft_sampled"].long().roll(-1)
    last = torch.zeros(rows, dtype=torch.bool, device=ends.device).index_fill_(0, ends - 1, True)
    inside = torch.arange(rows, device=ends.device) < ends[-1]
    slots, request = arguments["idx_mapping"].long(), _requests(ends, rows)
    temperature = arguments["temperature"][slots]

    def drafted(chosen: torch.Tensor) -> torch.Tensor:
        owner = request[chosen]
        step = chosen - arguments["cu_num_logits"].long()[owner]
        drawn_from = arguments["draft_logits"][slots[owner], step].double()
        return (drawn_from / temperature[owner, None]).softmax(-1)

    return DraftedRows(
        logits,
        tokens,
        inside & ~last & (tokens >= 0),
        request,
        temperature,
        None if draft is None else drafted,
        beyond,
    )


# Read only where rejection_sample_method is "fly", which `configured` refuses.
_FLY = ("fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k")
V1 = Runner(
    "vllm.v1.sample.rejection_sampler",
    "forward",
    ("draft_token_ids", "cu_num_draft_tokens", "target_logits", "sampling_metadata"),
    (
        "num_draft_tokens",
        "max_spec_len",
        "draft_probs",
        "bonus_token_ids",
        "synthetic_mode",
        "synthetic_conditional_rates",
        "use_fp64_gumbel",
        *_FLY,
    ),
    _drafts_v1,
    lambda tokens: (tokens != -1).sum(-1) - 1,
    RequestsV1,
)
V2 = Runner(
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
    "_verify",
    (
        "target_logits",
        "draft_logits",
        "draft_sampled",
        "cu_num_logits",
        "idx_mapping",
        "temperature",
    ),
    (
        "pos",
        "expanded_idx_mapping",
        "expanded_local_pos",
        "seed",
        "num_speculative_steps",
        "synthetic_conditional_rates",
        "use_fp64",
        "use_block_verification",
        "contexts",
        "watermarking",
        "watermarking_skip_mask",
        "watermark_key",
        *_FLY,
    ),
    _drafts_v2,
    lambda output: output[1] - 1,
    RequestsV2,
    "idx_mapping_np",
)
RUNNERS = (V1, V2)
