"""Hypothesis profiles and one thread for torch, if a test uses it."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci",
    max_examples=50,  # twice as many would not fit the time of a shared machine
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # shared machines pause
)
settings.register_profile(
    "thorough", parent=settings.get_profile("ci"), max_examples=5000, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Limit torch to one thread where a collected module has already imported it."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def torch():
    """The torch module on one thread; a test that asks for it is skipped without torch."""
    module = pytest.importorskip("torch")
    module.set_num_threads(1)
    return module


def pytest_collection_modifyitems(items) -> None:
    """Tests marked gpu run where there is one."""
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    cuda = "torch" in sys.modules and sys.modules["torch"].cuda.is_available()
    for item in items:
        if item.get_closest_marker("gpu") and not cuda:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
