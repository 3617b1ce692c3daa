"""The trusted base of the interval claims: balls, and a prover that subdivides a box.

A ball is a real interval with directed rounding (python-flint's ``arb``). A box is a tuple of
pairs of rationals. `prove_positive` splits a box until the function's ball is positive on every
part; the splits it took, as a word, are the certificate that `certificates.recheck` replays.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from flint import arb, ctx, fmpq

from proofs_check.claims import Finding

PRECISION = 96
Box = tuple[tuple[Fraction, Fraction], ...]

ARB = SimpleNamespace(
    log=lambda x: arb(x).log(),
    log1p=lambda x: arb(x).log1p(),
    sqrt=lambda x: arb(x).sqrt(),
    clip=lambda x, lo, hi: arb(x).max(arb(lo)).min(arb(hi)),
)


def ball(value: Any, upper: Any = None) -> arb:
    """The ball of a rational, or one that holds every real from `value` to `upper`.

    Examples
    --------
    >>> third = ball(Fraction(1, 3), Fraction(1, 2))
    >>> bool(third > ball(Fraction(1, 4))), bool(third > ball(Fraction(2, 5)))
    (True, False)
    """
    value = Fraction(value)
    low = arb(fmpq(value.numerator, value.denominator))
    return low if upper is None else low.union(ball(upper))


def halves(box: Box, axis: int) -> tuple[Box, Box]:
    """The box cut in two at the middle of one axis."""
    low, high = box[axis]
    middle = (low + high) / 2
    parts = (low, middle), (middle, high)
    return tuple((*box[:axis], part, *box[axis + 1 :]) for part in parts)  # type: ignore[return-value]


def widest(box: Box, root: Box) -> int:
    """The axis that has shrunk least, measured by the box where the proof began."""
    return max(range(len(box)), key=lambda i: (box[i][1] - box[i][0]) / (root[i][1] - root[i][0]))


def prove_positive(
    function: Callable[..., arb], box: Box, *, name: str, limit: int = 20_000
) -> Finding:
    """Decide whether ``function > 0`` on the whole box, by adaptive subdivision.

    "holds": positive on every part. "fails": some midpoint where it is certainly <= 0, returned
    as the witness. "undecided": more than `limit` parts would be needed.

    Examples
    --------
    >>> unit = ((Fraction(0), Fraction(1)),)
    >>> prove_positive(lambda x: x * x - x + ball("0.3"), unit, name="a").outcome
    'holds'
    >>> prove_positive(lambda x: x * x - x + ball("0.2"), unit, name="b").outcome
    'fails'
    """
    word: list[str] = []
    waiting = [box]
    with ctx.workprec(PRECISION):
        while waiting:
            part = waiting.pop()
            if function(*(ball(*side) for side in part)) > 0:
                word.append(".")
                continue
            middle = [(low + high) / 2 for low, high in part]
            if function(*map(ball, middle)) <= 0:
                where = ", ".join(map(str, middle))
                return Finding("fails", f"not positive at ({where})")
            if len(word) + len(waiting) >= limit:
                return Finding("undecided", f"{name}: more than {limit} parts, near {part}")
            axis = widest(part, box)
            word.append(str(axis))
            waiting.extend(reversed(halves(part, axis)))
    certificate = {
        "type": "boxes",
        "inequality": name,
        "box": [[str(low), str(high)] for low, high in box],
        "word": "".join(word),
    }
    return Finding("holds", f"{word.count('.')} boxes", (certificate,))
