"""The G-test on counts in one or more strata: statistic, power, and the samples it takes.

A stratum is a distribution over its own cells, from which `samples` draws are counted. The strata
are independent, so their statistics add. Knows nothing of rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import chdtri, chndtr, xlogy

WANTED_POWER = 0.999

_SMALLEST_CELL = 10  # expected counts; below this, the chi-square approximation of G is unreliable
_MOST_SAMPLES = 2**40

Strata = Sequence[np.ndarray]


def merged(expected: np.ndarray, samples: int) -> list[np.ndarray]:
    """Cells of outcomes of positive probability, each expected at least ten times if possible.

    Examples
    --------
    >>> [cell.tolist() for cell in merged(np.array([0.9, 0.0, 0.04, 0.06]), 100)]
    [[2, 3], [0]]
    """
    order = np.argsort(expected, kind="stable")
    order = order[expected[order] > 0]
    cells: list[list[int]] = [[]]
    weight = 0.0
    for token in order:
        if weight * samples >= _SMALLEST_CELL:
            cells.append([])
            weight = 0.0
        cells[-1].append(int(token))
        weight += expected[token]
    if weight * samples < _SMALLEST_CELL and len(cells) > 1:
        rest = cells.pop()
        cells[-1] += rest
    return [np.array(cell) for cell in cells]


def power(expected: Strata, given: Strata, samples: int, false_alarm: float) -> float:
    """Chance of rejecting `given` where `expected` should hold, by the noncentral chi-square.

    The noncentrality is 2n KL(given || expected) over merged cells; one outcome of expected
    probability 0 is enough to reject.

    Examples
    --------
    >>> fair, loaded = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    >>> [round(power([fair], [loaded], n, 1e-6), 3) for n in (100, 1000, 10_000)]
    [0.002, 0.927, 1.0]
    """
    missed, degrees, distance = 1.0, 0, 0.0
    for wanted, law in zip(expected, given, strict=True):
        outside = law[wanted == 0].sum()
        missed *= (1 - min(outside, 1.0)) ** samples
        cells = merged(wanted, samples)
        if len(cells) > 1 and outside < 1:
            whole = np.array([wanted[cell].sum() for cell in cells])
            part = np.array([law[cell].sum() for cell in cells]) / (1 - outside)
            distance += max((xlogy(part, part) - xlogy(part, whole)).sum(), 0.0)
            degrees += len(cells) - 1
    if degrees:
        threshold = chdtri(degrees, false_alarm)
        # the noncentral chi-square is not evaluated far beyond its threshold, where the power is 1
        missed *= chndtr(threshold, degrees, min(2 * samples * distance, 20 * threshold + 1000))
    return float(1 - missed)


def statistic(
    counts: Sequence[np.ndarray], expected: Strata, false_alarm: float
) -> tuple[float, float, int]:
    """G with Williams' correction, the value it must stay below, and the degrees of freedom.

    Examples
    --------
    >>> found, threshold, degrees = statistic([np.array([60, 40])], [np.array([0.5, 0.5])], 1e-6)
    >>> round(found, 2), round(threshold, 2), degrees
    (4.01, 23.93, 1)
    """
    value, degrees = 0.0, 0
    for seen, law in zip(counts, expected, strict=True):
        total = seen.sum()
        cells = merged(law, int(total))
        if len(cells) < 2:
            continue
        wanted = total * np.array([law[cell].sum() for cell in cells])
        found = np.array([seen[cell].sum() for cell in cells])
        williams = 1 + ((total / wanted).sum() - 1) / (6 * total * (len(cells) - 1))
        value += max(float(2 * xlogy(found, found / wanted).sum() / williams), 0.0)
        degrees += len(cells) - 1
    return value, float(chdtri(degrees, false_alarm)) if degrees else 0.0, degrees


def follows(counts: Sequence[np.ndarray], laws: Strata, false_alarm: float) -> bool:
    """Whether no outcome is impossible under the distributions, and G does not reject them."""
    if any(seen[law == 0].any() for seen, law in zip(counts, laws, strict=True)):
        return False
    value, threshold, _ = statistic(counts, laws, false_alarm)
    return value <= threshold


def samples_for(expected: Strata, wrong: Mapping[str, Strata], false_alarm: float) -> int:
    """Samples that detect every wrong distribution with power .999, to two digits and rounded up.

    Raises
    ------
    ValueError
        If more than 2**40 would be needed.

    Examples
    --------
    >>> fair, loaded = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    >>> samples_for([fair], {"loaded": [loaded]}, 1e-6)
    1600
    """

    def enough(samples: int) -> bool:
        return all(
            power(expected, law, samples, false_alarm) >= WANTED_POWER for law in wrong.values()
        )

    high = 1
    while not enough(high):
        high *= 2
        if high > _MOST_SAMPLES:
            raise ValueError("it would take more than 2**40 samples")
    low = high // 2
    while high - low > max(low // 200, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    unit = 10 ** max(len(str(high)) - 2, 0)
    while not enough(-(-high // unit) * unit):  # because of merging the power is not quite monotone
        high += unit
    return -(-high // unit) * unit


def demand_power(
    expected: Strata, wrong: Mapping[str, Strata], samples: int, false_alarm: float
) -> dict[str, float]:
    """Power against each wrong distribution.

    Raises
    ------
    ValueError
        If the least of them is below .999; the message says how many samples are needed.

    Examples
    --------
    >>> fair, loaded = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    >>> demand_power([fair], {"loaded": [loaded]}, 1000, 1e-6)
    Traceback (most recent call last):
    ...
    ValueError: 1000 samples detect "loaded" with power 0.927 only; it takes 1600 for 0.999
    """
    powers = {name: power(expected, law, samples, false_alarm) for name, law in wrong.items()}
    weakest = min(powers, key=lambda name: powers[name], default=None)
    if weakest is not None and powers[weakest] < WANTED_POWER:
        needed = samples_for(expected, wrong, false_alarm)
        raise ValueError(
            f'{samples} samples detect "{weakest}" with power {powers[weakest]:.3g} only; it takes '
            f"{needed} for {WANTED_POWER}"
        )
    return powers
