"""How samplers of whole blocks are called, and how what they return is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cactus_theory.rules import Rule
from cactus_theory.specification import verify
from cactus_theory.testing._blocks import Outcome
from cactus_theory.testing._errors import ConformanceError

BlockVerifier = Callable[[Any, Any, Any, Any, Any], tuple[Any, Any]]
BlockSampler = Callable[[Any, Any, Any, int], tuple[Any, Any]]


def specification_block_verifier(rule: Rule) -> BlockVerifier:
    """The package's own verifier of ragged batches, in the form the checks take.

    Parameters
    ----------
    rule : Rule

    Returns
    -------
    callable (tokens, draft, target, accept_uniforms, recover_uniforms) -> (list, list)

    Examples
    --------
    >>> import numpy as np
    >>> from cactus_theory import SpeculativeSampling
    >>> draft, target = np.array([[1.0, 0.0]]), np.array([[0.5, 0.5], [0.0, 1.0]])
    >>> specification_block_verifier(SpeculativeSampling())(
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
    """Blocks of a batch and whether their numbers of accepted tokens were reported.

    Rows are lists of tokens, or those of an array padded with -1 at the end. A number that is not
    reported is taken to be one less than the tokens emitted.

    Raises
    ------
    ConformanceError
        If this is no batch of so many blocks of tokens.

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
        told = "none" if counts is None else str(len(counts))
        raise ConformanceError(
            f"{rows} rows went in; {len(blocks)} rows of tokens and {told} accepted numbers came "
            "out"
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
