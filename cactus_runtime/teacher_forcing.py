"""The logits of one model at every token of a given text, read in chunks through its cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel

from cactus_runtime.models.kv_cache import Context, NonFiniteLogitsError, vocabulary_size
from cactus_runtime.models.positions import context_length
from cactus_runtime.verification.warp import at_least_float32

CHUNK = 128  # tokens


def logits_of_text(
    model: PreTrainedModel,
    prompt: Sequence[int],
    tokens: Sequence[int],
    *,
    width: int,
    chunk: int = CHUNK,
) -> Iterator[torch.Tensor]:
    """For each token of a text, the logits that it is drawn from.

    Parameters
    ----------
    model : PreTrainedModel
    prompt, tokens : sequences of int
    width : int
        Number of logits given: more than the model's are -inf, fewer are the first of them.
    chunk : int
        Tokens read at once.

    Returns
    -------
    iterator of tensor, shape (1, width)
        At least float32.

    Raises
    ------
    ValueError
        If the text holds ids that the model does not know, or is longer than its context; before
        it is read.
    NonFiniteLogitsError
        Where a row is no distribution.

    Examples
    --------
    >>> from cactus_runtime import load_pair
    >>> rows = logits_of_text(load_pair("tiny").target, [5, 7], [9, 9, 9], width=10)
    >>> [tuple(row.shape) for row in rows]
    [(1, 10), (1, 10), (1, 10)]
    """
    held = [*prompt, *tokens]
    size, length = vocabulary_size(model), context_length(model)
    if max(held) >= size:
        raise ValueError(
            f"text and prompt must hold ids below {size}, the width of {type(model).__name__}, "
            f"got {max(held)}"
        )
    if length is not None and len(held) > length:
        raise ValueError(
            f"text and prompt must fit the context of {length} tokens of {type(model).__name__}, "
            f"got {len(held)}"
        )
    return _read(model, held, len(prompt), width, chunk)


def _read(
    model: PreTrainedModel, held: list[int], at: int, width: int, chunk: int
) -> Iterator[torch.Tensor]:
    ids = torch.tensor([held], device=model.device)
    context = Context(model, rows=1, slots=len(held))
    while at < len(held):
        more = context.limited(min(chunk, len(held) - at) - 1, at)
        with torch.no_grad():
            logits = context.read([context.unread(0, held[:at])], ids[:, at : at + more])[0]
        logits = at_least_float32(logits[:, :width])
        if not torch.isfinite(logits.logsumexp(-1)).all():
            raise NonFiniteLogitsError(
                f"a model gave non-finite logits within the text, after token {at - 1} or later"
            )
        missing = width - logits.shape[-1]
        yield from torch.nn.functional.pad(logits, (0, missing), value=-torch.inf).split(1)
        at += more + 1
