"""The edge battery in batches: ragged rows, rows with no drafts, and batches of nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from cactus_theory.rules import Rule, SpeculativeSampling
from cactus_theory.testing._block_calls import BlockVerifier, outcomes
from cactus_theory.testing._block_rows import Row, verified
from cactus_theory.testing._blocks import Block, Outcome
from cactus_theory.testing._edges import LARGEST, LAWS, empty_residual, not_a_number
from cactus_theory.testing._errors import ConformanceError, Verifier

_LENGTHS = {
    "ragged": (2, 0, 1, 0),
    "no drafts in the first row": (0, 2),
    "no drafts in the last row": (1, 0),
    "no drafts": (0, 0, 0),
    "one row": (1,),
    "one row, no drafts": (0,),
}
_CELLS = 16


def check_block_edges(
    sampler: BlockVerifier,
    rule: Rule | None = None,
    *,
    largest_uniform: float = LARGEST,
) -> None:
    """Try a block verifier on the edge battery in ragged batches, and report all that fails.

    At every pair of laws of `check_edges`, its tokens in another order in every row, in batches of
    rows with 2, 1 and 0 drafts, uniforms in {0, 1/2, largest}: nothing raises; each row is a block
    of its drafts, cut at the first rejection and followed by one token; a draft of no accepted mass
    is never kept, one whose mass is all accepted always is; the last token has positive weight, and
    the number reported, if any, is that of the drafts kept. A row with no drafts emits one token of
    the target's plain law: the midpoints of 16 cells give it exactly, whatever the rule. Empty
    residuals and NaN are tried on a batch of one row with one draft, as `check_edges` does.

    Parameters
    ----------
    sampler : callable (tokens, draft, target, accept_uniforms, recover_uniforms) -> pair
        (emitted, accepted), as for `check_blocks_by_enumeration`.
    rule : Rule, optional
        What it is meant to follow; plain speculative sampling if not given.
    largest_uniform : float
        The largest number below 1 in the sampler's arithmetic: 1 - 2**-24 for float32.

    Raises
    ------
    ConformanceError
        Naming each case that failed, once.

    Examples
    --------
    >>> from cactus_theory.testing import specification_block_verifier
    >>> plain = specification_block_verifier(SpeculativeSampling())
    >>> def greedy_without_drafts(tokens, draft, target, *uniforms):
    ...     emitted, accepted = plain(tokens, draft, target, *uniforms)
    ...     pairs = zip(emitted, tokens, target)
    ...     return [row if len(x) else [int(q[0].argmax())] for row, x, q in pairs], accepted
    >>> check_block_edges(greedy_without_drafts)
    Traceback (most recent call last):
    ...
    cactus_theory.testing.ConformanceError: ...row without drafts...
    """
    rule = SpeculativeSampling() if rule is None else rule
    failures: dict[str, str] = {}
    for (case, (p, q)), (shape, lengths) in product(LAWS.items(), _LENGTHS.items()):
        rows = [(np.roll(p, at), np.roll(q, at), k) for at, k in enumerate(lengths)]
        blocks = [Block.of(rule, draft=[p] * k, target=[q] * (k + 1)) for p, q, k in rows]
        for row in _batches(blocks, (0.0, 0.5, largest_uniform)):
            fault = _fault(sampler, blocks, row)
            if fault:
                failures.setdefault(case, f"{shape}, {fault}")
    for case, fault in (
        ("row without drafts", _law_without_drafts(sampler)),
        ("empty residual", empty_residual(_of_one_draft(sampler), largest_uniform)),
        ("NaN row", not_a_number(_of_one_draft(sampler))),
    ):
        if fault:
            failures[case] = fault
    if failures:
        listed = "\n  ".join(f"{case}: {fault}" for case, fault in failures.items())
        raise ConformanceError(f"{len(failures)} edge cases of {rule!r} fail:\n  {listed}")


def _batches(blocks: Sequence[Block], uniforms: Sequence[float]) -> Iterator[list[Row]]:
    """Batches in which every row meets each of its drafts under all uniforms."""
    drafts = [[tokens for tokens, _ in block.drafts()] for block in blocks]
    for turn, u, v in product(range(max(map(len, drafts))), uniforms, uniforms):
        picked = [row[turn % len(row)] for row in drafts]
        yield [Row(at, tokens, (u,) * len(tokens), v, 1.0) for at, tokens in enumerate(picked)]


def _fault(sampler: BlockVerifier, blocks: Sequence[Block], batch: Sequence[Row]) -> str | None:
    """What is wrong with one batch, or None."""
    try:
        found, _ = verified(sampler, blocks, batch, len(batch))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for row, outcome in zip(batch, found, strict=True):
        wrong = _wrong(blocks[row.block], row, outcome)
        if wrong:
            u = f"{row.accept[0]:.17g}" if row.accept else "none"
            return f"u = {u}, v = {row.recover:.17g}, row {row.block} of {len(batch)}: {wrong}"
    return None


def _wrong(block: Block, row: Row, outcome: Outcome) -> str | None:
    (emitted, accepted), tokens = outcome, row.tokens
    told = f"of drafts {list(tokens)} it emits {list(emitted)}"
    if len(emitted) != accepted + 1 or accepted > len(tokens):
        return f"{told} and reports {accepted} accepted"
    if emitted[:accepted] != tokens[:accepted]:
        return f"{told}, whose first {accepted} are not the drafted ones"
    chances = block.chances(tokens)
    if 0.0 in chances[:accepted]:
        return f"{told}: one of them has no chance of acceptance"
    if accepted < len(tokens) and chances[accepted] == 1:
        return f"{told}: token {tokens[accepted]} is always accepted"
    if not block.last(tokens, accepted)[emitted[-1]] > 0:
        return f"{told}: the last one has weight 0"
    return None


def _law_without_drafts(sampler: BlockVerifier) -> str | None:
    target = np.array([[1 / 16, 12 / 16, 0.0, 3 / 16]])
    block = Block.of(SpeculativeSampling(), draft=[], target=target)
    batch = [Row(0, (), (), (i + 0.5) / _CELLS, 1.0) for i in range(_CELLS)]
    try:
        found, _ = verified(sampler, [block], batch, len(batch))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    emitted = [tokens for tokens, _ in found]
    counts = [emitted.count((token,)) for token in range(target.size)]
    wanted = (target[0] * _CELLS).astype(int).tolist()
    if counts != wanted:
        return f"{_CELLS} midpoints give tokens so often: {counts} instead of {wanted}"
    return None


def _of_one_draft(sampler: BlockVerifier) -> Verifier:
    """The sampler on a batch of one row with one draft, in the form `check_edges` takes."""

    def verifier(token: int, draft: Any, target: Any, u: Any, v: Any) -> tuple[int, bool]:
        returned = sampler([[token]], [draft[None]], [np.stack([target, target])], [[u]], [v])
        [(emitted, accepted)], _ = outcomes(returned, rows=1, vocabulary=draft.size)
        return emitted[0], accepted > 0

    return verifier
