"""Where randomness comes from: counter-based uniforms, and the inverse distribution function.

A uniform is a function of (seed, request, position, purpose) and of nothing else, by numpy's
Philox generator. Draft noise, acceptance and recovery draws are therefore independent streams,
and a result cannot depend on other requests or on the order in which requests are served.
"""

from __future__ import annotations

import enum
import secrets

import numpy as np
import torch

from cactus_theory._validate import word

_WORD = 2**64
_OUTPUTS = 4  # of one Philox counter
_EXACT = 53  # bits of an integer that float64 can represent


class Purpose(enum.IntEnum):
    """The use of a uniform."""

    DRAFT = 0
    ACCEPT = 1
    RECOVER = 2


class Streams:
    """Uniforms of one request.

    Parameters
    ----------
    seed : int or None
        In [0, 2**64); None draws one at random below 2**53, which the attribute `seed` records.
    request : int
        Distinguishes requests that share a seed.

    Examples
    --------
    >>> both = Streams(7).uniforms(position=3, count=2)
    >>> later = Streams(7).uniforms(position=4, count=1)
    >>> both.shape, bool((both[1] == later[0]).all())
    ((2, 3), True)
    """

    def __init__(self, seed: int | None = None, request: int = 0) -> None:
        if seed is None:
            seed = secrets.randbits(_EXACT)  # exact for JSON readers that use floats
        self.seed = word("seed", seed)
        self.request = word("request", request)

    def uniforms(self, *, position: int, count: int) -> np.ndarray:
        """Uniforms in [0, 1) for `count` positions from `position` on.

        float64, shape (count, 3); columns by `Purpose`. The counter is the position, and the
        purpose picks one of its four outputs, of which the upper 53 bits are used.
        """
        bits = np.random.Philox(
            key=np.array([self.seed, self.request], dtype=np.uint64),
            counter=np.array([position, 0, 0, 0], dtype=np.uint64),
        )
        raw = bits.random_raw(_OUTPUTS * count).reshape(count, _OUTPUTS)
        return (raw[:, : len(Purpose)] >> np.uint64(11)) * 2.0**-53


def draw_tokens(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """First x with uniform * total < weights[0] + ... + weights[x], per row.

    Parameters
    ----------
    weights : tensor, shape (..., V)
        Non-negative, with a positive sum per row; need not be normalised.
    uniform : float64 tensor, shape (...)
        In [0, 1).

    Returns
    -------
    int64 tensor, shape (...)
        Never an index of weight zero. An arbitrary index for a row with NaN.

    Examples
    --------
    >>> u = torch.tensor([0.1, 0.9], dtype=torch.float64)
    >>> draw_tokens(torch.tensor([[0.0, 2.0, 2.0], [0.0, 2.0, 2.0]]), u).tolist()
    [1, 2]
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[..., -1:]
    threshold = uniform.unsqueeze(-1) * total
    threshold = torch.minimum(threshold, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    return found.clamp(max=weights.shape[-1] - 1)  # NaN is reported where the logits are checked
