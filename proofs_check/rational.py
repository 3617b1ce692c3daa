"""One verified position in exact rationals: the reference the exhaustive claims enumerate.

Written from the definition, token by token, and shares no code with `cactus_theory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise

Distribution = tuple[Fraction, ...]


def distributions(size: int, parts: int) -> Iterator[Distribution]:
    """All distributions on `size` tokens whose probabilities are multiples of 1/parts.

    Examples
    --------
    >>> len(list(distributions(3, 4)))
    15
    """
    for bars in combinations(range(parts + size - 1), size - 1):
        edges = (-1, *bars, parts + size - 1)
        pairs = pairwise(edges)
        yield tuple(Fraction(high - low - 1, parts) for low, high in pairs)


def candidate(target: Distribution, token: int, boosted: Fraction) -> Distribution:
    """`target` with `token` raised to `boosted` and all others lowered by one factor."""
    rest = 1 - target[token]
    shrink = (1 - boosted) / rest if rest else Fraction(1)
    return tuple(boosted if x == token else shrink * q for x, q in enumerate(target))


def emitted(
    draft: Distribution,
    target: Distribution,
    boosted: Sequence[Fraction],
    propose: Callable[..., Distribution] = candidate,
) -> Distribution:
    """Distribution of the emitted token: accepted with min(1, g/p), else recovered from [h - p]_+.

    Examples
    --------
    >>> half, quarter = Fraction(1, 2), Fraction(1, 4)
    >>> emitted((half, half), (quarter, 1 - quarter), (quarter, 1 - quarter))
    (Fraction(1, 4), Fraction(3, 4))
    """
    law = [min(p, g) for p, g in zip(draft, boosted, strict=True)]
    for token, (p, g) in enumerate(zip(draft, boosted, strict=True)):
        if p > g:
            h = propose(target, token, g)
            weights = [max(a - b, 0) for a, b in zip(h, draft, strict=True)]
            total = sum(weights)
            law = [a + (p - g) * w / total for a, w in zip(law, weights, strict=True)]
    return tuple(law)


def total_variation(p: Distribution, q: Distribution) -> Fraction:
    """TV(p, q) = sum [p - q]_+."""
    return sum((max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)), Fraction(0))


def overlap(p: Distribution, q: Distribution) -> Fraction:
    """sum min(p, q), the acceptance of plain speculative sampling."""
    return sum((min(a, b) for a, b in zip(p, q, strict=True)), Fraction(0))


def stretched(target: Distribution, share: Fraction) -> Distribution:
    """g = q + share (1 - q) for every token of positive probability: a boost in rationals."""
    return tuple(q + share * (1 - q) if q else q for q in target)
