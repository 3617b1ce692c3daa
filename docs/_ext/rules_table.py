"""The directive ``rules``: a table of the rules in the registry, made from their `facts`.

Knows how to typeset a formula in plain letters, and nothing about any one rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from cactus_theory import CandidateRule, SharedRecoveryRule
from cactus_theory.rules.registry import RULES, Entry

KINDS: dict[str, Callable[[type], bool]] = {
    "candidates": lambda kind: issubclass(kind, CandidateRule),
    "shared": lambda kind: issubclass(kind, SharedRecoveryRule),
    "others": lambda kind: not issubclass(kind, CandidateRule | SharedRecoveryRule),
}
COLUMNS = {
    "accepts": "keeps n with probability",
    "recovers": "else draws from",
    "emits": "emits",
    "guarantees": "guarantee",
    "reads": "part of q that decides",
    "source": "source",
}

# Plain letters and what is set for them, in this order.
SIGNS = {
    r"\bsqrt\b": "√",
    r"\bdelta\b": "δ",
    r"\bepsilon\b": "ε",
    r"\balpha\b": "\N{GREEK SMALL LETTER ALPHA}",
    r"\be\^δ": "e\u1d5f",
    r"\bchi2\b": "χ²",
    r"\]_\+": "]₊",
    r"\|\|": "‖",
    "<=": "≤",
    ">=": "≥",
    r"(?<=[\w)\]]) - (?=[\w(\[])": " \N{MINUS SIGN} ",
    r"(?<=\w)-(?=\w\))": "\N{MINUS SIGN}",
}


def typeset(formula: str) -> str:
    """The formula with the signs of mathematics for plain letters."""
    for plain, sign in SIGNS.items():
        formula = re.sub(plain, sign, formula)
    return formula


class RulesTable(SphinxDirective):
    """``rules`` with the argument `candidates`, `shared` or `others`."""

    required_arguments = 1
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        belongs = KINDS[directives.choice(self.arguments[0], tuple(KINDS))]
        return [_table((name, rule) for name, rule in RULES.items() if belongs(rule.kind))]


def _table(chosen: Iterable[tuple[str, Entry]]) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in range(2 + len(COLUMNS))))
    group["cols"] = len(group)
    head = [nodes.Text(title) for title in ("rule", "name", *COLUMNS.values())]
    rows = [[_link(rule), nodes.literal("", name), *_facts(rule)] for name, rule in chosen]
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *(_row(row) for row in rows))
    return nodes.table("", group, classes=["rules"])


def _row(cells: Iterable[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))


def _facts(rule: Entry) -> list[nodes.Node]:
    return [nodes.Text(typeset(getattr(rule.facts, column))) for column in COLUMNS]


def _link(rule: Entry) -> nodes.Node:
    name = rule.kind.__name__
    code = nodes.literal("", name)
    target = f"cactus_theory.{name}"
    return pending_xref("", code, refdomain="py", reftype="class", reftarget=target)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("rules", RulesTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
