"""The statistical checks: a G-test on counts with a stated false-alarm level and power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory.rules import Rule
from cactus_theory.testing import _rows
from cactus_theory.testing._calls import ConformanceError, Sampler
from cactus_theory.testing._enumeration import blocks_of, farthest
from cactus_theory.testing._gtest import demand_power, follows, samples_for, statistic
from cactus_theory.testing._naming import (
    Rows,
    Tested,
    as_distribution,
    farthest_apart,
    looks_like,
    one_token,
)
from cactus_theory.testing._outcomes import View, listed, seen, strata, tokens_only


@dataclass(frozen=True)
class SamplingReport:
    """The result of a test on counts, and what it could have detected.

    Attributes
    ----------
    statistic, threshold : float
        G with Williams' correction, and the value it had to stay below.
    degrees : int
        Cells after merging, minus one for each row.
    samples : int
        Samples per row.
    false_alarm : float
        Chance of rejecting a correct sampler, by the chi-square approximation.
    power : dict of str to float
        Chance of rejecting each mistake of the catalogue, by the noncentral chi-square.
    indistinguishable : tuple of str
        Mistakes closer than `smallest` in total variation, which the test may miss.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> p, q = [0.7, 0.2, 0.1], [0.2, 0.3, 0.5]
    >>> counts = np.random.default_rng(0).multinomial(100_000, q)
    >>> report = check_counts(counts, SpeculativeSampling(), draft=p, target=q)
    >>> report.samples, report.power["everything accepted (the draft itself)"] > 0.999
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
    draft: Any = None,
    target: Any = None,
    samples: int = 10_000,
    rows: int = 64,
    false_alarm: float = 1e-6,
    smallest: float = 0.01,
    seed: int = 0,
) -> SamplingReport:
    """Test counts of emitted blocks against their exact joint distribution: G = 2 sum O log(O / E).

    Drafted tokens are drawn here, and the rows shuffled into ragged batches. Outcomes are merged,
    from the least expected, into cells of expectation >= 10; G over Williams' factor is compared
    with the chi-square quantile. The statistics of the rows are added, as are their degrees of
    freedom and, for the power, their noncentralities 2n KL. An outcome of probability 0 must not
    occur.

    Parameters
    ----------
    sampler : callable (tokens, draft, target, seed) -> pair
        (emitted, accepted) as for `check_by_enumeration`; every call gets another seed.
        `as_sampler` makes one from a verifier that takes uniforms.
    rule : Rule
        The rule it should follow.
    draft, target : sequences of arrays, shapes (k_i, V) and (k_i + 1, V); or both of shape (V,)
        As for `check_by_enumeration`.
    samples : int
        Samples per row.
    rows : int
        Rows per batch.
    false_alarm : float
    smallest : float
        Mistakes of at least this total variation, in one row or more, must be detected.
    seed : int

    Returns
    -------
    SamplingReport
        With the power against the catalogue's mistakes in positions and blocks.

    Raises
    ------
    ConformanceError
        If the counts do not follow the distribution, or a result is not a batch of blocks.
    ValueError
        If the power against the closest distinguishable mistake is below .999 (the message says how
        many samples are needed), an argument is not a distribution, or the shapes do not fit.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> from cactus_theory.testing import as_sampler, specification_verifier
    >>> plain = SpeculativeSampling()
    >>> report = check_by_sampling(as_sampler(specification_verifier(plain)), plain)
    >>> report.statistic < report.threshold, min(report.power.values()) > 0.999
    (True, True)
    """
    _check_options(samples, false_alarm)
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows!r}")
    blocks = [block.in_floats() for block in blocks_of(rule, draft, target)]
    rng = np.random.default_rng(seed)
    points = _rows.drawn(blocks, samples, rng)
    tested = Tested(blocks)
    power = _power(tested, samples, false_alarm, smallest)
    seeds = iter(rng.integers(2**31, size=len(points) // rows + 1).tolist())
    found, reported = _rows.verified(
        lambda tokens, p, q, *_: sampler(tokens, p, q, next(seeds)), blocks, points, rows
    )
    if not reported:
        tested = Tested(blocks, view=tokens_only)
        power = _power(tested, samples, false_alarm, smallest)
    counts = _rows.counted(points, found, blocks)
    in_step = _rows.in_step(points, found, rows)
    return _judged(counts, tested, samples, false_alarm, power, in_step)


def check_counts(
    counts: Any,
    rule: Rule,
    *,
    draft: Any,
    target: Any,
    false_alarm: float = 1e-6,
    smallest: float = 0.01,
) -> SamplingReport:
    """Test counts of emitted tokens against `output_distribution`.

    This is the G-test of `check_by_sampling` on the emitted token of one position. It works for
    samplers that draft their own tokens, and also finds mistakes in drafting.

    Parameters
    ----------
    counts : array_like of int, shape (V,)
        How often each token was emitted.
    rule : Rule
        The rule the sampler should follow.
    draft, target : array_like, shape (V,)
    false_alarm : float
    smallest : float
        Mistakes of at least this total variation must be detected.

    Returns
    -------
    SamplingReport
        With the power against the catalogue's mistakes in drafting and positions.

    Raises
    ------
    ConformanceError
        If the counts do not follow the distribution, or are not counts.
    ValueError
        If the power against the closest distinguishable mistake is below .999 (the message says how
        many samples are needed; `samples_needed` computes it beforehand), or an argument is not a
        distribution.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> p, q, rng = [0.7, 0.2, 0.1], [0.2, 0.3, 0.5], np.random.default_rng(0)
    >>> report = check_counts(rng.multinomial(100_000, q), SpeculativeSampling(), draft=p, target=q)
    >>> report.statistic < report.threshold, min(report.power.values()) > 0.999
    (True, True)
    >>> check_counts(rng.multinomial(200, q), SpeculativeSampling(), draft=p, target=q)
    Traceback (most recent call last):
    ...
    ValueError: 200 samples detect "..." with power ... only; it takes ...
    """
    tested = one_token(rule, draft, target)
    found, size = np.asarray(counts), tested.blocks[0].size
    if found.shape != (size,):
        raise ConformanceError(f"counts of shape {found.shape}, not {(size,)}")
    if (found < 0).any() or (found != np.floor(found)).any() or not found.any():
        raise ConformanceError(f"these are not counts of emitted tokens: {found}")
    samples = int(found.sum())
    _check_options(samples, false_alarm)
    power = _power(tested, samples, false_alarm, smallest)
    return _judged([as_distribution(found.astype(np.int64))], tested, samples, false_alarm, power)


def samples_needed(
    rule: Rule,
    *,
    draft: Any = None,
    target: Any = None,
    false_alarm: float = 1e-6,
    smallest: float = 0.01,
) -> int:
    """Number of samples with which a check by counts detects every mistake that it should.

    Parameters
    ----------
    rule : Rule
    draft, target : array_like, both of shape (V,); or as for `check_by_sampling`
        For shape (V,) the result is for `check_counts`, otherwise it is per row of
        `check_by_sampling`.
    false_alarm, smallest : float

    Returns
    -------
    int
        Rounded up to two digits; 1 if there is nothing to detect.

    Raises
    ------
    ValueError
        If an argument is not a distribution, or more than 2**40 would be needed.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> p, q = [0.7, 0.2, 0.1], [0.2, 0.3, 0.5]
    >>> 1_000 < samples_needed(SpeculativeSampling(), draft=p, target=q) < 100_000
    True
    """
    blocks = [block.in_floats() for block in blocks_of(rule, draft, target)]
    tested = one_token(rule, draft, target) if blocks[0].single else Tested(blocks)
    _check_options(1, false_alarm)
    expected, wrong, _ = _alternatives(tested, smallest)
    return samples_for(expected, wrong, false_alarm)


def _check_options(samples: int, false_alarm: float) -> None:
    if not 0 < false_alarm < 1 or samples < 1:
        raise ValueError(
            f"false_alarm must lie in (0, 1) and samples be at least 1, got {false_alarm!r} and "
            f"{samples!r}"
        )


def _alternatives(
    tested: Tested, smallest: float
) -> tuple[list[np.ndarray], dict[str, list[np.ndarray]], tuple[str, ...]]:
    """The expected distributions, the mistakes to detect, and those too close to it."""
    right, wrong = tested.right(), tested.wrong()
    far = {name: rows for name, rows in wrong.items() if farthest_apart(rows, right) >= smallest}
    cells = listed(right, *far.values())
    others = {name: strata(rows, cells) for name, rows in far.items()}
    return strata(right, cells), others, tuple(name for name in wrong if name not in far)


def _power(
    tested: Tested, samples: int, false_alarm: float, smallest: float
) -> tuple[dict[str, float], tuple[str, ...]]:
    expected, wrong, near = _alternatives(tested, smallest)
    return demand_power(expected, wrong, samples, false_alarm), near


def _judged(
    counts: Rows,
    tested: Tested,
    samples: int,
    false_alarm: float,
    power: tuple[dict[str, float], tuple[str, ...]],
    in_step: str = "",
) -> SamplingReport:
    """The G-test of counts of what is observed of `tested`."""
    right, rule = tested.right(), tested.blocks[0].rule

    def fits(rows: Rows, others: Rows) -> bool:
        cells = listed(rows, others)
        return follows(strata(rows, cells), strata(others, cells), false_alarm)

    def as_expected(at: int, view: View, rows: Rows) -> bool:
        return fits(rows, [seen(view, right[at])])

    cells = listed(counts, right)
    value, threshold, degrees = statistic(strata(counts, cells), strata(right, cells), false_alarm)
    if fits(counts, right):
        return SamplingReport(value, threshold, degrees, samples, false_alarm, *power)
    looks = in_step or looks_like(counts, tested, samples=samples, fits=fits, right=as_expected)
    shares = [{key: n / samples for key, n in row.items()} for row in counts]
    raise ConformanceError(
        f"G = {value:.5g}, {threshold:.5g} allowed at {degrees} degrees of freedom; "
        f"{farthest(shares, right, tested)} in {samples} samples under {rule!r} (false-alarm level "
        f"{false_alarm:g}): {looks}"
    )
