"""Escapes formulas in docstrings: `|p - q|` is not a substitution, `x_` is not a link.

Knows reStructuredText's inline markup. Text between backticks and doctests are not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

_MARKUP = re.compile(r"\||(?<=[\w\])])_(?!\w)")
_CODE = re.compile(r"(``.+?``|`[^`]+`)")


def plain(lines: Iterable[str]) -> list[str]:
    """The docstring as reStructuredText, with its formulas literal."""
    done: list[str] = []
    doctest = formula = sections = False
    for line in lines:
        after_blank = not done or not done[-1]
        doctest = bool(line) and (doctest or line.lstrip().startswith(">>>"))
        sections = sections or line.startswith("---")
        if line.startswith("    ") and after_blank and not formula and not sections:
            formula = True
            done += ["::", ""]
        elif line and not line.startswith("    "):
            formula = False
        done.append(line if doctest or formula else _escaped(line))
    return done


def _escaped(line: str) -> str:
    spans = _CODE.split(line)
    spans[::2] = [_MARKUP.sub(r"\\\g<0>", span) for span in spans[::2]]
    for i in range(2, len(spans), 2):
        if spans[i][:1] == "(":
            spans[i] = "\\ " + spans[i]
    return "".join(spans)


def process(app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    if what == "data":  # which has only the docstring of its type
        lines[:] = [f"A {type(item).__name__} of {len(item)} `{type(item[0]).__name__}`.", ""]
    lines[:] = plain(lines)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("autodoc-process-docstring", process, priority=400)  # before numpydoc's
    return {"parallel_read_safe": True, "parallel_write_safe": True}
