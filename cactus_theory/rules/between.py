"""A rule for the part of a text between two markers, and another one for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cactus_theory import _validate
from cactus_theory.rules._base import Rule
from cactus_theory.rules.speculative import SpeculativeSampling

Marker = str | int | Sequence[int]


@dataclass(frozen=True)
class BetweenMarkers:
    """One rule after each `start` marker until the next `end` marker, another one elsewhere.

    For a model that thinks before it answers: relax only while it thinks. The rule of a position is
    a function of the tokens before it (the prompt included), so every position emits the
    distribution of its own rule for that rule's charge, and budgets hold; see
    `cactus_theory.ledger`. The end marker itself is still drawn under `rule`. The markers may be
    equal; each occurrence then switches.

    Parameters
    ----------
    rule : Rule
        Between the markers.
    start, end : str, int, or sequence of int
        Markers, as token ids, or as text that a decoder's tokenizer turns into ids. Ids are
        compared, not text: best is a marker that is one token of the vocabulary.
    outside : Rule
        Before the first start marker, and after an end marker until the next start marker.

    Raises
    ------
    TypeError, ValueError
        If an argument is not what is described above.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> thinking = BetweenMarkers(Cactus(0.5), start=7, end=8)
    >>> [thinking.rule_at(tokens) for tokens in ([1], [1, 7], [1, 7, 2, 8])]
    [SpeculativeSampling(), Cactus(delta=0.5), SpeculativeSampling()]
    """

    rule: Rule
    start: Marker
    end: Marker
    outside: Rule = field(default_factory=SpeculativeSampling)

    def __post_init__(self) -> None:
        for name in ("rule", "outside"):
            value = getattr(self, name)
            if not isinstance(value, Rule):
                raise TypeError(f"{name} must be one of cactus_theory's rules, got {value!r}")
        for name in ("start", "end"):
            object.__setattr__(self, name, _marker(name, getattr(self, name)))

    @property
    def rules(self) -> tuple[Rule, Rule]:
        """`rule` and `outside`."""
        return self.rule, self.outside

    def with_ids(self, encode: Callable[[str], Sequence[int]]) -> BetweenMarkers:
        """The same with markers as token ids; `encode` makes them of text."""
        ids = {
            name: encode(marker)
            for name in ("start", "end")
            if isinstance(marker := getattr(self, name), str)
        }
        return replace(self, **ids)

    def is_inside(self, tokens: Sequence[int], *, begun: int = 0, inside: bool = False) -> bool:
        """Whether the position after these tokens is between markers.

        Parameters
        ----------
        tokens : sequence of int
        begun : int
            How many of the tokens were looked at before.
        inside : bool
            What the answer was after these.

        Raises
        ------
        ValueError
            If a marker is text.
        """
        for name in ("start", "end"):
            if isinstance(getattr(self, name), str):
                raise ValueError(
                    f"{name} must be token ids before a text can be read, "
                    f"got {getattr(self, name)!r}"
                )
        for length in range(begun + 1, len(tokens) + 1):
            marker: Sequence[int] = self.end if inside else self.start  # type: ignore[assignment]
            if length >= len(marker) and (*tokens[length - len(marker) : length],) == marker:
                inside = not inside
        return inside

    def rule_at(self, tokens: Sequence[int]) -> Rule:
        """The rule of the position after these tokens."""
        return self.rule if self.is_inside(tokens) else self.outside

    def steps(self, tokens: Sequence[int], drafted: Sequence[int], *, inside: bool) -> int:
        """How many of the drafted tokens are verified under one rule.

        All, or those up to the first that completes a marker. A block may end there: whether it
        does depends on no token after it.

        Parameters
        ----------
        tokens, drafted : sequence of int
            The text so far, and the tokens drafted after it.
        inside : bool
            `is_inside` of the text so far.
        """
        text = [*tokens, *drafted]
        for count in range(1, len(drafted) + 1):
            length = len(tokens) + count
            if self.is_inside(text[:length], begun=length - 1, inside=inside) != inside:
                return count
        return len(drafted)


def _marker(name: str, marker: Marker) -> str | tuple[int, ...]:
    if isinstance(marker, str):
        if not marker:
            raise ValueError(f"{name} must not be empty, got {marker!r}")
        return marker
    ids = marker if isinstance(marker, Sequence) else [marker]
    if not ids:
        raise ValueError(f"{name} must have at least one token, got {marker!r}")
    return tuple(_validate.integer(name, token, 0) for token in ids)
