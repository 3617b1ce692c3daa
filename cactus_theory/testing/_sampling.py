"""The statistical check: a G-test on counts with its false-alarm level and its power said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory.emitted import output_distribution
from cactus_theory.rules import Rule
from cactus_theory.testing._errors import ConformanceError
from cactus_theory.testing._gtest import demand_power, follows, samples_for, statistic
from cactus_theory.testing.catalogue import Position, looks_like, wrong_laws

Sampler = Callable[[Any, Any, int, int], Any]


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

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> def honest(draft, target, count, seed):
    ...     return np.random.default_rng(seed).multinomial(count, target)
    >>> p, q = [0.7, 0.2, 0.1], [0.2, 0.3, 0.5]
    >>> report = check_by_sampling(honest, SpeculativeSampling(), draft=p, target=q)
    >>> report.samples, report.power["the draft itself (everything accepted)"] > 0.999
    (100000, True)
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
    """Test counts of emitted tokens against `output_distribution`: G = 2 sum O log(O / E).

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
    power = demand_power([expected], wrong, samples, false_alarm)
    counts = _counts(sampler(position.draft, position.target, samples, seed), expected, samples)
    impossible = np.flatnonzero((expected == 0) & (counts > 0))
    found, threshold, degrees = statistic([counts], [expected], false_alarm)
    if impossible.size or found > threshold:
        looks = looks_like(
            counts / samples,
            position,
            samples=samples,
            fits=lambda law: follows([counts], [law], false_alarm),
        )
        why = (
            f"token {impossible[0]} of probability 0 was emitted {counts[impossible[0]]} times"
            if impossible.size
            else f"G = {found:.5g} > {threshold:.5g} at {degrees} degrees of freedom"
        )
        raise ConformanceError(
            f"{why}: {samples} tokens do not follow {rule!r} (false-alarm level {false_alarm:g}); "
            f"{looks}"
        )
    return SamplingReport(found, threshold, degrees, samples, false_alarm, power, near)


def samples_needed(
    rule: Rule, *, draft: Any, target: Any, false_alarm: float = 1e-6, smallest: float = 0.01
) -> int:
    """Samples with which `check_by_sampling` detects every wrong law it promises to.

    Parameters
    ----------
    rule : Rule
    draft, target : array_like, shape (V,)
    false_alarm, smallest : float
        As for `check_by_sampling`.

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
    return samples_for([expected], wrong, false_alarm)


def _alternatives(position: Position, smallest: float) -> tuple[np.ndarray, dict, tuple[str, ...]]:
    laws = {"draft": position.draft, "target": position.target}
    expected = output_distribution(position.rule, **laws)
    wrong = wrong_laws(position.rule, **laws)
    off = {name: abs(law - expected).sum() / 2 for name, law in wrong.items()}
    far = {name: [law] for name, law in wrong.items() if off[name] >= smallest}
    return expected, far, tuple(name for name in wrong if name not in far)


def _counts(returned: Any, expected: np.ndarray, samples: int) -> np.ndarray:
    counts = np.asarray(returned)
    if counts.shape != expected.shape:
        raise ConformanceError(f"counts of shape {counts.shape}, not {expected.shape}")
    if (counts < 0).any() or (counts != np.floor(counts)).any() or counts.sum() != samples:
        raise ConformanceError(f"these are not counts of {samples} tokens: {counts}")
    return counts.astype(np.int64)
