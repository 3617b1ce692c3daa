"""A static context whose short passes are compiled for the CPU by torch.compile.

Knows: when to compile, and which passes share a compiled function. Does not know: what compiles
them (inductor, which keeps its results in a cache of its own between runs), or decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from transformers import PreTrainedModel

from cactus_runtime.models.kv_cache import Context
from cactus_runtime.models.positions import follow_length
from cactus_runtime.models.static_kv_cache import SHORT, StaticContext
from cactus_runtime.models.supported import check_ragged

_SLOTS = 128  # contexts have a multiple of it, so that texts of similar lengths share their passes

Pass = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class CompiledContext(StaticContext):
    """Reads all rows in every short pass, and always a prepared number of tokens.

    A pass over fewer tokens is filled up with dummies, in slots beyond the rows' lengths. Longer
    passes, which read prompts, are not compiled. Weights become constants of the compiled code,
    which holds them once more in the layout that its kernels want.

    Parameters are those of `Context`.
    """

    def __init__(self, model: PreTrainedModel, *, rows: int, slots: int) -> None:
        super().__init__(model, rows=rows, slots=rounded_slots(slots))
        self._passes: dict[int, Pass] = {}

    @torch.no_grad()
    def prepare(self, widths: Iterable[int]) -> float:
        """Compile the passes over these numbers of tokens, unless that was done before.

        Returns
        -------
        float
            Seconds that it took.
        """
        started = time.perf_counter()
        for width in sorted({width for width in widths if width <= SHORT} - self._passes.keys()):
            rows = len(self.lengths)
            tokens = torch.zeros(rows, width, dtype=torch.int64)
            positions = torch.tensor(self.lengths).unsqueeze(1) + torch.arange(width)
            super().read_at(tokens, positions)  # makes the tensors of the cache
            compiled = _compiled(super().read_at)
            compiled(tokens, positions)
            self._passes[width] = compiled
        return time.perf_counter() - started

    def _forward(self, tokens: torch.Tensor, first: int, keep: int) -> torch.Tensor:
        count = tokens.shape[1]
        width = min((width for width in self._passes if width >= count), default=None)
        if first or width is None:
            return Context._forward(self, tokens, first, keep)
        padded = torch.nn.functional.pad(tokens, (0, width - count))
        return super()._forward(padded, 0, width)[:, count - keep : count]

    def read_at(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        *,
        first: int = 0,
        end: int | None = None,
        keep: int | None = None,
    ) -> torch.Tensor:
        compiled = self._passes.get(tokens.shape[1])
        if compiled is None or first or end is not None or len(tokens) < len(self.lengths):
            return super().read_at(tokens, positions, first=first, end=end, keep=keep)
        logits = compiled(tokens, positions)
        return logits if keep is None else logits[:, -keep:]


def rounded_slots(slots: int) -> int:
    """The number of slots of a compiled context in which at least so many are needed.

    Examples
    --------
    >>> rounded_slots(1), rounded_slots(128), rounded_slots(129)
    (128, 128, 256)
    """
    return -(-slots // _SLOTS) * _SLOTS


def check_compiled(model: PreTrainedModel, role: str) -> None:
    """Raise ValueError if the passes of a model cannot be compiled here.

    Examples
    --------
    >>> from cactus_runtime import load_pair
    >>> check_compiled(load_pair("tiny").target.to("meta"), "target")
    Traceback (most recent call last):
    ValueError: compile=True is for the CPU, and the target is on meta
    """
    if model.device.type != "cpu":
        raise ValueError(f"compile=True is for the CPU, and the {role} is on {model.device}")
    if follow_length(model):
        raise ValueError(
            f"compile=True needs passes of fixed shapes, and the frequencies of the {role}, a "
            f"{type(model).__name__}, follow the length of the text"
        )
    try:
        check_ragged(model, role)
    except ValueError as error:
        reason = str(error).partition("because ")[2].partition(";")[0]
        raise ValueError(
            f"compile=True needs a {role} that takes positions and masks of its rows: {reason}"
        ) from error
    if (problem := _without_compiler()) is not None:
        raise ValueError(
            f"compile=True needs a C++ compiler, which torch does not find ({problem}); install "
            "g++ or clang++, name one in CXX, or leave out compile"
        )


def _without_compiler() -> str | None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError) as error:
        return str(error).strip().splitlines()[0]
    return None


def _compiled(read_at: Callable[..., torch.Tensor]) -> Pass:
    """One graph of a pass, with its weights frozen.

    Nothing is checked when it is called, as everything but its two arguments stays the same. torch
    keeps compiled functions by their code object, so each gets its own.
    """

    def forward(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return read_at(tokens, positions)

    own = FunctionType(
        forward.__code__.replace(), forward.__globals__, "forward", None, forward.__closure__
    )
    options: dict[str, Any] = {
        "freezing": True,
        "guard_filter_fn": lambda guards: [False for _ in guards],
    }
    return torch.compile(own, fullgraph=True, dynamic=False, options=options)
