"""Where in its block a token of a text stands, given the text: the forward recursion, with rows.

Knows one rule and one text at a time. `cactus_theory.texts` has the same recursion for whole texts
of which only the tokens' own probabilities are known.
"""

from __future__ import annotations

import numpy as np

from cactus_theory._validate import integer
from cactus_theory.emitted import output_distribution
from cactus_theory.rules import Rule


class BlockPhases:
    r"""The exact distribution of a block decoder's next token, given its text alone.

    With B(j) the probability, given the text so far, that j tokens of the block under way were
    emitted, the next token has the distribution

        c = B(verified) out + B(k) q,

    since a token after all k drafts is the target's own. After token x, B(j+1) is proportional to
    B(j) m(x), and B(0) to the sum of B(j) (out - m)(x) over verified j, plus B(k) q(x).

    Parameters
    ----------
    rule : Rule
    num_draft_tokens : int >= 0
        k, the same for each block.
    max_new_tokens : int, optional
        N, the longest text: a block that begins after s tokens has min(k, N - s - 1) drafts.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer in its range.

    References
    ----------
    Ours.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> phases = BlockPhases(Cactus(0.02), 1)
    >>> p, q = np.array([0.75, 0.25]), np.array([0.5, 0.5])
    >>> phases.next_distribution(draft=p, target=q), phases.bonus
    (array([0.6, 0.4]), 0.0)
    >>> phases.emit(0)
    >>> phases.next_distribution(draft=p, target=q), phases.bonus
    (array([0.5, 0.5]), 1.0)
    """

    def __init__(
        self, rule: Rule, num_draft_tokens: int, *, max_new_tokens: int | None = None
    ) -> None:
        self._rule = rule
        self._drafts = integer("num_draft_tokens", num_draft_tokens, 0)
        self._longest = (
            None if max_new_tokens is None else integer("max_new_tokens", max_new_tokens, 1)
        )
        self.new_text()

    def new_text(self) -> None:
        """Begin another text."""
        self._position = 0
        self._chances = np.array([1.0])
        self._rows: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def _verified(self) -> np.ndarray:
        """Whether a draft is verified here, for each phase."""
        phases = np.arange(self._chances.size)
        drafts = np.full(phases.size, self._drafts)
        if self._longest is not None:
            begun = self._position - phases
            drafts = np.clip(self._longest - 1 - begun, 0, drafts)
        return phases < drafts

    @property
    def bonus(self) -> float:
        """The probability, given the text, that the next token is a bonus or a plain one."""
        return float(self._chances[~self._verified()].sum())

    def next_distribution(self, *, draft: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The distribution of the next token, given the text so far.

        Parameters
        ----------
        draft, target : float64 array, shape (V,)
            p and q of the next position.

        Returns
        -------
        float64 array, shape (V,)
        """
        accepted = self._rule.accepted_mass(draft, target)
        out = output_distribution(self._rule, draft=draft, target=target)
        self._rows = np.minimum(accepted, out), out, target
        bonus = self.bonus
        return (1 - bonus) * out + bonus * target

    def emit(self, token: int) -> None:
        """Read the next token, whose distribution `next_distribution` has given.

        Parameters
        ----------
        token : int

        Raises
        ------
        ValueError
            If the token cannot follow, or its distribution was not asked for.
        """
        going_on, ended = self._next(token)
        total = going_on.sum() + ended
        if total == 0:
            raise ValueError(f"token must be one that can follow, got {token!r}")
        self._chances = np.append(ended, going_on)[: self._drafts + 1] / total
        self._position, self._rows = self._position + 1, None

    def allows(self, token: int) -> bool:
        """Whether a token can follow, according to the last `next_distribution`."""
        going_on, ended = self._next(token)
        return bool(going_on.sum() + ended > 0)

    def _next(self, token: int) -> tuple[np.ndarray, float]:
        """Chances of the token together with each phase after it; the last with a new block."""
        if self._rows is None:
            raise ValueError("next_distribution must be called before emit")
        kept, out, plain = (float(row[token]) for row in self._rows)
        verified = self._verified()
        going_on = np.where(verified, self._chances * kept, 0.0)
        ended = np.where(verified, self._chances * (out - kept), self._chances * plain).sum()
        return going_on, float(ended)
