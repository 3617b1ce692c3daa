"""Files to write: what is wrong with one is told before the work, not after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class Output(click.Path):
    """A file to write, in a folder that exists.

    Examples
    --------
    >>> Output().convert("no/folder/page.html", None, None)
    Traceback (most recent call last):
        ...
    click.exceptions.BadParameter: there is no folder 'no/folder'
    """

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, if a file can be written there."""
        path = Path(str(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"there is no folder {str(path.parent)!r}", param, ctx)
        return path


class Picture(Output):
    """A picture to write, in a format that is drawn.

    Examples
    --------
    >>> Picture().convert("curves.txt", None, None)
    Traceback (most recent call last):
        ...
    click.exceptions.BadParameter: a picture ends in .png, .svg or .pdf, got 'curves.txt'
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, if its suffix is that of a format."""
        path = super().convert(value, param, ctx)
        if path.suffix.lower() not in (".png", ".svg", ".pdf"):
            self.fail(f"a picture ends in .png, .svg or .pdf, got {path.name!r}", param, ctx)
        return path
