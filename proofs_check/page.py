r"""The page of the documentation that states every claim and its steps, generated from them.

The Markdown is read by GitHub and by MyST with its ``dollarmath`` extension: mathematics stands in
``$...$`` and ``$$`` blocks. No check is run to make the page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from proofs_check.claims import KINDS, SUBJECTS, Claim, Step, load

OPENING = r"""# Claims

Each statement below is verified by `python -m proofs_check`, step by step: every numbered step has
a check of its own, and a claim has the verdict that its steps give it. This page is made from the
same data, by `python -m proofs_check --page`.

The letters are those of the paper. A small *draft* model proposes a token $n$ drawn from its
distribution $p$; a large *target* model has distribution $q$. A rule allows the token more
probability than the target does: the *boosted* probability $g \ge q(n)$. The *candidate* $h$ is
the target's distribution with $n$ raised to $g$ and all other tokens lowered by one factor
$c = (1-g)/(1-q(n))$. The budget $\delta$ limits the divergence of one candidate from the target.
The token is accepted with probability $\min(1, g/p(n))$; after a rejection another one is drawn,
in proportion to $[h - p]_+$. The *emitted distribution* $\mathrm{out}$ is that of the token which
comes out in the end. It is none of the candidates, and $\delta$ does not bound its divergence.
$S = \{x : p(x) > q(x)\}$ are the tokens that the draft overrates, $V$ is the number of tokens,
$\mathrm{TV}$ is the total variation distance, and divergences are in nats. Where only one token
matters, $q$, $p$ and $g$ are its probabilities.

An inequality between rational functions is checked on its coefficients: the variables are written
through parameters that are $\ge 0$, given beside the formula, and after expansion no coefficient
is negative. A step is decided in one of these ways; *symbolic* where nothing else is said.
"""


def page(claims: Iterable[Claim] | None = None) -> str:
    """Markdown with every claim, its statement, verdict and steps.

    Parameters
    ----------
    claims : iterable of Claim, optional
        All by default.

    Returns
    -------
    str

    Examples
    --------
    >>> page().splitlines()[0]
    '# Claims'
    """
    claims = list(load().values() if claims is None else claims)
    parts = [OPENING, "\n"]
    parts += [f"* **{kind}**: {meaning}.\n" for kind, meaning in KINDS.items()]
    parts.append(f"\n{summary(claims)}\n")
    for subject, title in SUBJECTS.items():
        chosen = [item for item in claims if item.subject == subject]
        if chosen:
            parts.append(f"\n## {title}\n")
            parts += [_entry(item) for item in chosen]
    return "".join(parts)


def summary(claims: Iterable[Claim]) -> str:
    """One sentence that counts the claims by expected verdict.

    Examples
    --------
    >>> summary(item for item in load().values() if item.name == "corollary-5")
    'Claims: 1, of which 1 proved.'
    """
    counts = Counter(item.expected for item in claims)
    parts = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    return f"Claims: {counts.total()}, of which {parts}."


def _entry(item: Claim) -> str:
    lines = [
        f"\n### {item.name}\n",
        f"**{item.expected.capitalize()}** ({item.source}). {_sentence(item.statement)}\n",
        f"$$\n{item.tex}\n$$\n",
    ]
    lines += [_step(number, step) for number, step in enumerate(item.steps(), start=1)]
    return "\n".join(lines)


def _step(number: int, step: Step) -> str:
    kind = "" if step.kind == "symbolic" else f" *({step.kind})*"
    text = f"**Step {number}.**{kind} {step.says}"
    if step.assumes:
        text += f" *Assumes:* {step.assumes}."
    if step.uses:
        text += f" *Uses:* {', '.join(f'[{name}](#{name})' for name in step.uses)}."
    return text + (f"\n\n$$\n{step.tex}\n$$\n" if step.tex else "\n")


def _sentence(statement: str) -> str:
    """The statement with a capital and a full stop; a formula at its start stays as it is."""
    if re.match(r"a |[a-z]\w", statement) and not statement.startswith("log"):
        statement = statement[0].upper() + statement[1:]
    return statement.replace("]_+", "]\\_+") + "."  # not the start of an emphasis
