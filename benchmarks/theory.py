"""Ratios of running times, measured in one run on the machine at hand: no timing is a test.

    python -m benchmarks.theory [--quick]

Each result is one line of JSON on stdout; progress goes to stderr. Ctrl-C leaves the lines done.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import scipy
from scipy.optimize import brentq
from scipy.optimize.elementwise import find_root

from benchmarks.scalar_optimum import scalar_optimum, textbook_residual
from cactus_runtime.cli.commands import run_command
from cactus_theory.divergences import binary_kl_of_gain
from cactus_theory.emitted import output_distribution
from cactus_theory.optimum import exact_optimum
from cactus_theory.rules import Cactus, CactusExact, Clamp, Rule, SpeculativeSampling

DELTA = 1.0
VOCABULARY = 151_936


@dataclass(frozen=True)
class Side:
    """One side of a comparison: what is timed, and how many elements one call handles."""

    label: str
    size: int
    call: Callable[[], Any]


@dataclass(frozen=True)
class Comparison:
    """A ratio of two running times, `slow` to `fast`, and the bound the project wants for it."""

    name: str
    slow: Side
    fast: Side
    wanted: str


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes: does everything run?")
def theory(quick: bool) -> int:
    """Compare running times of cactus_theory, one line of JSON for each ratio.

    CPU time is measured, the two sides in turn, after one call of each that is not counted.

    \b
    Fields of a line:
      name      of the comparison
      ratio     time of `slow` divided by time of `fast`, per element where they
                have unlike numbers of elements: the median of the repetitions
      spread    the smallest and the largest ratio of a repetition
      slow      what is in the numerator, and `size`, its number of elements
      fast      what is in the denominator, likewise
      wanted    the bound the project set itself for this ratio; nothing checks it
      seconds   median time of one call of either
      versions  of python, numpy and scipy
    """
    try:
        for comparison in comparisons(quick=quick):
            print(comparison.name, "...", file=sys.stderr, flush=True)
            line = measure(comparison, repetitions=3 if quick else 11)
            if quick:
                line["wanted"] = "none, at small sizes"
            print(json.dumps(line, allow_nan=False), flush=True)
    except KeyboardInterrupt:
        print("interrupted; the lines above are complete", file=sys.stderr)
        return 130
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, or 130 if interrupted."""
    return run_command(theory, arguments, name="python -m benchmarks.theory")


def comparisons(*, quick: bool = False) -> Iterator[Comparison]:
    """All comparisons, each with its inputs made only when it is asked for.

    Parameters
    ----------
    quick : bool
        Small sizes, which show that everything runs and say nothing of speed.

    Yields
    ------
    Comparison

    Examples
    --------
    >>> next(comparisons(quick=True)).name
    'optimum-to-brentq'
    """
    yield from _optima(many=2_000 if quick else 1_000_000, few=10 if quick else 300)
    yield from _laws(1_000 if quick else VOCABULARY)


def measure(comparison: Comparison, *, repetitions: int) -> dict[str, Any]:
    """Time both sides in turn and return the record that becomes one line.

    Parameters
    ----------
    comparison : Comparison
    repetitions : int
        How often each side is timed.

    Returns
    -------
    dict
        Its fields are described by ``--help``.

    Examples
    --------
    >>> side = Side("nothing", 1, lambda: sum(range(1000)))
    >>> record = measure(Comparison("same", side, side, "1"), repetitions=3)
    >>> record["spread"][0] <= record["ratio"] <= record["spread"][1]
    True
    """
    slow, fast = comparison.slow, comparison.fast
    times = [(_seconds(slow), _seconds(fast)) for _ in range(repetitions + 1)][1:]
    scale = 1.0 if slow.size == fast.size else fast.size / slow.size
    ratios = [scale * a / max(b, 1e-9) for a, b in times]
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    return {
        "name": comparison.name,
        "ratio": _rounded(statistics.median(ratios)),
        "spread": [_rounded(min(ratios)), _rounded(max(ratios))],
        "slow": {"what": slow.label, "size": slow.size},
        "fast": {"what": fast.label, "size": fast.size},
        "wanted": comparison.wanted,
        "seconds": [_rounded(median) for median in medians],
        "repetitions": repetitions,
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    }


def _optima(*, many: int, few: int) -> Iterator[Comparison]:
    """Exact KL optima of probabilities spread evenly over their logarithm and over [0, 1]."""
    rng = np.random.default_rng(1)
    q = np.concatenate([10 ** rng.uniform(-8, 0, many // 2), rng.random(many - many // 2)])
    q = rng.permutation(q)
    some = q[:few].tolist()
    solved = Side("exact_optimum, a bracketed root", many, lambda: exact_optimum(q, DELTA))
    own = Side(
        "loop of brentq on cactus_theory.divergences.binary_kl_of_gain",
        few,
        lambda: [_by_own_function(x) for x in some if x < math.exp(-DELTA)],
    )
    yield Comparison("optimum-to-brentq", own, solved, ">= 20")
    careful = Side(
        "loop of brentq, same equation and unknowns with Python's math",
        few,
        lambda: [scalar_optimum(x, DELTA) for x in some],
    )
    yield Comparison("optimum-to-brentq-in-math", careful, solved, "none")
    unsaturated = q[-np.log(q) > DELTA]
    start = (unsaturated, np.ones_like(unsaturated))
    size = unsaturated.size
    plain = Side(
        "scipy.optimize.elementwise.find_root, textbook KL",
        size,
        lambda: find_root(textbook_residual, start, args=(unsaturated, DELTA)),
    )
    same = Side("exact_optimum of the same", size, lambda: exact_optimum(unsaturated, DELTA))
    yield Comparison("find-root-to-optimum", same, plain, "<= 1.3")
    rule = CactusExact(DELTA)
    boost = Side(f"CactusExact({DELTA}).boost, Newton steps", many, lambda: rule.boost(q))
    yield Comparison("optimum-to-newton", solved, boost, ">= 10")


def _by_own_function(q: float) -> Any:
    def residual(gain: float) -> float:
        return binary_kl_of_gain(gain, q, xp=np) - DELTA

    return brentq(residual, 0.0, 1 - q)


def _laws(size: int) -> Iterator[Comparison]:
    """Emitted laws of a draft that is its target with noise of deviation 1 on the logits."""
    rng = np.random.default_rng(2)
    logits = 3 * rng.standard_normal(size)
    target = _softmax(logits)
    draft = _softmax(logits + rng.standard_normal(size))
    unsorted = rng.random(size)
    argsort = Side("numpy.argsort", size, lambda: np.argsort(unsorted))
    rules: list[tuple[str, Rule, str]] = [
        ("speculative-sampling", SpeculativeSampling(), "none"),
        ("cactus", Cactus(0.03), "<= 3"),
        ("cactus-exact", CactusExact(0.03), "<= 3"),
        ("clamp", Clamp(0.05), "<= 6"),
    ]
    for name, rule, wanted in rules:

        def call(rule: Rule = rule) -> np.ndarray:
            return output_distribution(rule, draft=draft, target=target)

        yield Comparison(
            f"{name}-law-to-argsort",
            Side(f"output_distribution of {rule}", size, call),
            argsort,
            wanted,
        )


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _seconds(side: Side) -> float:
    start = time.process_time()
    side.call()
    return time.process_time() - start


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")


if __name__ == "__main__":
    sys.exit(main())
