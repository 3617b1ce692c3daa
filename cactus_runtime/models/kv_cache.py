"""A model and what it has read: a key-value cache in which each row advances independently.

A row's token at position t is kept in slot t. Rewinding a row only shortens its length: the mask
hides its stale slots, and they are overwritten later. So each row of a batch advances by its own
count, and nothing is copied, cropped or recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from cactus_runtime.models.device import to_device
from cactus_runtime.models.positions import check_switches, context_length, switches
from cactus_runtime.models.supported import cache_argument

_FEW = 8  # unused logits computed for rows that are this much shorter than others


def vocabulary_size(model: PreTrainedModel) -> int:
    """Width of the model's logits, padding included."""
    return int(model.config.get_text_config().vocab_size)


class NonFiniteLogitsError(RuntimeError):
    """A model produced logits that give no distribution.

    Examples
    --------
    >>> issubclass(NonFiniteLogitsError, RuntimeError)
    True
    """


class Context:
    """One model reading several growing sequences.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model in evaluation mode.
    rows : int
        Maximum number of sequences.
    slots : int
        Maximum number of tokens of one sequence, drafts included.

    Attributes
    ----------
    lengths : list of int
        Tokens held of each sequence; reducing an entry rewinds it.

    Raises
    ------
    ValueError
        If several rows would affect each other at such lengths.
    """

    def __init__(self, model: PreTrainedModel, *, rows: int, slots: int) -> None:
        self.model = model
        self.lengths = [0] * rows
        slots += _FEW  # padding of a short row beside one that reads more
        if rows > 1:
            check_switches(model, slots)
        self._window = _Window(rows, slots)
        self._cache = Cache(layer_class_to_replicate=partial(_Layer, self._window))  # type: ignore[arg-type]
        self._cache_argument = cache_argument(model) or "past_key_values"
        self._switches = switches(model)

    def read(
        self, ids: Sequence[Sequence[int]], drafts: torch.Tensor | None = None, *, first: int = 0
    ) -> torch.Tensor:
        """Read new and drafted tokens of consecutive rows, and return the logits that follow.

        Parameters
        ----------
        ids : sequence of sequences of int
            For each row, at least one token that follows those held.
        drafts : int64 tensor, shape (rows, k), optional
            The tokens that follow `ids`.
        first : int
            The first of the rows.

        Returns
        -------
        tensor, shape (rows, k + 1, V)
            Logits after the last of `ids` and after each of `drafts`.
        """
        counts = [len(row) for row in ids]
        least = min(counts)
        if max(counts) - least > _FEW:
            ids = [self._catch_up(first + i, row, least) for i, row in enumerate(ids)]
            counts = [least] * len(ids)
        device, k = self.model.device, 0 if drafts is None else drafts.shape[1]
        width = max(counts) + k
        tokens = to_device([[*row, *[0] * (width - len(row))] for row in ids], device)
        after = to_device([[count] for count in counts], device)
        after = after + torch.arange(k + 1, device=device)
        if drafts is not None and k:
            tokens.scatter_(1, after[:, :k], drafts)
        logits = self._forward(tokens, first, keep=width - least + 1)
        if max(counts) > least:
            rows = torch.arange(len(ids), device=device).unsqueeze(1)
            logits = logits[rows, after - least]
        for i, count in enumerate(counts):
            self.lengths[first + i] += count + k
        return logits

    def unread(self, row: int, ids: Sequence[int]) -> Sequence[int]:
        """The ids of a row still to be read: all, where a longer text changes the frequencies."""
        held = self.lengths[row]
        if any(held <= limit < len(ids) for limit in self._switches):
            held = self.lengths[row] = 0
        return ids[held:]

    def limited(self, drafts: int, length: int) -> int:
        """How many of the drafts can be read after `length` ids with one set of frequencies."""
        return min([drafts, *(limit - length for limit in self._switches if length <= limit)])

    def extend(self, tokens: torch.Tensor) -> torch.Tensor:
        """Read one more token, shape (rows,), of the first rows; logits of shape (rows, 1, V)."""
        logits = self._forward(tokens.unsqueeze(1), 0, keep=1)
        for i in range(len(tokens)):
            self.lengths[i] += 1
        return logits

    def move(self, source: int, target: int) -> None:
        """Copy row `source` to row `target`."""
        if source != target:
            layers: Any = self._cache.layers
            for layer in layers:
                layer.keys[target] = layer.keys[source]
                layer.values[target] = layer.values[source]
            self.lengths[target] = self.lengths[source]

    def _catch_up(self, row: int, ids: Sequence[int], left: int) -> Sequence[int]:
        """Read all but the last `left` of a row's new tokens, and return the rest."""
        if len(ids) > left:
            self._forward(to_device([list(ids[:-left])], self.model.device), row, keep=1)
            self.lengths[row] += len(ids) - left
        return ids[-left:]

    @torch.no_grad()
    def _forward(self, tokens: torch.Tensor, first: int, keep: int) -> torch.Tensor:
        rows, count = tokens.shape
        lengths = self.lengths[first : first + rows]
        limit = context_length(self.model)
        overrun = limit is not None and max(lengths) + count > limit
        if min(lengths) == max(lengths) and not overrun:
            self._window.open_aligned(first, rows, lengths[0], count)
            return self._call(tokens, keep)
        positions = to_device([[length] for length in lengths], tokens.device)
        positions = positions + torch.arange(count, device=tokens.device)
        return self.read_at(tokens, positions, first=first, end=max(lengths) + count, keep=keep)

    def read_at(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        *,
        first: int = 0,
        end: int | None = None,
        keep: int | None = None,
    ) -> torch.Tensor:
        """Read tokens at their positions; each attends to earlier ones in the first `end` slots.

        Parameters
        ----------
        tokens, positions : int64 tensors, shape (rows, n)
            The caller updates `lengths`.
        first : int
            The first of the rows.
        end : int, optional
            Default all slots: then the host decides nothing.
        keep : int, optional
            Default n.

        Returns
        -------
        tensor, shape (rows, keep, V)
            Logits after the last `keep` tokens.
        """
        end = self._window.slots if end is None else end
        self._window.open_ragged(first, positions, end)
        masks = self._masks(positions, end)
        return self._call(tokens, tokens.shape[1] if keep is None else keep, **masks)

    def _call(self, tokens: torch.Tensor, keep: int, **options: Any) -> torch.Tensor:
        options[self._cache_argument] = self._cache
        output = self.model(input_ids=tokens, use_cache=True, logits_to_keep=keep, **options)
        return output.logits[:, -keep:]

    def _masks(self, positions: torch.Tensor, end: int) -> dict[str, Any]:
        """Positions of the new tokens, and the slots that each may attend to."""
        config: Any = self.model.config.get_text_config()
        slots = torch.arange(end, device=positions.device)
        seen = slots <= positions.unsqueeze(-1)
        reach = getattr(config, "sliding_window", None)
        near = seen & (slots > positions.unsqueeze(-1) - reach) if reach else seen
        full, sliding = (self._additive(mask.unsqueeze(1)) for mask in (seen, near))
        kinds = set(getattr(config, "layer_types", None) or ())
        mask: Any = full
        if "sliding_attention" in kinds:
            mask = {"full_attention": full, "sliding_attention": sliding}
        elif not kinds and reach:
            mask = sliding
        limit = context_length(self.model)
        return {  # beyond the limit there are only unused tokens
            "position_ids": positions if limit is None else positions.clamp(max=limit - 1),
            "attention_mask": mask,
        }

    def _additive(self, mask: torch.Tensor) -> torch.Tensor:
        if self.model.config.get_text_config()._attn_implementation != "eager":
            return mask
        lowest = torch.finfo(self.model.dtype).min
        return torch.where(mask, 0.0, lowest).to(self.model.dtype)


