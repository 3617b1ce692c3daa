"""What a claim is, the registry of claims, and how one is run.

Knows no mathematics: the claims themselves live in the modules named in `SUBJECTS`.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["symbolic", "interval", "exhaustive", "evidence", "counterexample"]
Outcome = Literal["holds", "fails", "undecided"]

KINDS = {
    "symbolic": "SymPy derives it for all stated values; no floating-point number decides",
    "interval": "ball arithmetic over every point of a box, by adaptive subdivision",
    "exhaustive": "every case of a finite set, in exact rationals",
    "evidence": "a numeric sweep: it supports the statement and proves nothing",
    "counterexample": "the statement is false, and exact rational data show it",
}
VERDICTS = {
    "symbolic": "proved",
    "interval": "proved",
    "exhaustive": "proved",
    "evidence": "supported",
    "counterexample": "refuted",
}
SUBJECTS = (
    "optimum",
    "budget",
    "overspend",
    "couplings",
    "output_distribution",
    "boosts",
    "misreadings",
    "growth",
    "worst_case",
    "newton",
    "newton_steps",
    "newton_code",
    "limits",
    "clamp",
    "sequence",
    "baselines",
)


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes
    ----------
    outcome : {"holds", "fails", "undecided"}
        Of the statement.
    note : str
        One line on how.
    certificates : tuple of dict
        What a recheck needs to see it again.

    Examples
    --------
    >>> conclude("both", ("first", True), ("second", False))
    Finding(outcome='fails', note='fails at: second', certificates=())
    """

    outcome: Outcome
    note: str
    certificates: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Claim:
    """One statement, what it assumes, and the function that decides it.

    Attributes
    ----------
    name, theorem : str
        Key of the claim; where it comes from ("ours" if it is not in the paper).
    statement, tex : str
        The statement in words, and in TeX.
    kind : Kind
    expected : str
        The verdict that a sound run gives; anything else makes the command fail.
    assumes, depends : tuple of str
        What is taken for granted, in words; names of the claims that are used.
    false : tuple of dict
        Arguments of `check` that turn the statement into a false one. The tests run every one of
        them and see the check fail.
    quick : bool
        Whether the claim belongs to the subset that runs on every commit.
    check : callable returning a Finding

    Examples
    --------
    >>> item = load()["corollary-5"]
    >>> item.kind, item.expected
    ('symbolic', 'proved')
    """

    name: str
    theorem: str
    statement: str
    tex: str
    kind: Kind
    expected: str
    assumes: tuple[str, ...]
    depends: tuple[str, ...]
    false: tuple[dict[str, Any], ...]
    quick: bool
    check: Callable[..., Finding]

    @property
    def check_lines(self) -> int:
        """Lines of the check itself, the part to read besides the shared helpers."""
        lines = inspect.getsource(self.check).splitlines()
        return len(lines) - next(i for i, line in enumerate(lines) if line.startswith("def "))


@dataclass(frozen=True)
class Run:
    """A claim that was run: verdict, what was found, and how long it took."""

    claim: Claim
    verdict: str
    finding: Finding
    seconds: float

    @property
    def as_expected(self) -> bool:
        return self.verdict == self.claim.expected


_REGISTRY: dict[str, Claim] = {}


def claim(
    *,
    name: str,
    theorem: str,
    statement: str,
    tex: str,
    kind: Kind,
    false: tuple[dict[str, Any], ...],
    assumes: tuple[str, ...] = (),
    depends: tuple[str, ...] = (),
    expected: str | None = None,
    quick: bool = True,
) -> Callable[[Callable[..., Finding]], Callable[..., Finding]]:
    """Register the decorated check under `name`; the verdict expected defaults to the kind's."""

    def register(check: Callable[..., Finding]) -> Callable[..., Finding]:
        if name in _REGISTRY and _REGISTRY[name].check.__module__ != check.__module__:
            raise ValueError(f"two claims are named {name!r}")
        verdict = expected or VERDICTS[kind]
        _REGISTRY[name] = Claim(
            name, theorem, statement, tex, kind, verdict, assumes, depends, false, quick, check
        )
        return check

    return register


def load() -> dict[str, Claim]:
    """Import every subject and return all claims by name, in the order of the subjects.

    Returns
    -------
    dict of str to Claim

    Raises
    ------
    ImportError
        If SymPy or python-flint is not installed.

    Examples
    --------
    >>> load()["corollary-5"].theorem
    'Corollary 5'
    """
    for subject in SUBJECTS:
        importlib.import_module(f"proofs_check.{subject}")
    return dict(_REGISTRY)


def run(claim: Claim, **variant: Any) -> Run:
    """Run one check and turn what it found into a verdict.

    Parameters
    ----------
    claim : Claim
    **variant
        Arguments of the check: with one of ``claim.false`` the verdict must be another one.

    Returns
    -------
    Run
        With the claim, a verdict, what was found, and seconds.

    Examples
    --------
    >>> run(load()["corollary-5"]).verdict
    'proved'
    """
    start = time.perf_counter()
    try:
        finding = claim.check(**variant)
    except Exception as error:  # a check that breaks is a verdict, not the end of the table
        finding = Finding("undecided", f"error: {type(error).__name__}: {error}")
    seconds = time.perf_counter() - start
    good = claim.expected if claim.kind == "evidence" else VERDICTS[claim.kind]
    verdict = {"holds": good, "fails": "false", "undecided": "undecided"}[finding.outcome]
    return Run(claim, verdict, finding, seconds)


def conclude(note: str, *steps: tuple[str, bool], certificates: Any = ()) -> Finding:
    """A finding from named steps, all of which must hold; a failing one is named in the note."""
    failed = [step for step, holds in steps if not holds]
    if failed:
        return Finding("fails", "fails at: " + "; ".join(failed), tuple(certificates))
    return Finding("holds", f"{note} ({len(steps)} steps)", tuple(certificates))
