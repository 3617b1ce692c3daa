"""A context whose short passes always have the same shapes, so that CUDA graphs can replay them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from cactus_runtime.models.cuda_graphs import Recorder
from cactus_runtime.models.device import fill
from cactus_runtime.models.kv_cache import Context
from cactus_runtime.models.positions import follow_length
from cactus_runtime.models.supported import check_ragged

SHORT = 32  # tokens; longer passes read prompts and rarely repeat


class StaticContext(Context):
    """Reads all rows, and attends to all slots, in every short pass.

    Parameters are those of `Context`. Rows that are not needed read dummy tokens, into slots beyond
    their length.

    Attributes
    ----------
    recorder : Recorder
        Records this context's passes, and computations that contain them.
    """

    def __init__(self, model: PreTrainedModel, *, rows: int, slots: int) -> None:
        super().__init__(model, rows=rows, slots=slots + SHORT)
        self.recorder = Recorder(model.device)
        self._replays: dict[int, _Replay] = {}

    def _forward(self, tokens: torch.Tensor, first: int, keep: int) -> torch.Tensor:
        rows, count = tokens.shape
        if first or count > SHORT:
            return super()._forward(tokens, first, keep)
        if count not in self._replays:
            self._replays[count] = _Replay(self, count)
        logits = self._replays[count](tokens)
        return logits[:rows, -keep:]


def open_context(model: PreTrainedModel, *, rows: int, slots: int) -> Context:
    """A static context on a CUDA device, if the model supports it; otherwise a `Context`."""
    if model.device.type == "cuda" and not follow_length(model):
        try:
            check_ragged(model, "model")
        except ValueError:
            return Context(model, rows=rows, slots=slots)
        return StaticContext(model, rows=rows, slots=slots)
    return Context(model, rows=rows, slots=slots)


class _Replay:
    """One pass over `count` tokens of every row, from fixed buffers into a fixed buffer."""

    def __init__(self, context: StaticContext, count: int) -> None:
        device, rows = context.model.device, len(context.lengths)
        self._context = context
        self._tokens = torch.zeros(rows, count, dtype=torch.int64, device=device)
        self._starts = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._steps = torch.arange(count, device=device)
        self._launch: Callable[[], torch.Tensor] | None = None

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        self._tokens[: len(tokens)] = tokens
        fill(self._starts, [[length] for length in self._context.lengths])
        if self._launch is None:
            self._launch = self._context.recorder(self._pass)
        return self._launch()

    @torch.no_grad()
    def _pass(self) -> torch.Tensor:
        return self._context.read_at(self._tokens, self._starts + self._steps)
