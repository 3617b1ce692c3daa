"""How a result looks in a notebook and on a page of its own, without script and without network.

What comes from a model is shown as text, never as markup. Characters that HTML cannot hold are
shown by the stand-ins of `render.showable`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from html import escape
from typing import NamedTuple

from cactus_runtime.result.result import DecodeResult
from cactus_runtime.result.svg_curve import running_sum
from cactus_runtime.result.terminal import figures, showable
from cactus_runtime.result.trace import Origin, Token


class Look(NamedTuple):
    """How an origin is shown, and what it means."""

    colour: str
    underline: str
    meaning: str


# Okabe and Ito's colours, and a grey: each has a contrast of 3 and more on white and near-black.
LOOKS: dict[Origin, Look] = {
    "accepted": Look("#009E73", "solid", "drafted and kept"),
    "recovered": Look("#D55E00", "wavy", "drawn after a draft was refused"),
    "bonus": Look("#0072B2", "double", "drawn after all drafts were kept"),
    "plain": Look("#767676", "dotted", "drawn where nothing was drafted"),
}

_TOKEN = ".cactus .text>span"
STYLE = "\n".join(
    [
        ".cactus .text{position:relative;white-space:pre-wrap;overflow-wrap:anywhere;"
        "line-height:2}",
        f"{_TOKEN}{{cursor:help;unicode-bidi:isolate}}",
        *(
            f".cactus .{origin}{{background:{look.colour}26;"
            f"text-decoration:underline {look.underline} 2px {look.colour};"
            "text-decoration-skip-ink:none;text-underline-offset:3px}"
            for origin, look in LOOKS.items()
        ),
        '.cactus .mark::before{content:"\\B7"}',
        ".cactus .details{position:absolute;left:0;z-index:1;box-sizing:border-box;"
        "max-width:100%;padding:.5em .75em;border:1px solid #888;border-radius:4px;"
        "background:#222;color:#fff;font:.85rem/1.4 monospace;pointer-events:none}",
        f"{_TOKEN}:hover>.details,{_TOKEN}:focus>.details{{display:block!important}}",
        f"{_TOKEN}:hover>.details{{z-index:2}}",
        f"{_TOKEN}:focus>.details{{pointer-events:auto}}",
        ".cactus .legend>span{display:inline-block;margin-right:1.5em}",
        ".cactus table{border-collapse:collapse;margin:1em 0}",
        ".cactus th{text-align:left;font-weight:normal;padding:.1em 2em .1em 0}",
        ".cactus td{text-align:right;font-variant-numeric:tabular-nums}",
        ".cactus .warning{border-left:4px solid #D55E00;padding-left:.75em}",
    ]
)
PAGE_STYLE = """:root{color-scheme:light dark}
body{max-width:50rem;margin:2rem auto;padding:0 1rem;font-family:system-ui,sans-serif}
svg{max-width:100%;height:auto}"""


def html_page(result: DecodeResult, *, title: str = "A decoded text and its account") -> str:
    """One self-contained page about a result: its text, its figures and its ledger.

    Tokens are coloured and underlined by origin. Under the pointer, by the tab key or at a touch a
    token shows its probabilities and what its position was charged. Two curves show the running
    sums of TV(out, q) and of the bound of KL(out || q) in nats, token by token.

    Parameters
    ----------
    result : DecodeResult
    title : str
        Of the page.

    Returns
    -------
    str
        HTML; to be written as UTF-8. The page loads nothing and runs no script.

    Raises
    ------
    TypeError, ValueError
        If `result` is no result of a decode, or `title` no text.

    Examples
    --------
    >>> from cactus_runtime import decode
    >>> page = html_page(decode("tiny", "dog:", max_new_tokens=4, seed=1), title="p < q")
    >>> page.splitlines()[0], "<h1>p &lt; q</h1>" in page, page.count("tabindex")
    ('<!DOCTYPE html>', True, 4)
    """
    if not isinstance(result, DecodeResult):
        raise TypeError(f"result must be a DecodeResult, got {result!r}")
    if not isinstance(title, str):
        raise TypeError(f"title must be a text, got {title!r}")
    if not title.strip():
        raise ValueError(f"title must have a visible character, got {title!r}")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_escape(title)}</title>",
            f"<style>\n{PAGE_STYLE}\n{STYLE}\n</style>",
            "</head>",
            '<body class="cactus">',
            f"<h1>{_escape(title)}</h1>",
            *_warnings(result),
            _text(result),
            _legend(),
            "<h2>Figures</h2>",
            _table(result),
            *_ledger(result),
            "</body>",
            "</html>",
            "",
        ]
    )


def fragment(result: DecodeResult) -> str:
    """The text and the figures of a result as a part of some page; what notebooks show.

    Parameters
    ----------
    result : DecodeResult

    Returns
    -------
    str
        A div element with its own style.

    Examples
    --------
    >>> from cactus_runtime import decode
    >>> shown = fragment(decode("tiny", "dog:", max_new_tokens=4, seed=1))
    >>> shown[:20], shown[-6:], shown.count("tabindex")
    ('<div class="cactus">', '</div>', 4)
    """
    parts = [f"<style>\n{STYLE}\n</style>", *_warnings(result), _text(result), _legend()]
    return "\n".join(['<div class="cactus">', *parts, _table(result), "</div>"])


def details(token: Token) -> dict[str, str]:
    """What is told of one token: origin, probabilities, and what its position was charged.

    Parameters
    ----------
    token : Token

    Returns
    -------
    dict of str to str
        Numbers have six significant digits.

    Examples
    --------
    >>> details(Token(id=7, text="a", origin="bonus", logprob=-0.5, verdict=None))
    {'origin': 'bonus', 'id': '7', 'log-probability': '-0.5 nats', 'charged': 'nothing'}
    """
    told = {
        "origin": token.origin,
        "id": f"{token.id}",
        "log-probability": f"{token.logprob:.6g} nats",
    }
    verdict = token.verdict
    if verdict is None:
        return told | {"charged": "nothing"}
    if token.origin == "recovered":
        told["refused draft"] = f"id {verdict.id}"
    return told | {
        "draft p": f"{verdict.draft_prob:.6g}",
        "target q": f"{verdict.target_prob:.6g}",
        "granted g": f"{verdict.boosted:.6g}",
        "chance to pass": f"{verdict.acceptance_probability:.6g}",
        "acceptance rate": f"{verdict.acceptance_rate:.6g}",
        "charged TV": f"{verdict.total_variation:.6g}",
        "charged KL": f"at most {verdict.kl_bound:.6g} nats",
    }


def _text(result: DecodeResult) -> str:
    """All tokens; their ids where there is no text."""
    has_text = result.text is not None
    shown = (
        _token(token, token.text if has_text else f"{token.id} ", f"{i} of {len(result.trace)}")
        for i, token in enumerate(result.trace, start=1)
    )
    return f'<div class="text" lang="" dir="auto">{"".join(shown)}</div>'


def _token(token: Token, text: str, place: str) -> str:
    mark = "" if _is_visible(showable(text)) else " mark"
    lines = "\n".join(f"{k}: {v}" for k, v in ({"token": place} | details(token)).items())
    return (
        f'<span class="{token.origin}{mark}" tabindex="0">{_escape(text)}'
        f'<span class="details" lang="en" dir="ltr" hidden>{_escape(lines)}</span></span>'
    )


def _is_visible(text: str) -> bool:
    """Whether a letter, a number, a punctuation mark or a symbol is in it."""
    return any(unicodedata.category(char)[0] in "LNPS" for char in text)


def _escape(text: str) -> str:
    return escape(showable(text))


def _legend() -> str:
    keys = " ".join(
        f'<span><span class="{origin}">{origin}</span> {look.meaning}</span>'
        for origin, look in LOOKS.items()
    )
    return (
        f'<p class="legend">{keys} <span><span class="mark"></span> before a token without a '
        "visible character</span></p>"
    )


def _warnings(result: DecodeResult) -> Iterable[str]:
    return (f'<p class="warning">Warning: {_escape(told)}.</p>' for told in result.warnings)


def _table(result: DecodeResult) -> str:
    told = {
        "rule": f"{result.rule}",
        "seed": f"{result.seed}",
        "number of the request": f"{result.number}",
        "prompt tokens": f"{result.prompt_tokens}",
        "ended by": result.finish_reason,
    } | figures(result)
    rows = (
        f'<tr><th scope="row">{_escape(label)}</th><td>{_escape(value)}</td></tr>'
        for label, value in told.items()
    )
    return "\n".join(["<table>", *rows, "</table>"])


def _ledger(result: DecodeResult) -> Iterable[str]:
    if not result.trace:
        return
    verdicts = [token.verdict for token in result.trace]
    distances = [verdict.total_variation if verdict else 0.0 for verdict in verdicts]
    divergences = [verdict.kl_bound if verdict else 0.0 for verdict in verdicts]
    yield "<h2>Ledger</h2>"
    yield (
        "<p>What the positions were charged, summed up. The expectation of a final sum bounds the "
        "divergence of the whole text's law from the target's.</p>"
    )
    yield running_sum(distances, label="total variation", colour=LOOKS["bonus"].colour)
    yield running_sum(divergences, label="KL bound (nats)", colour=LOOKS["recovered"].colour)