class _Window:
    """The rows and slots that the current pass writes; shared by all layers of a cache."""

    def __init__(self, rows: int, slots: int) -> None:
        self.rows, self.slots = rows, slots
        self.start = self.end = 0  # slots written, where all rows have equal lengths
        self.index: tuple | None = None  # (row, slot) of every new token, where lengths differ
        self.active = slice(0, 0)

    def open_aligned(self, first: int, rows: int, start: int, count: int) -> None:
        self.active, self.index = slice(first, first + rows), None
        self.start, self.end = start, start + count

    def open_ragged(self, first: int, positions: torch.Tensor, end: int) -> None:
        self.active, self.end = slice(first, first + len(positions)), end
        rows = torch.arange(first, first + len(positions), device=positions.device)
        self.index = (rows.unsqueeze(1), positions)


class _Layer(CacheLayerMixin):
    """Keys and values of one layer, shape (rows, heads, slots, size)."""

    def __init__(self, window: _Window) -> None:
        super().__init__()
        self._window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        def empty(states: torch.Tensor) -> torch.Tensor:
            _, heads, _, size = states.shape
            return states.new_zeros(self._window.rows, heads, self._window.slots, size)

        self.keys, self.values = empty(key_states), empty(value_states)
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._store(self.keys, key_states), self._store(self.values, value_states)

    def _store(self, held: Any, states: torch.Tensor) -> torch.Tensor:
        window = self._window
        if window.index is None:
            held[window.active, :, window.start : window.end] = states
        else:
            rows, slots = window.index
            held[rows, :, slots] = states.transpose(1, 2)
        return held[window.active, :, : window.end]

    def get_seq_length(self) -> int:
        return self._window.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._window.start + query_length, 0

    def get_max_length(self) -> int:
        return -1
