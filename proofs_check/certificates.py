"""Certificates: written to a file, read back, and checked again without searching.

An interval proof is a box and a word: "0", "1", ... cut the current box in half along that axis,
"." is a part where the inequality's ball must be positive. A counterexample is rational data and
the predicate it must satisfy. Neither needs the prover.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from flint import ctx

from proofs_check.balls import PRECISION, Box, ball, halves
from proofs_check.claims import Run

INEQUALITIES: dict[str, Callable[..., Any]] = {}
WITNESSES: dict[str, Callable[..., bool]] = {}


def inequality(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of balls that a certificate may claim to be positive on a box."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        INEQUALITIES[name] = function
        return function

    return register


def witness(name: str) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register the predicate that the rational data of a counterexample must satisfy."""

    def register(predicate: Callable[..., bool]) -> Callable[..., bool]:
        WITNESSES[name] = predicate
        return predicate

    return register


def witness_record(name: str, **data: Any) -> dict[str, Any]:
    """The certificate of a counterexample: its predicate's name and exact data."""
    return {"type": "witness", "predicate": name, "data": {k: str(v) for k, v in data.items()}}


def recheck_boxes(function: Callable[..., Any], box: Box, word: str) -> bool:
    """Whether `word` cuts `box` into parts on each of which ``function > 0``."""
    letters = iter(word)

    def positive(part: Box) -> bool:
        letter = next(letters)
        if letter == ".":
            return bool(function(*(ball(*side) for side in part)) > 0)
        return all(positive(half) for half in halves(part, int(letter)))

    return positive(box) and next(letters, None) is None


def recheck(certificate: dict[str, Any]) -> bool:
    """Check one certificate anew: by its word, or by its rational data."""
    with ctx.workprec(PRECISION):
        if certificate["type"] == "witness":
            data = {name: Fraction(text) for name, text in certificate["data"].items()}
            return WITNESSES[certificate["predicate"]](**data)
        box = tuple((Fraction(low), Fraction(high)) for low, high in certificate["box"])
        return recheck_boxes(INEQUALITIES[certificate["inequality"]], box, certificate["word"])


def write(path: Path, runs: Iterable[Run]) -> int:
    """Write the certificates of all runs as JSON lines; return how many there are."""
    lines = [
        json.dumps({"claim": done.claim.name, **certificate})
        for done in runs
        for certificate in done.certificates
    ]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return len(lines)


def read(path: Path) -> list[dict[str, Any]]:
    """Read certificates written by `write`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
