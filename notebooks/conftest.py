"""What lets `make notebooks` come to an end.

`interact` shows what it draws within an output widget. nbclient's stand-in for that widget reports
every output to the kernel, on the very socket on which the reply to the cell is awaited, and may so
lose the wake-up: the kernel is idle, the reply has come, and nobody reads it
(https://github.com/jupyter/nbclient/issues/312). No notebook here reads those reports.
"""

from unittest.mock import patch

import pytest
from nbclient.output_widget import OutputWidget


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Run a notebook without those reports."""
    with patch.object(OutputWidget, "send"):
        return (yield)
