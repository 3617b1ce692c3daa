"""Elementwise work on arrays of any size, a cache-sized piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_CHUNK = 16384  # a dozen float64 arrays of this size fit a core's second-level cache


def by_chunks(
    function: Callable[..., tuple[Any, ...]],
    *inputs: Any,
    outputs: int | Sequence[Any],
    size: int | None = None,
) -> tuple[Any, ...]:
    """Apply a function of 1-D float64 arrays, returning `outputs` arrays, to broadcast inputs.

    Temporaries then stay in cache and add nothing to the peak memory, which is that of the results.

    Parameters
    ----------
    function : callable
        Takes as many arrays of shape (n,) as there are inputs and returns `outputs` arrays (n,).
    *inputs : array_like, broadcastable
    outputs : int or sequence of dtypes
        How many arrays of float64 the function returns, or the types of all of them.

    size : int, optional
        Elements per piece. By default a piece fits a core's second-level cache.

    Returns
    -------
    tuple of arrays of the broadcast shape, scalars if it is ()

    Examples
    --------
    >>> by_chunks(lambda x, y: (x + y, x - y), [1.0, 2.0], 3.0, outputs=2)
    (array([4., 5.]), array([-2., -1.]))
    """
    size = size or _CHUNK
    if all(np.size(x) <= size for x in inputs):
        arrays = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in inputs))
        if arrays[0].size <= size:
            shape = arrays[0].shape
            results = function(*(x.ravel() for x in arrays))
            return tuple(result.reshape(shape)[()] for result in results)
    dtypes = [np.float64] * outputs if isinstance(outputs, int) else list(outputs)
    operands = [*(np.asarray(x) for x in inputs), *([None] * len(dtypes))]
    flags: list[Any] = [["readonly"]] * len(inputs) + [["writeonly", "allocate"]] * len(dtypes)
    with np.nditer(
        operands,
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=flags,
        op_dtypes=[*([np.float64] * len(inputs)), *dtypes],
        buffersize=size,
    ) as pieces:
        for piece in pieces:
            results = function(*piece[: len(inputs)])
            for out, result in zip(piece[len(inputs) :], results, strict=True):
                out[...] = result
        return tuple(out[()] for out in pieces.operands[len(inputs) :])
