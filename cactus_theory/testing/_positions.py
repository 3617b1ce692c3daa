"""Distributions of positions one at a time, from arrays, iterators or a recording."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cactus_theory.recording import REMAINDERS, Recording


def rows_of(name: str, rows: Any, length: int) -> Iterator[Any]:
    """The rows of an argument in order; it is an error if there are fewer than `length`.

    Examples
    --------
    >>> list(rows_of("target", iter([[1.0]]), 2))
    Traceback (most recent call last):
    ...
    ValueError: target must have 2 rows, one a token, got 1
    """
    if not isinstance(rows, Iterator):
        array = np.asarray(rows)
        if array.ndim != 2 or array.shape[0] != length:
            raise ValueError(f"{name} must have shape ({length}, V), got shape {array.shape}")
    return _counted(name, iter(rows), length)


def _counted(name: str, rows: Iterator[Any], length: int) -> Iterator[Any]:
    place = -1
    for place, row in enumerate(rows):
        yield row
        if place + 1 == length:
            return
    raise ValueError(f"{name} must have {length} rows, one a token, got {place + 1}")


def merged_remainders(
    recording: Recording, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of the tokens in a recording, and its distributions with one column for the rest.

    Which of the three remainders a token belongs to was not recorded. A test on the merged token
    is exact: its chances are the sums of those that were merged.

    Parameters
    ----------
    recording : Recording
        Of N positions.
    tokens : int array, shape (N,)

    Returns
    -------
    int64 array, shape (N,)
    draft, target : float64 array, shape (N, K + 1)

    Raises
    ------
    ValueError
        If their numbers differ.

    Examples
    --------
    >>> from cactus_theory.recording import compress_distributions
    >>> laws = compress_distributions(
    ...     draft=[0.6, 0.3, 0.08, 0.02], target=[0.3, 0.6, 0.04, 0.06], tolerance=0.1)
    >>> columns, draft, target = merged_remainders(laws, np.array([3]))
    >>> columns, target.round(2)
    (array([2]), array([[0.3, 0.6, 0.1]]))
    """
    if len(recording) != tokens.size:
        raise ValueError(
            f"tokens must be one for each of the {len(recording)} positions of the recording, "
            f"got {tokens.size}"
        )
    known = recording.tokens == tokens[:, None]
    columns = np.where(known.any(axis=1), known.argmax(axis=1), recording.tokens.shape[1])
    draft, target = (
        np.column_stack([law[:, :-REMAINDERS], law[:, -REMAINDERS:].sum(axis=1)])
        for law in (recording.draft, recording.target)
    )
    return columns, draft, target
