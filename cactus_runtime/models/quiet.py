"""Silence for transformers' progress bars, where a load or a save takes a moment only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch transformers' progress bars off for a while, and back to what they were.

    Examples
    --------
    >>> with no_progress_bars():
    ...     logging.is_progress_bar_enabled()
    False
    """
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
