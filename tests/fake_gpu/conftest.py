"""Fake CUDA tensors: shapes, dtypes and devices, no numbers; no device or driver is asked.

Needs a build of torch for CUDA, since other builds refuse to index tensors of that device.
"""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from tests.tiny_models import tiny_model

CUDA = torch.device("cuda")


def pytest_collection_modifyitems() -> None:
    if torch.version.cuda is None:
        raise pytest.UsageError(
            f"these tests need a build of torch for CUDA, got {torch.__version__}; "
            "run `make test-fake-gpu`"
        )


@pytest.fixture
def fake():
    """`tiny_model` on the fake device, in bfloat16; all tensors of the test are fakes."""

    def model_of(kind, **settings):
        sizes = {"num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 8}
        with unset_fake_temporarily():
            model = tiny_model(kind, dtype=torch.bfloat16, **{**sizes, **settings})
        for module in model.modules():
            for name, weight in list(module._parameters.items()):
                if weight is not None:
                    empty = torch.empty(weight.shape, dtype=weight.dtype, device=CUDA)
                    module._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)
            for name, buffer in list(module._buffers.items()):
                if buffer is not None:
                    empty = torch.empty(buffer.shape, dtype=buffer.dtype, device=CUDA)
                    module._buffers[name] = empty
        return model

    with FakeTensorMode():
        yield model_of


@pytest.fixture
def launches(monkeypatch):
    """Have every launch of a Triton kernel noted, by name, instead of being made.

    As a launch does, it refuses tensors that are not on the device.
    """
    from triton.runtime.jit import JITFunction

    found = []

    def noted(self, *args, grid, warmup, **options):
        for value in [*args, *options.values()]:
            if isinstance(value, torch.Tensor) and not value.is_cuda:
                raise ValueError(f"{self.__name__} cannot read a tensor on {value.device}")
        assert all(isinstance(size, int) and size > 0 for size in grid)
        found.append(self.__name__)

    monkeypatch.setattr(JITFunction, "run", noted)
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: nullcontext())
    return found
