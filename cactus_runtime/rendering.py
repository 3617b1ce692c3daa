"""Fills in templates of pages and drawings, and escapes all text."""

from __future__ import annotations

import unicodedata
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, **values: Any) -> str:
    """Fill in a template of `cactus_runtime/templates`.

    Parameters
    ----------
    template : str
        Name of the template's file.
    **values
        Strings are escaped and made `showable`, unless a template says that they are safe.

    Returns
    -------
    str

    Examples
    --------
    >>> drawing = {"width": 9, "height": 9, "left": 0, "right": 9, "top": 0, "bottom": 9}
    >>> values = {"points": ["1,2"], "total": 1.0, "largest": 1.0, "colour": "red"}
    >>> "p &lt; q" in render("running_sum.svg", label="p < q", **drawing, **values)
    True
    """
    return _environment.get_template(template).render(values)


def showable(text: str) -> str:
    """The text with visible characters in place of control characters.

    A terminal would obey controls other than tab and newline. They, surrogates and noncharacters
    are not allowed in HTML. Each becomes one character.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
        Of the same length.

    Examples
    --------
    >>> print(showable("a\\x1b[31m b"))
    a␛[31m b
    """
    return "".join(map(_stand_in, text))


def _stand_in(char: str) -> str:
    code = ord(char)
    if char in "\t\n":
        return char
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode's pictures of the controls
    is_noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    if is_noncharacter or unicodedata.category(char) in ("Cc", "Cs"):
        return "\N{REPLACEMENT CHARACTER}"
    return char


def _finalize(value: Any) -> Any:
    return showable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_environment = Environment(
    loader=PackageLoader("cactus_runtime"),
    autoescape=True,
    finalize=_finalize,
    undefined=StrictUndefined,
    trim_blocks=True,
)
_environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
