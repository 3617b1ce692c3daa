"""The sum over all ways in which a block decoder can emit a given text, in any numbers.

Knows the probabilities of a text's tokens, and no rule. Only + * and minima touch the
probabilities, so arrays of Fractions give the exact sum, and logarithms one that never underflows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np


class Numbers(NamedTuple):
    """How sums and products of probabilities are represented."""

    of: Callable[[Any], Any]
    plus: Callable[[Any, Any], Any]
    times: Callable[[Any, Any], Any]


def _log(x: Any) -> Any:
    with np.errstate(divide="ignore"):  # log 0 = -inf is intended
        return np.log(x)


EXACT = Numbers(of=lambda x: x, plus=operator.add, times=operator.mul)
LOGS = Numbers(of=_log, plus=np.logaddexp, times=operator.add)


def prefix_totals(
    *,
    draft: Any,
    target: Any,
    accepted: Any,
    emitted: Any,
    drafts: np.ndarray,
    block: bool,
    numbers: Numbers,
) -> Iterator[Any]:
    """Probability of the first 1, 2, ..., T tokens, by recursion over the phases of a block.

    A(i, j) is the chance of the first i tokens together with: token i is the j-th of its block. A
    drafted token is either accepted, and the block continues, or recovered, and the next block
    begins. After all drafts of the block a token is drawn from the target, and the next block
    begins.

    Parameters
    ----------
    draft, target, accepted, emitted : array, shape (..., T)
        p(x), q(x), m(x) and out(x) of the text's own tokens.
    drafts : int array, shape (..., T)
        Drafted tokens of a block that begins at each position.
    block : bool
        Whether each block is verified as a whole. `accepted` is not read then. Given that j tokens
        were kept, the next is accepted and is x with the chance min(out(x), p(x) / s_j), where
        s_j = min(s_(j-1) out(x_j) / p(x_j), 1), s_0 = 1.
    numbers : Numbers

    Yields
    ------
    array, shape (...)
        In the representation of `numbers`.
    """
    of, plus, times = numbers
    longest = int(drafts.max(initial=0))
    phases, survivals = [of(np.ones_like(target[..., 0]))], [np.ones_like(target[..., 0])]
    for i in range(target.shape[-1]):
        p, q, out = draft[..., i], target[..., i], emitted[..., i]
        ended, should_draft_more, survive = of(0 * q), [], [1 + 0 * q]
        for j, (weight, survival) in enumerate(zip(phases, survivals, strict=True)):
            kept = np.minimum(out, _ratio(p, survival)) if block else accepted[..., i]
            drafted = j < drafts[..., i - j]
            should_draft_more.append(times(weight, of(np.where(drafted, kept, 0))))
            ended = plus(ended, times(weight, of(np.where(drafted, out - kept, q))))
            survive.append(np.minimum(survival * _ratio(out, p), 1))
        phases, survivals = [ended, *should_draft_more][: longest + 1], survive[: longest + 1]
        yield reduce(plus, phases)


def _ratio(a: Any, b: Any) -> Any:
    """a / b. Where b = 0 the value does not matter, because its weight is 0 too."""
    with np.errstate(over="ignore"):  # only minima of it are used
        return a / np.where(b == 0, 1, b)
