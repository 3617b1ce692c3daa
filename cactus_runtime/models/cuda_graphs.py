"""A computation over fixed buffers: on a CUDA device one launch of a graph, elsewhere run as it is.

Knows nothing of models. What is captured must not wait for the device, nor let a shape depend on
what it holds; a computation that does so is found out before, and run as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T = TypeVar("T")

_WARM_UPS = 2  # runs before a capture, in which libraries allocate what they need
_DECIDES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_INDEXES = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class Recorder:
    """Makes launches of computations; their graphs share one pool of memory.

    So the result of a launch holds only until the next launch of the same recorder.

    Parameters
    ----------
    device : torch.device
        Where the computations run.

    Examples
    --------
    >>> tokens = torch.tensor([1, 2])
    >>> launch = Recorder(tokens.device)(lambda: tokens + 1)
    >>> tokens.fill_(5), launch()
    (tensor([5, 5]), tensor([6, 6]))
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, compute: Callable[[], T]) -> Callable[[], T]:
        """A function that does what `compute` does, on what its buffers hold at that time.

        Parameters
        ----------
        compute : callable without arguments
            Reads and writes tensors that stay where they are; on a CUDA device it is run a few
            times at once, so that running it again must do no harm.

        Returns
        -------
        callable without arguments
            Returns the tensors that `compute` returns; of a graph always the same ones.
        """
        if self._device.type != "cuda":
            return compute
        with torch.cuda.device(self._device):
            if _warm_up(compute):
                return compute
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                found = compute()
        self._pool = graph.pool()

        def launch() -> T:
            graph.replay()
            return found

        return launch


class HostReads(TorchDispatchMode):
    """Notes operations that no graph can hold, because the host waits for them or decides by them.

    Attributes
    ----------
    found : list of str
        Their names: reads of a value, shapes that depend on values, copies between devices.

    Examples
    --------
    >>> with HostReads() as reads:
    ...     total = torch.ones(2).cumsum(0)[1].item()
    >>> reads.found
    ['aten._local_scalar_dense.default']
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if _reads(func, _tensors((args, kwargs)), _tensors(result)):
            self.found.append(str(func))
        return result


def _warm_up(compute: Callable[[], Any]) -> list[str]:
    """Run it beside the main stream, as a capture demands; what in it no graph can hold."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), HostReads() as reads:
        for _ in range(_WARM_UPS):
            compute()
    torch.cuda.current_stream().wait_stream(side)
    return reads.found


def _reads(func: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    if func in _INDEXES:  # tagged for the sake of masks, whose true places are counted
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in given[1:])
    if func is torch.ops.aten.lift_fresh.default:  # of a constant, which came from the host
        return given[0].device.type != "cpu"
    if func in _COPIES:
        return len({tensor.device for tensor in [*given, *made]}) > 1
    return not _DECIDES.isdisjoint(func.tags)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
