"""What a claim and its steps are, the registry of claims, and how one is run.

Knows no mathematics: the claims themselves live in the modules named in `SUBJECTS`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["symbolic", "interval", "exhaustive", "evidence", "counterexample"]
Outcome = Literal["holds", "fails", "undecided"]
Verdict = Literal["proved", "supported", "open", "refuted", "failed", "undecided"]

KINDS = {
    "symbolic": "SymPy derives it for all stated values; no floating-point number decides",
    "interval": "ball arithmetic over every point of a box, by adaptive subdivision",
    "exhaustive": "every case of a finite set, one by one; rational numbers unless it says floats",
    "evidence": "a numeric sweep: it supports the statement and proves nothing",
    "counterexample": "exact data that show the statement to be false",
}
SUBJECTS = {
    "optimum": "The best candidate",
    "budget": "What the second-order rule spends",
    "overspend": "Where the second-order rule overspends",
    "couplings": "What any verification scheme can accept",
    "output_distribution": "The emitted distribution",
    "boosts": "Larger boosts",
    "misreadings": "What Theorem 3 does not say",
    "growth": "How far the emitted distribution can be: bounds",
    "worst_case": "How far the emitted distribution can be: exact values",
    "newton": "Newton's method for the exact rule",
    "newton_steps": "How many Newton steps are enough",
    "newton_rounding": "What a Newton step loses to rounding",
    "newton_code": "Newton's method in floating point",
    "limits": "Limits and edge cases",
    "clamp": "The best scheme for a divergence of the output",
    "drafts": "Several drafts for one position",
    "draft_sets": "Drafts without replacement, and trees",
    "sequence": "A whole text",
    "ledger_gap": "How far the ledger is above the truth",
    "block_verification": "Verifying a block as a whole",
    "texts": "What a text was drawn from",
    "baselines": "Other rules",
}


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes
    ----------
    outcome : {"holds", "fails", "undecided"}
    note : str
        One line on how, or where it fails.
    certificates : tuple of dict
        What a recheck needs to see it again.

    Examples
    --------
    >>> Finding("holds", "225 pairs").certificates
    ()
    """

    outcome: Outcome
    note: str = ""
    certificates: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Step:
    r"""One step of an argument: a sentence, its formula, and the check that verifies it.

    Attributes
    ----------
    says : str
        What the step establishes and why it matters, in plain sentences; Markdown.
    tex : str
        The formula, without delimiters; may be empty.
    check : callable returning a bool or a Finding
    kind : Kind
        How the check decides.
    assumes : str
        What this step takes for granted.
    uses : tuple of str
        Names of the claims that this step rests on.

    Examples
    --------
    >>> step = Step("Two and two make four.", "2 + 2 = 4", lambda: 2 + 2 == 4)
    >>> step.run()
    Finding(outcome='holds', note='', certificates=())
    """

    says: str
    tex: str
    check: Callable[[], bool | Finding]
    kind: Kind = "symbolic"
    assumes: str = ""
    uses: tuple[str, ...] = ()

    def run(self) -> Finding:
        """Run the check; one that raises leaves the step undecided."""
        try:
            found = self.check()
        except Exception as error:  # a check that breaks is a verdict, not the end of the table
            return Finding("undecided", f"error: {type(error).__name__}: {error}")
        return found if isinstance(found, Finding) else Finding("holds" if found else "fails")


