"""``python -m proofs_check``: run the claims, print a table, exit 1 on any unexpected verdict."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from proofs_check import claims
from proofs_check.page import page

MISSING = "The proofs need SymPy and python-flint: pip install 'cactus-speculative[proofs]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        registry = claims.load()
    except ImportError as missing:
        print(f"{MISSING}\n({missing})", file=sys.stderr)
        return 2
    unknown = [name for name in (options.only or []) if name not in registry]
    if unknown or (options.explain and options.explain not in registry):
        name = unknown[0] if unknown else options.explain
        print(f"No claim is named {name!r}. Names: {', '.join(registry)}", file=sys.stderr)
        return 2
    if options.page:
        print(page(registry.values()), end="")
        return 0
    if options.recheck:
        return _recheck(options.recheck)
    if options.explain:
        return _explain(registry[options.explain])
    chosen = [
        item
        for item in registry.values()
        if (not options.only or item.name in options.only) and (item.quick or not options.quick)
    ]
    runs = _run_all(chosen, quiet=options.json)
    if options.json:
        print(json.dumps([_record(done) for done in runs], indent=1))
    if options.certificates:
        from proofs_check.certificates import write

        written = write(options.certificates, runs)
        print(f"{written} certificates in {options.certificates}", file=sys.stderr)
    surprises = [done for done in runs if not done.as_expected]
    if not options.json:
        _summary(runs, surprises)
    return 1 if surprises else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proofs_check", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="run this claim")
    parser.add_argument("--quick", action="store_true", help="leave out the slow claims")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    parser.add_argument("--explain", metavar="NAME", help="say all about one claim, and run it")
    parser.add_argument("--certificates", type=Path, metavar="FILE", help="write certificates")
    parser.add_argument("--recheck", type=Path, metavar="FILE", help="check certificates anew")
    parser.add_argument("--page", action="store_true", help="print the page of the docs")
    return parser


def _recheck(path: Path) -> int:
    from proofs_check.certificates import read, recheck

    bad = 0
    for number, certificate in enumerate(read(path), start=1):
        good = recheck(certificate)
        bad += not good
        print(f"{number:>4} {certificate['claim']:<30} {'good' if good else 'BAD'}")
    return 1 if bad else 0


def _run_all(chosen: Iterable[claims.Claim], *, quiet: bool) -> list[claims.Run]:
    runs = []
    live = not quiet and sys.stdout.isatty()
    if not quiet:
        print(f"{'name':<30} {'kind':<14} {'verdict':<10} {'seconds':>7}  statement")
    for item in chosen:
        if live:
            print(f"\r{item.name:<30} running", end="", flush=True)
        done = claims.run(item)
        runs.append(done)
        if not quiet:
            start = "\r\x1b[K" if live else ""
            mark = "" if done.as_expected else f"  <-- {item.expected} expected"
            print(
                f"{start}{item.name:<30} {item.kind:<14} {done.verdict:<10} {done.seconds:>7.2f}"
                f"  {item.statement}{mark}",
                flush=True,
            )
            if not done.as_expected:
                print(f"{'':<30} {done.note}")
    return runs


def _summary(runs: Sequence[claims.Run], surprises: Sequence[claims.Run]) -> None:
    counts = {}
    for done in runs:
        counts[done.verdict] = counts.get(done.verdict, 0) + 1
    total = sum(done.seconds for done in runs)
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    print(f"\n{len(runs)} claims in {total:.1f} s: {verdicts}")
    print(f"{len(surprises)} unexpected" if surprises else "every verdict as expected")


def _record(done: claims.Run) -> dict[str, Any]:
    item = done.claim
    return {
        "name": item.name,
        "source": item.source,
        "statement": item.statement,
        "kind": item.kind,
        "verdict": done.verdict,
        "expected": item.expected,
        "note": done.note,
        "seconds": round(done.seconds, 3),
        "steps": [
            {"says": step.says, "kind": step.kind, "outcome": found.outcome}
            for step, found in done.results
        ],
    }


def _explain(item: claims.Claim) -> int:
    done = claims.run(item)
    size = sum(len(json.dumps(part)) for part in done.certificates)
    rows = [
        ("claim", f"{item.name} ({item.source})"),
        ("statement", item.statement),
        ("TeX", item.tex),
    ]
    for number, (step, found) in enumerate(done.results, start=1):
        rows += [(f"step {number}", f"{_plain(step.says)} [{step.kind}: {found.outcome}]")]
        rows += [("", text) for text in (step.tex, found.note) if text]
        rows += [("assumes", _plain(step.assumes))] if step.assumes else []
    rows += [
        *[("uses", name) for name in item.uses],
        ("verdict", f"{done.verdict} ({item.expected} expected), {done.seconds:.2f} s"),
        ("certificates", f"{len(done.certificates)}, {size} bytes"),
        ("code to trust", _trusted(item)),
        ("fails when", "; ".join(map(str, item.false))),
    ]
    for label, text in rows:
        print(f"{label:>14}  {text}")
    return 0 if done.as_expected else 1


def _plain(text: str) -> str:
    """A sentence for the terminal: its inline mathematics without the marks of TeX."""
    text = re.sub(r"\\(l|g)e\b", lambda sign: {"l": "<=", "g": ">="}[sign[1]], text)
    return re.sub(r"[$\\]", "", text)


def _trusted(item: claims.Claim) -> str:
    shared = {"symbolic": ["symbolic"], "interval": ["balls"], "counterexample": ["balls"]}
    kinds = dict.fromkeys(step.kind for step in item.steps())
    modules = [*(module for kind in kinds for module in shared.get(kind, ())), item.subject]
    sizes = (
        len((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8").splitlines())
        for module in modules
    )
    return "; ".join(f"{m}.py, {n} lines" for m, n in zip(modules, sizes, strict=True))


if __name__ == "__main__":
    sys.exit(main())
