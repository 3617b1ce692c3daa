"""Switches off transformers' progress bars for short loads and saves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch transformers' progress bars off, and restore their state afterwards.

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
