"""A computation over fixed buffers: one graph launch on a CUDA device, a plain call elsewhere.

Knows nothing of models. A captured computation must not wait for the device, and no shape may
depend on values. A computation that violates this is detected before the capture and is called
directly instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T = TypeVar("T")

_WARM_UPS = 2  # runs before a capture, in which libraries allocate memory
_DECIDES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_INDEXES = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class Recorder:
    """Makes launches of computations; their graphs share one pool of memory.

    So the result of a launch is valid only until the next launch of the same recorder.

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
        """A function that does what `compute` does, on the current contents of its buffers.

        Parameters
        ----------
        compute : callable without arguments
            Reads and writes tensors at fixed addresses. On a CUDA device it is run a few times
            immediately, so repeated runs must be harmless.

        Returns
        -------
        callable without arguments
            Returns the tensors that `compute` returns; a graph always returns the same ones.
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
    """Collects operations that no graph can contain, because the host waits for their values.

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
    """Run it on a side stream, as a capture requires; return operations no graph can contain."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), HostReads() as reads:
        for _ in range(_WARM_UPS):
            compute()
    torch.cuda.current_stream().wait_stream(side)
    return reads.found


def _reads(func: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    if func in _INDEXES:  # tagged because boolean masks must be counted
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in given[1:])
    if func is torch.ops.aten.lift_fresh.default:  # of a constant, which comes from the host
        return given[0].device.type != "cpu"
    if func in _COPIES:
        return len({tensor.device for tensor in [*given, *made]}) > 1
    return not _DECIDES.isdisjoint(func.tags)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
