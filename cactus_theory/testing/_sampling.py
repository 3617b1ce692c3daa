"""The statistical check: a G-test on counts with its false-alarm level and its power said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chdtri, chndtr, xlogy

from cactus_theory.laws import output_law
from cactus_theory.rules import Rule
from cactus_theory.testing._errors import ConformanceError
from cactus_theory.testing.catalogue import Position, looks_like, wrong_laws

Sampler = Callable[[Any, Any, int, int], Any]

_SMALLEST_CELL = 10  # expected counts; below, the chi-square approximation of G is not trusted
_WANTED_POWER = 0.999
_MOST_SAMPLES = 2**40


@dataclass(frozen=True)
class SamplingReport:
    """What a test on counts found, and what it would have found.

    Attributes
    ----------
    statistic, threshold : float
        G with Williams' correction, and the value it had to stay below.
    degrees : int
        Cells after merging, less one.
    samples : int
    false_alarm : float
        Chance of rejecting a right sampler, by the chi-square approximation.
    power : dict of str to float
        Chance of rejecting each wrong law of the catalogue, by the noncentral one.
    indistinguishable : tuple of str
        Wrong laws nearer than `smallest` in total variation, of which nothing is promised.
    """

    statistic: float
    threshold: float
    degrees: int
    samples: int
    false_alarm: float
    power: dict[str, float]
    indistinguishable: tuple[str, ...]


def check_by_sampling(
    sampler: Sampler,
    rule: Rule,
    *,
    draft: Any,
    target: Any,
    samples: int = 100_000,
    false_alarm: float = 1e-6,
    smallest: float = 0.01,
    seed: int = 0,
) -> SamplingReport:
    """Test counts of emitted tokens against `output_law`: G = 2 sum O log(O / E).

    Tokens are merged, from the least expected, into cells of expectation >= 10; G over Williams'
    factor is compared with the chi-square quantile. A token of probability 0 must not occur. The
    power against a law r is that of a noncentral chi-square of noncentrality 2n KL(r || out).

    Parameters
    ----------
    sampler : callable (draft, target, count, seed) -> counts, shape (V,)
        Drafts `count` tokens from `draft` by itself and verifies each.
    rule : Rule
        What it is meant to follow.
    draft, target : array_like, shape (V,)
    samples : int
    false_alarm : float
    smallest : float
        Total variation from which on a wrong law must be detected.
    seed : int
        Handed to the sampler.

    Returns
    -------
    SamplingReport

    Raises
    ------
    ConformanceError
        If the counts do not follow the law, or are no counts.
    ValueError
        If the power against the nearest distinguishable wrong law is below .999, with the number
        of samples it takes; or if a law is not one.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> def honest(draft, target, count, seed):
    ...     return np.random.default_rng(seed).multinomial(count, target)
    >>> p, q = [0.7, 0.2, 0.1], [0.2, 0.3, 0.5]
    >>> report = check_by_sampling(honest, SpeculativeSampling(), draft=p, target=q)
    >>> report.statistic < report.threshold, min(report.power.values()) > 0.999
    (True, True)
    >>> check_by_sampling(honest, SpeculativeSampling(), draft=p, target=q, samples=200)
    Traceback (most recent call last):
    ...
    ValueError: 200 samples detect "..." with power ... only; it takes ...
    """
    if not 0 < false_alarm < 1 or samples < 1:
        raise ValueError(f"got false_alarm={false_alarm!r}, samples={samples!r}")
    position = Position.of(rule, draft=draft, target=target)
    expected, wrong, near = _alternatives(position, smallest)
    power = {name: _power(expected, law, samples, false_alarm) for name, law in wrong.items()}
    weakest = min(power, key=lambda name: power[name], default=None)
    if weakest is not None and power[weakest] < _WANTED_POWER:
        needed = _needed(expected, wrong, false_alarm)
        raise ValueError(
            f'{samples} samples detect "{weakest}" with power {power[weakest]:.3g} only; it takes '
            f"{needed} of these laws for {_WANTED_POWER}"
        )
    counts = _counts(sampler(position.draft, position.target, samples, seed), expected, samples)
    impossible = np.flatnonzero((expected == 0) & (counts > 0))
    cells = _merged(expected, samples)
    statistic, threshold, degrees = _statistic(counts, expected, cells, false_alarm)
    if impossible.size or statistic > threshold:
        looks = looks_like(
            counts / samples,
            position,
            samples=samples,
            fits=lambda law: _follows(counts, law, false_alarm),
        )
        why = (
            f"token {impossible[0]} of probability 0 was emitted {counts[impossible[0]]} times"
            if impossible.size
            else f"G = {statistic:.5g} > {threshold:.5g} at {degrees} degrees of freedom"
        )
        raise ConformanceError(
            f"{why}: {samples} tokens do not follow {rule!r} (false-alarm level {false_alarm:g}); "
            f"{looks}"
        )
    return SamplingReport(statistic, threshold, degrees, samples, false_alarm, power, near)


def samples_needed(
    rule: Rule, *, draft: Any, target: Any, false_alarm: float = 1e-6, smallest: float = 0.01
) -> int:
    """Samples with which `check_by_sampling` detects every wrong law it promises to.

    Parameters are those of `check_by_sampling`.

    Returns
    -------
    int
        To two digits, rounded up; 1 if there is nothing to detect.

    Raises
    ------
    ValueError
        If a law is not one, or it would take more than 2**40.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> p, q = [0.7, 0.2, 0.1], [0.2, 0.3, 0.5]
    >>> 1_000 < samples_needed(SpeculativeSampling(), draft=p, target=q) < 100_000
    True
    """
    position = Position.of(rule, draft=draft, target=target)
    expected, wrong, _ = _alternatives(position, smallest)
    return _needed(expected, wrong, false_alarm)


def _alternatives(position: Position, smallest: float) -> tuple[np.ndarray, dict, tuple[str, ...]]:
    laws = {"draft": position.draft, "target": position.target}
    expected = output_law(position.rule, **laws)
    wrong = wrong_laws(position.rule, **laws)
    off = {name: abs(law - expected).sum() / 2 for name, law in wrong.items()}
    far = {name: law for name, law in wrong.items() if off[name] >= smallest}
    return expected, far, tuple(name for name in wrong if name not in far)


def _needed(expected: np.ndarray, wrong: dict, false_alarm: float) -> int:
    def enough(samples: int) -> bool:
        return all(
            _power(expected, law, samples, false_alarm) >= _WANTED_POWER for law in wrong.values()
        )

    high = 1
    while not enough(high):
        high *= 2
        if high > _MOST_SAMPLES:
            raise ValueError("it would take more than 2**40 samples of these laws")
    low = high // 2
    while high - low > max(low // 200, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    unit = 10 ** max(len(str(high)) - 2, 0)
    while not enough(-(-high // unit) * unit):  # merging makes the power not quite monotone
        high += unit
    return -(-high // unit) * unit


def _merged(expected: np.ndarray, samples: int) -> list[np.ndarray]:
    """Cells of tokens of positive probability, each expected at least ten times if possible."""
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


def _power(expected: np.ndarray, law: np.ndarray, samples: int, false_alarm: float) -> float:
    cells = _merged(expected, samples)
    outside = law[expected == 0].sum()
    missed = (1 - min(outside, 1.0)) ** samples
    if len(cells) > 1 and outside < 1:
        wanted = np.array([expected[cell].sum() for cell in cells])
        given = np.array([law[cell].sum() for cell in cells]) / (1 - outside)
        distance = (xlogy(given, given) - xlogy(given, wanted)).sum()
        degrees = len(cells) - 1
        threshold = chdtri(degrees, false_alarm)
        # the noncentral law is not evaluated far beyond its threshold, where it is 1
        noncentrality = min(2 * samples * max(distance, 0.0), 20 * threshold + 1000)
        missed *= chndtr(threshold, degrees, noncentrality)
    return float(1 - missed) if len(cells) > 1 or outside else 0.0


def _counts(returned: Any, expected: np.ndarray, samples: int) -> np.ndarray:
    counts = np.asarray(returned)
    if counts.shape != expected.shape:
        raise ConformanceError(f"counts of shape {counts.shape}, not {expected.shape}")
    if (counts < 0).any() or (counts != np.floor(counts)).any() or counts.sum() != samples:
        raise ConformanceError(f"these are not counts of {samples} tokens: {counts}")
    return counts.astype(np.int64)


def _statistic(
    counts: np.ndarray, expected: np.ndarray, cells: list[np.ndarray], false_alarm: float
) -> tuple[float, float, int]:
    degrees = len(cells) - 1
    if degrees == 0:
        return 0.0, 0.0, 0
    wanted = counts.sum() * np.array([expected[cell].sum() for cell in cells])
    seen = np.array([counts[cell].sum() for cell in cells])
    total = counts.sum()
    statistic = 2 * (xlogy(seen, seen / wanted)).sum()
    williams = 1 + ((total / wanted).sum() - 1) / (6 * total * degrees)
    return max(float(statistic / williams), 0.0), float(chdtri(degrees, false_alarm)), degrees


def _follows(counts: np.ndarray, law: np.ndarray, false_alarm: float) -> bool:
    if counts[law == 0].any():
        return False
    cells = _merged(law, int(counts.sum()))
    statistic, threshold, _ = _statistic(counts, law, cells, false_alarm)
    return statistic <= threshold
