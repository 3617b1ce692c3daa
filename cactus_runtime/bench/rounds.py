"""Interleaved repetitions: every contender runs once per round, under the same conditions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import Progress


def interleave(
    contenders: Mapping[str, Callable[[int], Any]], *, rounds: int, description: str
) -> dict[str, list[tuple[float, Any]]]:
    """Seconds and result of each contender in each round, after one round that is not counted.

    Every contender is called with the number of the round. On Ctrl-C, the complete rounds are
    returned.

    Examples
    --------
    >>> runs = interleave({"none": lambda n: n}, rounds=2, description="nothing")
    >>> [result for seconds, result in runs["none"]]
    [0, 1]
    """
    runs: dict[str, list[tuple[float, Any]]] = {name: [] for name in contenders}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=(rounds + 1) * len(contenders))
        try:
            for number in range(-1, rounds):
                found = {}
                for name, run in contenders.items():
                    progress.update(task, description=f"{description}: {name}")
                    started = time.perf_counter()
                    result = run(max(number, 0))
                    found[name] = (time.perf_counter() - started, result)
                    progress.advance(task)
                if number >= 0:
                    for name, measured in found.items():
                        runs[name].append(measured)
        except KeyboardInterrupt:
            if not runs[next(iter(runs))]:
                raise
    return runs


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and largest.

    Examples
    --------
    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'min': 1.0, 'max': 3.0}
    """
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
