"""A model and what it has read: a key-value cache that is rewound, never recomputed."""

from __future__ import annotations

import inspect

import torch
from transformers import DynamicCache, PreTrainedModel


def vocabulary_size(model: PreTrainedModel) -> int:
    """Width of the model's logits, padding included."""
    return int(model.config.get_text_config().vocab_size)


class NonFiniteLogitsError(RuntimeError):
    """A model produced logits of which no law can be made."""


class Context:
    """One model reading one growing sequence.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model in evaluation mode.
    role : str
        How error messages call the model: "target" or "draft".
    """

    def __init__(self, model: PreTrainedModel, role: str) -> None:
        self.model = model
        self.role = role
        self._cache = DynamicCache(config=model.config)
        self._cache.activate_past_recording()  # or sliding windows could not be rewound
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @property
    def length(self) -> int:
        """Number of tokens read and held in the cache."""
        return self._cache.get_seq_length()

    @torch.no_grad()
    def read(self, ids: torch.Tensor, last: int) -> torch.Tensor:
        """Logits after each of the last `last` tokens, reading only what is not held yet.

        All but the last `last` of `ids` must be what was read before, as far as that reaches;
        whatever was read beyond it is dropped from the cache.

        Parameters
        ----------
        ids : int64 tensor, shape (1, n)
            The whole sequence.
        last : int
            1 <= last <= n.

        Returns
        -------
        float32 (or wider) tensor, shape (1, last, V)

        Raises
        ------
        NonFiniteLogitsError
            Naming the model and the position, if a row holds NaN or +inf or is all -inf.
        """
        stale = self.length - (ids.shape[1] - last)
        if stale > 0:
            self._cache.crop(-stale)
        logits = self.model(
            input_ids=ids[:, self.length :],
            use_cache=True,
            logits_to_keep=last,
            **{self._cache_argument: self._cache},
        ).logits[:, -last:]
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        peaks = logits.amax(-1)
        if not torch.isfinite(peaks).all():
            row = int((~torch.isfinite(peaks[0])).nonzero()[0])
            position = ids.shape[1] - last + row
            raise NonFiniteLogitsError(
                f"the {self.role} model ({type(self.model).__name__}) gave non-finite logits "
                f"after token {position} of the sequence (largest value {float(peaks[0, row])})"
            )
        return logits
