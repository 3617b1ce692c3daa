"""The edge cases: inputs on which samplers were seen to fail, and what must hold there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from cactus_theory.rules import Rule, SpeculativeSampling
from cactus_theory.testing._block import Block
from cactus_theory.testing._calls import ConformanceError, OnePosition, Verifier, outcomes
from cactus_theory.testing._outcomes import Outcome
from cactus_theory.testing._rows import Row, midpoints, verified

_PAIRS = {
    "draft = target": ([0.1, 0.2, 0.7], [0.1, 0.2, 0.7]),
    "draft = target, with zeros": ([0.0, 0.3, 0.0, 0.7], [0.0, 0.3, 0.0, 0.7]),
    "target 0 where the draft is not": ([0.5, 0.25, 0.25], [0.0, 0.5, 0.5]),
    "disjoint supports": ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.25, 0.75]),
    "one-hot target": ([0.25, 0.5, 0.25], [0.0, 0.0, 1.0]),
    "one-hot draft": ([0.0, 1.0, 0.0], [0.5, 0.25, 0.25]),
    "one-hot draft and target, apart": ([1.0, 0.0], [0.0, 1.0]),
    "one token": ([1.0], [1.0]),
    "leading and trailing zeros in the residual": ([0.0, 0.75, 0.25, 0.0], [0.0, 0.25, 0.75, 0.0]),
    "padded vocabulary": ([0.5, 0.25, 0.25, 0.0, 0.0], [0.25, 0.25, 0.5, 0.0, 0.0]),
    "draft mass on the padding": ([0.25, 0.25, 0.25, 0.25], [0.25, 0.5, 0.25, 0.0]),
}
_LENGTHS = {
    "one row": (1,),
    "one row, no drafts": (0,),
    "ragged": (2, 0, 1, 0),
    "no drafts in the first row": (0, 2),
    "no drafts in the last row": (1, 0),
    "no drafts": (0, 0, 0),
}
_CELLS = 16


def check_edges(
    verifier: Verifier,
    rule: Rule | None = None,
    *,
    largest_uniform: float = 1 - 2.0**-53,
) -> None:
    """Run a verifier on all edge cases, and report all failures at once.

    The pairs are equal, disjoint and one-hot distributions, one token, zeros and padding. Each pair
    is tried with its tokens in another order in every row, in ragged batches of rows with 2, 1 and
    0 drafts, and for uniforms in {0, 1/2, largest}. Then nothing raises; each row is a block of its
    drafts, cut at the first rejection and followed by one token; a draft with accepted mass 0 is
    never kept (also at u = 0), one whose mass is all accepted is always kept (also at the largest
    u); the last token has positive weight, and the number reported, if any, is that of the drafts
    kept.

    A row with no drafts emits one token of the plain target: the midpoints of 16 cells give it
    exactly, for every rule. Where draft and target differ in the last bit a rejection leaves an
    empty residual: nothing may crash, and the target must allow the token. A row of NaN must
    raise, or emit a token of the vocabulary without accepting the drafted one.

    Parameters
    ----------
    verifier : callable (tokens, draft, target, accept_uniforms, recover_uniforms) -> pair
        (emitted, accepted), as for `check_by_enumeration`. A verifier of one token, wrapped by
        `OnePosition`, is tried on single drafts only.
    rule : Rule, optional
        The rule it should follow; plain speculative sampling if not given.
    largest_uniform : float
        The largest number below 1 in the verifier's arithmetic: 1 - 2**-24 for float32.

    Raises
    ------
    ConformanceError
        Naming each failed case once.

    Examples
    --------
    >>> from cactus_theory.testing import check_edges, specification_verifier
    >>> plain = specification_verifier(SpeculativeSampling())
    >>> def greedy_without_drafts(tokens, draft, target, *uniforms):
    ...     if not all(np.isfinite(q).all() for q in target):
    ...         raise ValueError("target is not finite")
    ...     emitted, accepted = plain(tokens, draft, target, *uniforms)
    ...     rows = zip(emitted, tokens, target)
    ...     return [row if len(x) else [int(q[0].argmax())] for row, x, q in rows], accepted
    >>> check_edges(greedy_without_drafts)
    Traceback (most recent call last):
    ...
    cactus_theory.testing.ConformanceError: 1 edge cases of SpeculativeSampling() fail:
      row without drafts: 16 midpoints ...
    """
    rule = SpeculativeSampling() if rule is None else rule
    alone = isinstance(verifier, OnePosition)
    lengths = {"one row": (1,)} if alone else _LENGTHS
    failures: dict[str, str] = {}
    for (case, (p, q)), (shape, drafts) in product(_PAIRS.items(), lengths.items()):
        rows = [(np.roll(p, at), np.roll(q, at), k) for at, k in enumerate(drafts)]
        blocks = [Block.of(rule, draft=[p] * k, target=[q] * (k + 1)) for p, q, k in rows]
        for batch in _batches(blocks, (0.0, 0.5, largest_uniform)):
            fault = _fault(verifier, blocks, batch)
            if fault:
                shown = case if shape == "one row" else f"{case}, {shape}"
                failures.setdefault(case, f"{shown}, {fault}")
    for case, fault in (
        ("row without drafts", None if alone else _without_drafts(verifier)),
        ("empty residual", _empty_residual(verifier, largest_uniform)),
        ("NaN row", _not_a_number(verifier)),
    ):
        if fault:
            failures[case] = f"{case}: {fault}"
    if failures:
        listed = "\n  ".join(failures.values())
        raise ConformanceError(f"{len(failures)} edge cases of {rule!r} fail:\n  {listed}")


def _batches(blocks: Sequence[Block], uniforms: Sequence[float]) -> list[list[Row]]:
    """Every row with each of its drafts under all uniforms, alone or together with others."""
    drafts = [[tokens for tokens, _ in block.drafts()] for block in blocks]
    rounds = [
        tuple(Row(at, row[turn % len(row)], (u,) * len(row[0]), v) for at, row in enumerate(drafts))
        for turn, u, v in product(range(max(map(len, drafts))), uniforms, uniforms)
    ]
    different = list(dict.fromkeys(rounds))
    if len(blocks) == 1:
        return [list(rows) for rows in different]
    return [[row for rows in different for row in rows]]


def _fault(verifier: Verifier, blocks: Sequence[Block], batch: Sequence[Row]) -> str | None:
    """What is wrong with one batch, or None."""
    try:
        found, _ = verified(verifier, blocks, batch, len(batch))
    except Exception as error:
        given = _uniforms(batch[0]) if len(batch) == 1 else f"{len(batch)} rows"
        return f"{given}: {type(error).__name__}: {error}"
    for at, (row, outcome) in enumerate(zip(batch, found, strict=True)):
        wrong = _wrong(blocks[row.block], row, outcome)
        if wrong:
            where = f", row {at} of {len(batch)}" if len(batch) > 1 else ""
            return f"{_uniforms(row)}{where}: of drafts {list(row.tokens)} it emits {wrong}"
    return None


def _uniforms(row: Row) -> str:
    u = f"u = {row.accept[0]:.17g}, " if row.accept else ""
    return f"{u}v = {row.recover:.17g}"


def _wrong(block: Block, row: Row, outcome: Outcome) -> str | None:
    (emitted, accepted), tokens = outcome, row.tokens
    seen = f"{list(emitted)}, {accepted} accepted"
    if len(emitted) != accepted + 1 or accepted > len(tokens):
        return f"{seen}: a block has one token more than it accepts"
    if emitted[:accepted] != tokens[:accepted]:
        return f"{seen}: its first {accepted} are not the drafted ones"
    chances = block.chances(tokens)
    if 0.0 in chances[:accepted]:
        token = tokens[chances.index(0.0)]
        return f"{seen}: accepted token {token}, which has no chance of acceptance"
    if accepted < len(tokens) and chances[accepted] == 1:
        return f"{seen}: rejected token {tokens[accepted]}, which is always accepted"
    if not block.last(tokens, accepted)[emitted[-1]] > 0:
        kind = "recovered" if accepted < len(tokens) else "bonus"
        return f"{seen}: {kind} token {emitted[-1]}, whose weight is 0"
    return None


def _without_drafts(verifier: Verifier) -> str | None:
    target = np.array([[1 / 16, 12 / 16, 0.0, 3 / 16]])
    block = Block.of(SpeculativeSampling(), draft=[], target=target)
    batch = [Row(0, (), (), v) for v in midpoints(_CELLS, exact=False)]
    try:
        found, _ = verified(verifier, [block], batch, len(batch))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    emitted = [tokens for tokens, _ in found]
    counts = [emitted.count((token,)) for token in range(target.size)]
    wanted = (target[0] * _CELLS).astype(int).tolist()
    if counts != wanted:
        return f"{_CELLS} midpoints give tokens so often: {counts} instead of {wanted}"
    return None


def _of_one_draft(verifier: Verifier, p: np.ndarray, q: np.ndarray, u: float, v: float) -> Outcome:
    """What a row with the single draft token 0 emits."""
    returned = verifier([[0]], [p[None].copy()], [np.stack([q, q])], [np.array([u])], np.array([v]))
    [outcome], _ = outcomes(returned, rows=1, vocabulary=p.size)
    return outcome


def _empty_residual(verifier: Verifier, largest: float) -> str | None:
    target = np.array([0.5, 0.5, 0.0])
    draft = target + np.array([1 - largest, 0.0, 0.0])
    for v in (0.0, largest):
        try:
            emitted, _ = _of_one_draft(verifier, draft, target, largest, v)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if not emitted or not (target[list(emitted)] > 0).all():
            return f"emitted {list(emitted)}, where the target allows tokens 0 and 1"
    return None


def _not_a_number(verifier: Verifier) -> str | None:
    draft, target = np.array([0.5, 0.5]), np.array([np.nan, np.nan])
    try:
        _, accepted = _of_one_draft(verifier, draft, target, 0.5, 0.5)
    except ConformanceError as error:
        return str(error)
    except Exception:
        return None
    return "accepted a token of unknown probability" if accepted else None
