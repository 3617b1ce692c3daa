"""What an acceptance rule is: how far one number of the target lets it raise a drafted token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class Rule(ABC):
    """An acceptance rule that boosts the drafted token and shrinks all others in proportion.

    For a drafted token of target probability q the candidate law h has h(token) = g =
    ``boost(q)`` and h(x) = ``shrink(q)`` * target(x) elsewhere, shrink = (1-g)/(1-q). The token
    is accepted when u * draft_prob < g with u uniform on [0, 1), strictly; otherwise a token is
    recovered from [h - draft]_+, normalised.

    Both methods are one formula over a namespace ``xp`` (numpy, or torch with float64 tensors),
    so theory and decoder evaluate the same definition. Objects are immutable and hashable.
    """

    @abstractmethod
    def boost(self, target_prob: Any, *, xp: Any = np) -> Any:
        """g in [q, 1], the probability granted to a drafted token of target probability q."""

    @abstractmethod
    def shrink(self, target_prob: Any, *, xp: Any = np) -> Any:
        """(1-g)/(1-q) in [0, 1], the factor left to every other token (1 where q = 1)."""

    def acceptance_probability(self, draft_prob: Any, target_prob: Any, *, xp: Any = np) -> Any:
        """min(g / p, 1): the chance that a token of draft probability p passes (1 where p = 0)."""
        boosted = self.boost(target_prob, xp=xp)
        passes = boosted >= draft_prob
        return xp.where(passes, 1.0, boosted / xp.where(passes, 1.0, draft_prob))

    def accepted_mass(self, draft_prob: Any, target_prob: Any, *, xp: Any = np) -> Any:
        """min(p, g): the chance that a token is drafted and passes."""
        return xp.minimum(draft_prob, self.boost(target_prob, xp=xp))
