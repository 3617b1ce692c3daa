"""Output files, checked before the work starts, and text to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

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
    """A picture to write, in a supported format.

    Examples
    --------
    >>> Picture().convert("curves.txt", None, None)
    Traceback (most recent call last):
        ...
    click.exceptions.BadParameter: a picture ends in .png, .svg or .pdf, got 'curves.txt'
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, if its suffix names a supported format."""
        path = super().convert(value, param, ctx)
        if path.suffix.lower() not in (".png", ".svg", ".pdf"):
            self.fail(f"a picture ends in .png, .svg or .pdf, got {path.name!r}", param, ctx)
        return path


def read_text(file: TextIO) -> str:
    """The text of a file or a pipe, with all line ends converted to Python's.

    Python translates them in files, and in a pipe on Windows only.

    Examples
    --------
    >>> from io import StringIO
    >>> read_text(StringIO("dog:\\r\\ncat:", newline=""))
    'dog:\\ncat:'
    """
    return file.read().replace("\r\n", "\n").replace("\r", "\n")
