"""The directive ``rules``: a table of rules, made of the rules' own `facts`.

Knows how a formula in plain letters is set, and nothing of any one rule.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

import cactus_theory.rules
from cactus_theory import CandidateRule, Rule, SharedRecoveryRule

KINDS = {"candidates": CandidateRule, "shared": SharedRecoveryRule}
COLUMNS = {
    "accepts": "keeps n with probability",
    "recovers": "else draws from",
    "emits": "emits",
    "guarantees": "guarantee",
    "reads": "reads of q to keep n",
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


def rules() -> list[type[Rule]]:
    """Every rule that can be made, in the order of the source."""
    found = [value for value in vars(cactus_theory.rules).values() if inspect.isclass(value)]
    return [rule for rule in found if issubclass(rule, Rule) and not inspect.isabstract(rule)]


def typeset(formula: str) -> str:
    """The formula with the signs of mathematics for plain letters."""
    for plain, sign in SIGNS.items():
        formula = re.sub(plain, sign, formula)
    return formula


class RulesTable(SphinxDirective):
    """``rules`` with the argument `candidates` or `shared`."""

    required_arguments = 1
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        kind = directives.choice(self.arguments[0], tuple(KINDS))
        return [_table(rule for rule in rules() if issubclass(rule, KINDS[kind]))]


def _table(chosen: Iterable[type[Rule]]) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in range(1 + len(COLUMNS))))
    group["cols"] = len(group)
    head = [nodes.Text(title) for title in ("rule", *COLUMNS.values())]
    rows = [[_link(rule), *_facts(rule)] for rule in chosen]
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *(_row(row) for row in rows))
    return nodes.table("", group, classes=["rules"])


def _row(cells: Iterable[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))


def _facts(rule: type[Rule]) -> list[nodes.Node]:
    return [nodes.Text(typeset(getattr(rule.facts, column))) for column in COLUMNS]


def _link(rule: type[Rule]) -> nodes.Node:
    code = nodes.literal("", rule.__name__)
    target = f"cactus_theory.{rule.__name__}"
    return pending_xref("", code, refdomain="py", reftype="class", reftarget=target)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("rules", RulesTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
