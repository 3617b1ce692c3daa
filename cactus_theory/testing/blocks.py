"""Checks of samplers that verify whole blocks, in ragged batches whose rows may have no drafts.

A **block verifier** takes its uniforms: ``verifier(tokens, draft, target, accept_uniforms,
recover_uniforms)``; a **block sampler** takes a seed: ``sampler(tokens, draft, target, seed)``. Row
i of a batch has k_i >= 0 drafted tokens: ``tokens[i]`` is a list of k_i ints, ``draft[i]`` an array
of shape (k_i, V), ``target[i]`` of shape (k_i + 1, V), ``accept_uniforms[i]`` has k_i numbers and
``recover_uniforms[i]`` is one. Both return ``(emitted, accepted)``: rows of tokens, as lists or as
an array padded at the end with -1, and the number of accepted tokens of each row, or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory.rules import Rule
from cactus_theory.testing import _block_rows as to_verify
from cactus_theory.testing._block_calls import BlockSampler, BlockVerifier
from cactus_theory.testing._block_calls import (
    specification_block_verifier as specification_block_verifier,
)
from cactus_theory.testing._block_names import (
    block_looks_like,
    distance,
    farthest,
    first_law,
    wrong_blocks,
)
from cactus_theory.testing._blocks import Block, BlockLaw, Outcome, law_of_block, tolerances
from cactus_theory.testing._blocks import block_law as block_law
from cactus_theory.testing._errors import ConformanceError
from cactus_theory.testing._gtest import demand_power, follows, statistic
from cactus_theory.testing._sampling import SamplingReport
from cactus_theory.testing.checks import position_tolerances

# Two, no and one drafted tokens. Thresholds of plain speculative sampling, and all laws that a last
# token is drawn from, are multiples of 1/8: on that grid it is enumerated exactly.
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
_MOST_ROWS = 1_000_000


@dataclass(frozen=True)
class BlockEnumeration:
    """What an enumeration of blocks found, for each row of the laws given.

    Attributes
    ----------
    laws, tolerances : tuple of dict of (tuple of int, int) to float
        Probability of each (emitted tokens, accepted tokens), and by which it may be off.
    reported : bool
        Whether the sampler told its numbers of accepted tokens.
    unresolved : tuple of str
        Wrong laws of the catalogue that this grid could not tell from the right ones here.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> rule = SpeculativeSampling()
    >>> found = check_blocks_by_enumeration(
    ...     specification_block_verifier(rule), rule, draft=[[]], target=[[[0.25, 0.75]]])
    >>> found.laws
    ({((1,), 0): 0.75, ((0,), 0): 0.25},)
    """

    laws: tuple[BlockLaw, ...]
    tolerances: tuple[BlockLaw, ...]
    reported: bool
    unresolved: tuple[str, ...]


def check_blocks_by_enumeration(
    sampler: BlockVerifier,
    rule: Rule,
    *,
    draft: Sequence[Any] | None = None,
    target: Sequence[Any] | None = None,
    cells: int = 8,
    rows: int = 64,
    rounding: float = 1e-6,
) -> BlockEnumeration:
    """Enumerate the joint law of blocks that a verifier emits, and compare it with the exact one.

    All drafted blocks, weighted by their probabilities, and the midpoints of a grid of c cells for
    every uniform are verified, shuffled into ragged batches. Given its drafts an outcome is a box
    of uniforms, product of the intervals in which each token passes or fails and of that of the
    last token; the grid measures it to what the errors of its sides compound to, and exactly where
    thresholds and probabilities are multiples of 1/c, as those of the laws taken if none are given
    are for plain speculative sampling. Besides, a row must not depend on the other rows.

    Parameters
    ----------
    sampler : callable (tokens, draft, target, accept_uniforms, recover_uniforms) -> pair
        (emitted, accepted) as the module says; given sum over rows of V^k c^(k+1) rows in all.
    rule : Rule
        What it is meant to follow.
    draft : sequence of arrays, shape (k_i, V)
        Laws that the tokens of each row are drafted from; k_i may be 0. Three rows with 2, 0 and 1
        drafts of 3 tokens if neither these nor the target's are given.
    target : sequence of arrays, shape (k_i + 1, V)
    cells : int
    rows : int
        Rows of a batch.
    rounding : float
        Error of a threshold in the sampler's arithmetic; the default allows float32.

    Returns
    -------
    BlockEnumeration

    Raises
    ------
    ConformanceError
        If a law is off, a row depends on others, or a result is no batch of blocks.
    ValueError
        If a law is not one, the shapes do not fit, `cells` < 2, `rows` < 1, or there are more than
        a million rows to verify.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> plain = specification_block_verifier(SpeculativeSampling())
    >>> check_blocks_by_enumeration(plain, SpeculativeSampling()).unresolved
    ()
    >>> def without_bonus(tokens, *rest):
    ...     emitted, accepted = plain(tokens, *rest)
    ...     return [block[: max(len(x), 1)] for block, x in zip(emitted, tokens)], None
    >>> check_blocks_by_enumeration(without_bonus, SpeculativeSampling())
    Traceback (most recent call last):
    ...
    cactus_theory.testing.ConformanceError: ... it matches no bonus token...
    """
    if cells < 2 or rows < 1:
        raise ValueError(f"cells must be at least 2 and rows at least 1, got {cells!r}, {rows!r}")
    blocks = _solved(rule, draft, target)
    size = to_verify.size_of_grid(blocks, cells)
    if size > _MOST_ROWS:
        raise ValueError(
            f"{size} rows to verify, more than {_MOST_ROWS}: take fewer cells or shorter blocks"
        )
    to_verify.demand_independent_rows(sampler, blocks, rows)
    points = to_verify.grid(blocks, cells)
    seen, reported = to_verify.verified(sampler, blocks, points, rows)
    laws = to_verify.tallied(points, seen, len(blocks))
    right = [law_of_block(block) for block in blocks]
    allowed = [tolerances(block, cells=cells, rounding=rounding) for block in blocks]
    if not _within(laws, right, allowed):
        alike = 1 / cells  # of laws, in total variation
        looks = block_looks_like(
            laws,
            blocks,
            reported=reported,
            samples=cells**2,
            fits=lambda wrong: _apart(laws, wrong) <= alike,
            first_right=lambda block, first: _first_within(block, first, cells, rounding),
            first_fits=lambda wrong, first: bool(abs(wrong - first).sum() / 2 <= alike),
        )
        raise ConformanceError(f"{farthest(laws, right)} under {rule!r}: {looks}")
    wrong = wrong_blocks(blocks, reported=reported)
    near = tuple(name for name, laws in wrong.items() if _within(laws, right, allowed))
    return BlockEnumeration(tuple(laws), tuple(allowed), reported, near)


def check_blocks_by_sampling(
    sampler: BlockSampler,
    rule: Rule,
    *,
    draft: Sequence[Any] | None = None,
    target: Sequence[Any] | None = None,
    samples: int = 5000,
    rows: int = 64,
    false_alarm: float = 1e-6,
    smallest: float = 0.01,
    seed: int = 0,
) -> SamplingReport:
    """Test counts of emitted blocks against their exact joint law, all rows in one G-test.

    Drafted tokens are drawn here, and the rows shuffled into ragged batches. The statistics of the
    rows, each over cells of expectation >= 10 and with Williams' correction, are added, as are
    their degrees of freedom and, for the power, their noncentralities 2n KL. An outcome of
    probability 0 must not occur.

    Parameters
    ----------
    sampler : callable (tokens, draft, target, seed) -> pair
        (emitted, accepted) as the module says; every call gets another seed.
    rule : Rule
        What it is meant to follow.
    draft, target : sequences of arrays, shapes (k_i, V) and (k_i + 1, V)
        As for `check_blocks_by_enumeration`.
    samples : int
        Of every row.
    rows : int
        Rows of a batch.
    false_alarm : float
    smallest : float
        Total variation, in one row at least, from which on a wrong law must be detected.
    seed : int

    Returns
    -------
    SamplingReport
        Its power is against the laws of the catalogue of blocks.

    Raises
    ------
    ConformanceError
        If the counts do not follow the law, or a result is no batch of blocks.
    ValueError
        If the power against the nearest distinguishable wrong law is below .999, with the number
        of samples it takes; if a law is not one, or the shapes do not fit.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> plain = specification_block_verifier(SpeculativeSampling())
    >>> def seeded(tokens, draft, target, seed):
    ...     rng = np.random.default_rng(seed)
    ...     accept = [rng.random(len(row)) for row in tokens]
    ...     return plain(tokens, draft, target, accept, rng.random(len(tokens)))
    >>> report = check_blocks_by_sampling(seeded, SpeculativeSampling())
    >>> report.statistic < report.threshold, min(report.power.values()) > 0.999
    (True, True)
    """
    if not 0 < false_alarm < 1 or samples < 1 or rows < 1:
        raise ValueError(f"got false_alarm={false_alarm!r}, samples={samples!r}, rows={rows!r}")
    blocks = _solved(rule, draft, target)
    rng = np.random.default_rng(seed)
    points = to_verify.drawn(blocks, samples, rng)
    seeds = iter(rng.integers(2**31, size=len(points) // rows + 1).tolist())
    seen, reported = to_verify.verified(
        lambda tokens, p, q, *_: sampler(tokens, p, q, next(seeds)), blocks, points, rows
    )
    counts = to_verify.tallied(points, seen, len(blocks))
    right = [law_of_block(block) for block in blocks]
    wrong = wrong_blocks(blocks, reported=reported)
    far = {name: laws for name, laws in wrong.items() if _apart(laws, right) >= smallest}
    cells = _listed(counts, right)

    def fits(laws: Sequence[BlockLaw]) -> bool:
        cells = _listed(counts, laws)
        return follows(_strata(counts, cells), _strata(laws, cells), false_alarm)

    def first_fits(law: np.ndarray, first: np.ndarray) -> bool:
        return follows([np.rint(first * samples)], [law], false_alarm)

    power = _power(right, far, samples, false_alarm)
    value, threshold, degrees = statistic(
        _strata(counts, cells), _strata(right, cells), false_alarm
    )
    if not fits(right):
        laws = [{outcome: n / samples for outcome, n in law.items()} for law in counts]
        looks = to_verify.in_step(points, seen, rows) or block_looks_like(
            laws,
            blocks,
            reported=reported,
            samples=samples,
            fits=fits,
            first_right=lambda block, first: first_fits(first_law(block), first),
            first_fits=first_fits,
        )
        raise ConformanceError(
            f"G = {value:.5g}, {threshold:.5g} allowed at {degrees} degrees of freedom; "
            f"{farthest(laws, right)} in {samples} samples under {rule!r} (false-alarm level "
            f"{false_alarm:g}): {looks}"
        )
    near = tuple(name for name in wrong if name not in far)
    return SamplingReport(value, threshold, degrees, samples, false_alarm, power, near)


def _solved(rule: Rule, draft: Sequence[Any] | None, target: Sequence[Any] | None) -> list[Block]:
    if draft is None or target is None:
        if draft is not target:
            raise ValueError("draft and target must be given both or neither")
        draft, target = _DRAFT, _TARGET
    if len(draft) != len(target) or not len(target):
        raise ValueError(
            "draft and target must have one array for each row and at least one row, got "
            f"{len(draft)} and {len(target)}"
        )
    blocks = [Block.of(rule, draft=p, target=q) for p, q in zip(draft, target, strict=True)]
    sizes = sorted({block.target.shape[1] for block in blocks})
    if len(sizes) > 1:
        raise ValueError(f"all rows must share one vocabulary, got sizes {sizes}")
    return blocks


def _listed(*laws: Sequence[BlockLaw]) -> list[list[Outcome]]:
    """All outcomes of some laws, for each row."""
    return [sorted(set().union(*row)) for row in zip(*laws, strict=True)]


def _strata(laws: Sequence[BlockLaw], cells: Sequence[Sequence[Outcome]]) -> list[np.ndarray]:
    """Probabilities or counts of the outcomes listed, for each row."""
    pairs = zip(laws, cells, strict=True)
    return [np.array([law.get(outcome, 0.0) for outcome in keys]) for law, keys in pairs]


def _power(
    right: Sequence[BlockLaw],
    wrong: Mapping[str, Sequence[BlockLaw]],
    samples: int,
    false_alarm: float,
) -> dict[str, float]:
    cells = _listed(right, *wrong.values())
    others = {name: _strata(laws, cells) for name, laws in wrong.items()}
    return demand_power(_strata(right, cells), others, samples, false_alarm)


def _first_within(block: Block, first: np.ndarray, cells: int, rounding: float) -> bool:
    slack, _ = position_tolerances(block.positions[0], cells, rounding)
    return bool((abs(first - first_law(block)) <= slack).all())


def _within(laws: Sequence[BlockLaw], right: Sequence[BlockLaw], allowed: Sequence[Any]) -> bool:
    """Whether no outcome is off by more than is allowed to it; an impossible one by nothing."""
    return all(
        abs(law.get(outcome, 0.0) - wanted.get(outcome, 0.0)) <= slack.get(outcome, 0.0)
        for law, wanted, slack in zip(laws, right, allowed, strict=True)
        for outcome in {*law, *wanted}
    )


def _apart(laws: Sequence[BlockLaw], others: Sequence[BlockLaw]) -> float:
    """The largest total variation of a row."""
    return max(map(distance, laws, others))