@dataclass(frozen=True)
class Claim:
    """One statement and the ordered steps of its argument.

    Attributes
    ----------
    name, source : str
        Key of the claim; where the statement comes from ("ours" if it is not in the paper).
    statement, tex : str
        The statement in words, and in TeX.
    build : callable returning an iterable of Steps
        Its keyword arguments have the values of the true statement as defaults.
    expected : {"proved", "supported", "open", "refuted"}
        The verdict that a sound run gives; anything else makes the command fail.
    false : tuple of dict
        Arguments of `build` that turn the statement into a false one. The tests run every one of
        them and see a step fail.
    quick : bool
        Whether the claim belongs to the subset that ``--quick`` runs.

    Examples
    --------
    >>> item = load()["corollary-5"]
    >>> item.kind, item.expected, len(item.steps()) > 2
    ('symbolic', 'proved', True)
    """

    name: str
    source: str
    statement: str
    tex: str
    build: Callable[..., Iterator[Step]]
    expected: Verdict
    false: tuple[dict[str, Any], ...]
    quick: bool

    def steps(self, **variant: Any) -> tuple[Step, ...]:
        """The steps in order; with one of ``false``, those of a statement that is not true."""
        return tuple(self.build(**variant))

    @property
    def subject(self) -> str:
        """Name of the module that holds the claim."""
        return self.build.__module__.rpartition(".")[2]

    @property
    def uses(self) -> tuple[str, ...]:
        """Names of the claims that some step rests on, in order of use."""
        return tuple(dict.fromkeys(name for step in self.steps() for name in step.uses))

    @property
    def kind(self) -> Kind:
        """ "counterexample" if there is one, else the weakest kind among the steps."""
        kinds = {step.kind for step in self.steps()}
        order: tuple[Kind, ...] = (
            "counterexample",
            "evidence",
            "interval",
            "exhaustive",
            "symbolic",
        )
        return next(kind for kind in order if kind in kinds)


@dataclass(frozen=True)
class Run:
    """A claim that was run.

    Attributes
    ----------
    claim : Claim
    verdict : str
        What the results say: "proved", "supported", "open", "refuted", "failed" or "undecided".
    results : tuple of (Step, Finding)
    seconds : float

    Examples
    --------
    >>> done = run(load()["tangent-of-log"])
    >>> done.verdict, len(done.results), done.as_expected
    ('proved', 3, True)
    """

    claim: Claim
    verdict: Verdict
    results: tuple[tuple[Step, Finding], ...]
    seconds: float

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the one that the claim states."""
        return self.verdict == self.claim.expected

    @property
    def note(self) -> str:
        """The first step that does not hold, or what the steps counted."""
        for number, (step, found) in enumerate(self.results, start=1):
            if found.outcome != "holds":
                return f"step {number} {found.outcome}: {found.note or step.says}"
        return "; ".join(dict.fromkeys(found.note for _, found in self.results if found.note))

    @property
    def certificates(self) -> tuple[dict[str, Any], ...]:
        """All that a recheck needs, in order."""
        return tuple(part for _, found in self.results for part in found.certificates)


_REGISTRY: dict[str, Claim] = {}
Builder = Callable[..., Iterator[Step]]


def claim(
    *,
    name: str,
    source: str,
    statement: str,
    tex: str,
    false: tuple[dict[str, Any], ...],
    expected: Verdict = "proved",
    quick: bool = True,
) -> Callable[[Builder], Builder]:
    """Register the decorated generator of steps under `name`."""

    def register(build: Builder) -> Builder:
        if name in _REGISTRY and _REGISTRY[name].build.__module__ != build.__module__:
            raise ValueError(f"two claims are named {name!r}")
        _REGISTRY[name] = Claim(name, source, statement, tex, build, expected, false, quick)
        return build

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
    >>> load()["corollary-5"].source
    'Corollary 5'
    """
    for subject in SUBJECTS:
        importlib.import_module(f"proofs_check.{subject}")
    return dict(_REGISTRY)


def run(claim: Claim, **variant: Any) -> Run:
    """Run all steps of a claim and derive its verdict.

    Parameters
    ----------
    claim : Claim
    **variant
        Arguments of ``claim.build``: with one of ``claim.false`` some step must not hold.

    Returns
    -------
    Run
        With the claim, a verdict, what every step found, and seconds. "proved" needs every step to
        hold, and none of them to be evidence.

    Examples
    --------
    >>> run(load()["corollary-5"]).verdict
    'proved'
    """
    start = time.perf_counter()
    results = tuple((step, step.run()) for step in claim.steps(**variant))
    return Run(claim, _verdict(claim, results), results, time.perf_counter() - start)


def _verdict(claim: Claim, results: tuple[tuple[Step, Finding], ...]) -> Verdict:
    outcomes = {found.outcome for _, found in results}
    kinds = {step.kind for step, _ in results}
    if "fails" in outcomes:
        return "failed"
    if "undecided" in outcomes or not results:
        return "undecided"
    if "counterexample" in kinds:
        return "refuted"
    if "evidence" in kinds:
        return "open" if claim.expected == "open" else "supported"
    return "proved"
