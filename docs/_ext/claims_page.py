"""Puts every claim into the page of claims, as `proofs_check.page` writes it."""

from __future__ import annotations

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.typing import ExtensionMetadata

from proofs_check import load
from proofs_check.page import page

PLACE = "<!-- claims -->"


def put_claims(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace the comment `PLACE` of the page by the claims, without their title."""
    if name == "claims":
        if PLACE not in source[0]:
            raise ExtensionError(f"{name}.md has no line {PLACE}")
        _, _, text = page(load().values()).partition("\n")
        source[0] = source[0].replace(PLACE, text)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("source-read", put_claims)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
