"""The check by enumeration: every draft and a grid of uniforms, where uniforms can be passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm
from typing import Any

import numpy as np

from cactus_theory.rules import Rule
from cactus_theory.testing import _rows
from cactus_theory.testing._block import Block, tolerances
from cactus_theory.testing._calls import ConformanceError, OnePosition, Verifier
from cactus_theory.testing._naming import HANDED, Rows, Tested, farthest_apart, looks_like
from cactus_theory.testing._outcomes import (
    Distribution,
    View,
    as_array,
    first_decision,
    first_token,
    seen,
    tokens_only,
    whole,
)

_MOST_ROWS = 1_000_000

# Two, no and one drafted tokens. Thresholds of plain speculative sampling, and all distributions
# that a last token is drawn from, are multiples of 1/8: on that grid it is enumerated exactly.
_DRAFT = (
    [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]],
    [],
    [[0.25, 0.25, 0.5]],
)
_TARGET = (
    [[4 / 32, 11 / 32, 17 / 32], [19 / 32, 10 / 32, 3 / 32], [0.25, 0.125, 0.625]],
    [[0.625, 0.25, 0.125]],
    [[17 / 32, 11 / 32, 4 / 32], [0.125, 0.5, 0.375]],
)


@dataclass(frozen=True)
class Enumeration:
    """The result of an enumeration, for each row of the given distributions.

    Attributes
    ----------
    distributions, tolerances : tuple of dict of (tuple of int, int) to float
        Probability of each (emitted tokens, accepted tokens), and its allowed error. If the
        comparison was exact, the error is 0 and the probabilities are Fractions. At one position
        the emitted tokens are the recovered one, or the accepted one and a 0.
    reported : bool
        Whether the sampler reported its numbers of accepted tokens.
    unresolved : tuple of str
        Mistakes of the catalogue that this grid could not distinguish from the correct
        distribution.
    size : int
        V.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> from cactus_theory.testing import specification_verifier
    >>> rule = SpeculativeSampling()
    >>> found = check_by_enumeration(
    ...     specification_verifier(rule), rule, draft=[[]], target=[[[0.25, 0.75]]])
    >>> found.distributions
    ({((1,), 0): 0.75, ((0,), 0): 0.25},)
    """

    distributions: tuple[Distribution, ...]
    tolerances: tuple[Distribution, ...]
    reported: bool
    unresolved: tuple[str, ...]
    size: int

    def first_token(self, row: int = 0) -> np.ndarray:
        """Probability of each first token of a row, shape (V,).

        Examples
        --------
        >>> from cactus_theory import SpeculativeSampling
        >>> from cactus_theory.testing import specification_verifier
        >>> rule, p, q = SpeculativeSampling(), [0.75, 0.25], [0.5, 0.5]
        >>> verifier = specification_verifier(rule)
        >>> check_by_enumeration(verifier, rule, draft=p, target=q, cells=3).first_token()
        array([0.5, 0.5])
        """
        return as_array(seen(first_token, self.distributions[row]), self.size)

    def accepted_mass(self, row: int = 0) -> np.ndarray:
        """Probability that each token is drafted first and accepted, shape (V,).

        Examples
        --------
        >>> from cactus_theory import SpeculativeSampling
        >>> from cactus_theory.testing import specification_verifier
        >>> rule, p, q = SpeculativeSampling(), [0.75, 0.25], [0.5, 0.5]
        >>> verifier = specification_verifier(rule)
        >>> check_by_enumeration(verifier, rule, draft=p, target=q, cells=3).accepted_mass()
        array([0.5 , 0.25])
        """
        decided = seen(first_decision, self.distributions[row])
        return as_array({key: mass for key, mass in decided.items() if key[1]}, self.size)


def check_by_enumeration(
    verifier: Verifier,
    rule: Rule,
    *,
    draft: Any = None,
    target: Any = None,
    cells: int | None = None,
    rows: int = 64,
    rounding: float = 1e-6,
) -> Enumeration:
    """Enumerate the joint distribution of a verifier's outcomes, and compare it with the exact one.

    All drafted blocks, weighted by their probabilities, and the midpoints of a grid of c cells for
    every uniform are verified, shuffled into ragged batches. Given its drafts, an outcome is a box
    of uniforms: the product of the intervals in which each token passes or fails, and of the
    interval of the last token. The grid measures the box up to the compounded errors of its sides.
    It is exact where thresholds and probabilities are multiples of 1/c; the default distributions
    satisfy this for plain speculative sampling. The check also demands that a row does not depend
    on other rows.

    Where the rule is plain speculative sampling, all probabilities are Fractions, and grids of at
    most c cells have every threshold on their borders, the uniforms are Fractions too, and the
    distribution must equal the correct one, ``==``.

    Parameters
    ----------
    verifier : callable (tokens, draft, target, accept_uniforms, recover_uniforms) -> pair
        Row i of a batch has k_i >= 0 drafted tokens: `tokens` is a list of lists of k_i ints,
        `draft` one of arrays of shape (k_i, V), `target` of shape (k_i + 1, V), `accept_uniforms`
        of k_i numbers and `recover_uniforms` an array of one number for each row. It returns
        (emitted, accepted): rows of tokens, as lists or as an array padded at the end with -1, and
        the number of accepted tokens of each row, or None. `OnePosition` wraps a verifier of one
        token. In total it is called on sum over rows of V^k c^(k+1) rows.
    rule : Rule
        The rule it should follow.
    draft : sequence of arrays, shape (k_i, V); or one, shape (V,)
        The distributions of each row's drafted tokens; k_i may be 0. For one position draft and
        target have shape (V,), and the bonus token is always 0. If neither is given, three rows
        with 2, 0 and 1 drafts over 3 tokens are used.
    target : sequence of arrays, shape (k_i + 1, V); or one, shape (V,)
    cells : int, optional
        64 for one position, else 8.
    rows : int
        Rows of a batch.
    rounding : float
        Error of a threshold in the verifier's arithmetic; the default allows float32.

    Returns
    -------
    Enumeration

    Raises
    ------
    ConformanceError
        If a distribution is wrong, a row depends on others, or a result is not a batch of blocks.
    ValueError
        If an argument is not a distribution, the shapes do not fit, `cells` < 2, `rows` < 1, or
        there are more than a million rows to verify.

    Examples
    --------
    >>> from cactus_theory import Cactus, SpeculativeSampling
    >>> from cactus_theory.testing import specification_verifier
    >>> plain = specification_verifier(SpeculativeSampling())
    >>> check_by_enumeration(plain, SpeculativeSampling()).unresolved
    ()
    >>> def without_bonus(tokens, *rest):
    ...     emitted, accepted = plain(tokens, *rest)
    ...     return [block[: max(len(x), 1)] for block, x in zip(emitted, tokens)], None
    >>> check_by_enumeration(without_bonus, SpeculativeSampling())
    Traceback (most recent call last):
    ...
    cactus_theory.testing.ConformanceError: ... it matches no bonus token...
    >>> p, q = [0.6, 0.36, 0.04], [0.2, 0.4, 0.4]
    >>> check_by_enumeration(plain, Cactus(0.1), draft=p, target=q)
    Traceback (most recent call last):
    ...
    cactus_theory.testing.ConformanceError: ... it matches plain speculative sampling (no boost)...
    """
    blocks = blocks_of(rule, draft, target)
    cells = cells if cells is not None else 64 if blocks[0].single else 8
    if cells < 2 or rows < 1:
        raise ValueError(f"cells must be at least 2 and rows at least 1, got {cells!r}, {rows!r}")
    exact = _exact_grid(blocks, cells)
    shape = (cells, cells) if exact is None else exact
    floats = [block.in_floats() for block in blocks]
    blocks = floats if exact is None else blocks
    size = _rows.size_of_grid(blocks, shape)
    if size > _MOST_ROWS:
        raise ValueError(
            f"{size} rows to verify, more than {_MOST_ROWS}: take fewer cells or shorter blocks"
        )
    _rows.demand_independent_rows(verifier, floats, rows)
    points = _rows.grid(blocks, shape)
    found, reported = _rows.verified(verifier, blocks, points, rows)
    distributions = _rows.weighted(points, found, blocks)
    right = [block.distribution() for block in blocks]
    if exact is None:
        slack = [tolerances(block, cells=cells, rounding=rounding) for block in blocks]
    else:
        slack = [dict.fromkeys(row, 0) for row in right]
    tested = Tested(floats, scopes_of(verifier), whole if reported else tokens_only)
    if not _within(distributions, right, slack):
        alike = 1 / min(shape)  # of distributions, in total variation

        def as_expected(at: int, view: View, rows: Rows) -> bool:
            return _within(rows, [seen(view, right[at])], [seen(view, slack[at])])

        looks = looks_like(
            distributions,
            tested,
            samples=min(shape) ** (1 + max(len(block.positions) for block in blocks)),
            fits=lambda rows, others: farthest_apart(rows, others) <= alike,
            right=as_expected,
        )
        raise ConformanceError(f"{farthest(distributions, right, tested)} under {rule!r}: {looks}")
    wrong = tested.wrong()
    near = tuple(name for name, others in wrong.items() if _within(others, tested.right(), slack))
    return Enumeration(tuple(distributions), tuple(slack), reported, near, blocks[0].size)


def scopes_of(call: Any) -> tuple[str, ...]:
    """Kinds of mistakes a verifier can make; one of single tokens makes none with blocks."""
    return ("position",) if isinstance(call, OnePosition) else HANDED


def blocks_of(rule: Rule, draft: Any, target: Any) -> list[Block]:
    """The blocks of the given distributions, or of the default ones."""
    if draft is None or target is None:
        if draft is not target:
            raise ValueError("draft and target must both be given, or neither")
        draft, target = _DRAFT, _TARGET
    if len(target) and np.ndim(target[0]) == 0:
        return [Block.of(rule, draft=draft, target=target)]
    if len(draft) != len(target) or not len(target):
        raise ValueError(
            "draft and target must have one array for each row and at least one row, got "
            f"{len(draft)} and {len(target)}"
        )
    blocks = [Block.of(rule, draft=p, target=q) for p, q in zip(draft, target, strict=True)]
    sizes = sorted({block.size for block in blocks})
    if len(sizes) > 1:
        raise ValueError(f"all rows must share one vocabulary, got sizes {sizes}")
    if not all(block.exact for block in blocks):
        return [block.in_floats() for block in blocks]
    return blocks


def _exact_grid(blocks: Sequence[Block], cells: int) -> tuple[int, int] | None:
    """The finest grids of at most this many cells with all thresholds on their borders, or None."""
    if not blocks[0].exact:
        return None
    positions = [position for block in blocks for position in block.positions]
    accept = lcm(*(chance.denominator for at in positions for chance in at.accepted))
    last = [row for at in positions for row in at.recovery] + [block.target[-1] for block in blocks]
    recover = lcm(*(share.denominator for row in last for share in accumulate(row)))
    if max(accept, recover) > cells:
        return None
    return cells // accept * accept, cells // recover * recover


def _within(rows: Rows, right: Rows, slack: Rows) -> bool:
    """Whether every outcome is within its tolerance; that of an impossible one is 0."""
    return all(
        abs(row.get(outcome, 0) - wanted.get(outcome, 0)) <= allowed.get(outcome, 0)
        for row, wanted, allowed in zip(rows, right, slack, strict=True)
        for outcome in {*row, *wanted}
    )


def farthest(rows: Rows, right: Rows, tested: Tested) -> str:
    """A sentence about an impossible outcome, or else about the one with the largest error."""
    off = [
        (key not in wanted, abs(row.get(key, 0) - wanted.get(key, 0)), at, key)
        for at, (row, wanted) in enumerate(zip(rows, right, strict=True))
        for key in {*row, *wanted}
    ]
    *_, at, (emitted, accepted) = max(off)
    share, wanted = (float(each[at].get((emitted, accepted), 0)) for each in (rows, right))
    what = f"row {at} emits {list(emitted)} with {accepted} accepted"
    if tested.blocks[at].single and emitted:
        verb = "emitted" if tested.view is first_token else "accepted" if accepted else "recovered"
        what = f"token {emitted[0]} is {verb}"
    if not wanted:
        return f"{what}, whose probability is 0"
    return f"{what} with probability {share:.4g} instead of {wanted:.4g}"
