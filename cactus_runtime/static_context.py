"""A context whose short passes always have the same shapes, so that a CUDA graph can replay them.

Only the launch of a captured graph is special to CUDA; on other devices the same computation runs
as it is, by which it is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from cactus_runtime.context import Context, check_ragged
from cactus_runtime.device import to_device

_WARM_UPS = 2  # passes before a capture, in which libraries allocate what they need
_SHORT = 32  # tokens; longer passes read prompts, and hardly repeat


class StaticContext(Context):
    """Reads all rows, and looks at all slots, in every pass of few tokens.

    Parameters are those of `Context`. Rows that are not asked for are read in vain, into slots
    beyond their length.
    """

    def __init__(self, model: PreTrainedModel, *, rows: int, slots: int) -> None:
        super().__init__(model, rows=rows, slots=slots + _SHORT)
        self._replays: dict[int, _Replay] = {}
        self._pool: Any = None

    def _forward(self, tokens: torch.Tensor, first: int, keep: int) -> torch.Tensor:
        rows, count = tokens.shape
        if first or count > _SHORT:
            return super()._forward(tokens, first, keep)
        if count not in self._replays:
            self._replays[count] = _Replay(self, count)
        logits = self._replays[count](tokens)
        return logits[:rows, -keep:]


def open_context(model: PreTrainedModel, *, rows: int, slots: int) -> Context:
    """A static context on a CUDA device, if the model can be read in one."""
    if model.device.type == "cuda":
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
        lengths = self._context.lengths
        self._tokens[: len(tokens)] = tokens
        self._starts.copy_(to_device([[length] for length in lengths], tokens.device))
        if self._launch is None:
            self._launch = self._prepare()
        return self._launch()

    def _prepare(self) -> Callable[[], torch.Tensor]:
        if self._tokens.device.type != "cuda":
            return self._pass
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._pass()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._context._pool):
            logits = self._pass()
        self._context._pool = graph.pool()

        def launch() -> torch.Tensor:
            graph.replay()
            return logits

        return launch

    @torch.no_grad()
    def _pass(self) -> torch.Tensor:
        return self._context._run(self._tokens, self._starts + self._steps)
