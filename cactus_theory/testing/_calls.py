"""The interface of verifiers and samplers, and adapters to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory.rules import Rule
from cactus_theory.specification import inverse_cdf, verify
from cactus_theory.testing._outcomes import Outcome

Verifier = Callable[[Any, Any, Any, Any, Any], tuple[Any, Any]]
Sampler = Callable[[Any, Any, Any, int], tuple[Any, Any]]


class ConformanceError(AssertionError):
    """A sampler does not follow its rule; the message says which mistake it resembles.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> from cactus_theory.testing import OnePosition, check_by_enumeration
    >>> keeps_all = OnePosition(lambda token, draft, target, accept, recover: (token, True))
    >>> check_by_enumeration(keeps_all, SpeculativeSampling(), draft=[0.75, 0.25],
    ...                      target=[0.5, 0.5])
    Traceback (most recent call last):
    ...
    cactus_theory.testing.ConformanceError: ... it matches everything accepted...
    """

    __module__ = "cactus_theory.testing"  # the name that users import, for tracebacks


@dataclass(frozen=True)
class OnePosition:
    """Adapter for a verifier of a single drafted token.

    Blocks are verified position by position, and the bonus token is drawn here, by the inverse of
    the target's distribution function. Checks test only what applies to a verifier of one token: no
    batches, and none of the catalogue's mistakes with whole blocks.

    Attributes
    ----------
    verifier : callable (token, draft, target, accept_uniform, recover_uniform) -> (int, bool)
        The emitted token, and whether the drafted one was accepted; draft and target have shape
        (V,).

    Examples
    --------
    >>> from cactus_theory.testing import check_edges
    >>> def loose(token, draft, target, accept_uniform, recover_uniform):
    ...     accepted = accept_uniform * draft[token] <= target[token]
    ...     return (token if accepted else int(np.argmax(target - draft))), accepted
    >>> check_edges(OnePosition(loose))
    Traceback (most recent call last):
    ...
    cactus_theory.testing.ConformanceError: ...target 0 where the draft is not, u = 0...
    """

    verifier: Callable[[int, Any, Any, Any, Any], tuple[Any, Any]]

    def __call__(
        self, tokens: Any, draft: Any, target: Any, accept_uniforms: Any, recover_uniforms: Any
    ) -> tuple[list[list[int]], list[int]]:
        rows = zip(tokens, draft, target, accept_uniforms, recover_uniforms, strict=True)
        blocks = [self._row(*row) for row in rows]
        return [emitted for emitted, _ in blocks], [accepted for _, accepted in blocks]

    def _row(self, tokens: Any, draft: Any, target: Any, u: Any, v: Any) -> tuple[list[int], int]:
        for place, token in enumerate(tokens):
            emitted, accepted = self.verifier(token, draft[place], target[place], u[place], v)
            if not accepted:
                return [*tokens[:place], int(emitted)], place
            if int(emitted) != token:
                raise ConformanceError(f"accepted drafted token {token} but emitted {int(emitted)}")
        return [*tokens, inverse_cdf(target[len(tokens)], v)], len(tokens)


def as_sampler(verifier: Verifier) -> Sampler:
    """Make a sampler for `check_by_sampling` from a verifier; uniforms are drawn from a seed.

    Parameters
    ----------
    verifier : callable (tokens, draft, target, accept_uniforms, recover_uniforms) -> pair

    Returns
    -------
    callable (tokens, draft, target, seed) -> pair

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> sampler = as_sampler(specification_verifier(SpeculativeSampling()))
    >>> sampler([[]], [np.empty((0, 2))], [np.array([[1.0, 0.0]])], 7)
    ([[0]], [0])
    """

    def sampler(tokens: Any, draft: Any, target: Any, seed: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(seed)
        accept = [rng.random(len(row)) for row in tokens]
        return verifier(tokens, draft, target, accept, rng.random(len(tokens)))

    return sampler


def specification_verifier(rule: Rule) -> Verifier:
    """The package's own verifier, in the form that the checks expect.

    Parameters
    ----------
    rule : Rule

    Returns
    -------
    callable (tokens, draft, target, accept_uniforms, recover_uniforms) -> (list, list)

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> draft, target = np.array([[1.0, 0.0]]), np.array([[0.5, 0.5], [0.0, 1.0]])
    >>> specification_verifier(SpeculativeSampling())(
    ...     [[0], []], [draft, draft[:0]], [target, target[1:]], [[0.2], []], [0.5, 0.5])
    ([[0, 1], [1]], [1, 0])
    """

    def verifier(
        tokens: Any, draft: Any, target: Any, accept_uniforms: Any, recover_uniforms: Any
    ) -> tuple[list[list[int]], list[int]]:
        rows = zip(tokens, draft, target, accept_uniforms, recover_uniforms, strict=True)
        blocks = [
            verify(rule, x, draft=p, target=q, accept_uniforms=u, recover_uniform=v)
            for x, p, q, u, v in rows
        ]
        return [emitted for emitted, _ in blocks], [accepted for _, accepted in blocks]

    return verifier


def outcomes(returned: Any, *, rows: int, vocabulary: int) -> tuple[list[Outcome], bool]:
    """Blocks of a batch, and whether their numbers of accepted tokens were reported.

    Rows are lists of tokens, or those of an array padded with -1 at the end. If the numbers are not
    reported, one less than the number of emitted tokens is assumed.

    Raises
    ------
    ConformanceError
        If this is not a batch of this many blocks of tokens.

    Examples
    --------
    >>> outcomes(([[1, 0], [1, -1]], None), rows=2, vocabulary=2)
    ([((1, 0), 1), ((1,), 0)], False)
    """
    try:
        emitted, accepted = returned
        blocks = [[int(token) for token in row] for row in emitted]
        counts = None if accepted is None else [int(count) for count in accepted]
    except (TypeError, ValueError) as error:
        raise ConformanceError(
            f"a block sampler returns (emitted, accepted): rows of tokens, and one number for each "
            f"row or None; this is {returned!r}"
        ) from error
    if len(blocks) != rows or (counts is not None and len(counts) != rows):
        reported = "none" if counts is None else str(len(counts))
        raise ConformanceError(
            f"{rows} rows went in; {len(blocks)} rows of tokens and {reported} accepted counts "
            "came out"
        )
    cut = [_unpadded(row, block, vocabulary) for row, block in enumerate(blocks)]
    numbers = [len(block) - 1 for block in cut] if counts is None else counts
    return list(zip(cut, numbers, strict=True)), counts is not None


def _unpadded(row: int, block: Sequence[int], vocabulary: int) -> tuple[int, ...]:
    length = block.index(-1) if -1 in block else len(block)
    if any(token != -1 for token in block[length:]):
        raise ConformanceError(f"row {row} has tokens after its padding of -1: {list(block)}")
    outside = [token for token in block[:length] if not 0 <= token < vocabulary]
    if outside:
        raise ConformanceError(
            f"row {row} emits {outside[0]}, outside a vocabulary of {vocabulary}: {list(block)}"
        )
    return tuple(block[:length])
