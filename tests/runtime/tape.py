"""What a CUDA graph does, on a CPU: operations of one run, done again on the same tensors."""

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cactus_runtime.loop import batch, drafting
from cactus_runtime.models import static_kv_cache
from cactus_runtime.models.cuda_graphs import Recorder
from cactus_runtime.models.static_kv_cache import StaticContext


class Tape(TorchDispatchMode):
    """Stands for a graph: Python code between the operations is not run again.

    As a capture computes nothing, what it makes is not a number until the first replay.
    """

    launches = 0

    def __init__(self):
        super().__init__()
        self.steps, self.fresh = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = {address(tensor) for tensor in tensors((args, kwargs))}
        self.steps.append((func, args, kwargs or {}, made))
        self.fresh += [tensor for tensor in tensors(made) if address(tensor) not in given]
        return made

    def __exit__(self, *failure):
        super().__exit__(*failure)
        for tensor in self.fresh:
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)

    def replay(self):
        type(self).launches += 1
        for func, args, kwargs, made in self.steps:
            for old, new in zip(tensors(made), tensors(func(*args, **kwargs)), strict=True):
                if address(old) != address(new):
                    old.copy_(new)

    def pool(self):
        return None


class NoStream:
    def wait_stream(self, other): ...


@contextlib.contextmanager
def programs():
    """Decoders compute whole blocks at once, as they do on a CUDA device."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (batch, drafting):
            patch.setattr(module, "open_context", StaticContext)
        yield


@contextlib.contextmanager
def taped():
    """Recorders capture as on a CUDA device, and tensors say that they are not on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_kv_cache, "Recorder", lambda _: Recorder(torch.device("cuda")))
        patch.setattr(torch.Tensor, "is_cpu", False)  # no tape records what numpy does
        patch.setattr(Tape, "launches", 0)
        patch.setattr(torch.cuda, "CUDAGraph", Tape)
        patch.setattr(torch.cuda, "graph", lambda tape, *, pool: tape)
        for name in ("device", "stream"):
            patch.setattr(torch.cuda, name, contextlib.nullcontext)
        for name in ("Stream", "current_stream"):
            patch.setattr(torch.cuda, name, NoStream)
        yield


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def address(tensor):
    return tensor.untyped_storage().data_ptr()
