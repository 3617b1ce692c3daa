"""How a result looks in a notebook and on a page of its own, without script and without network.

What comes from a model is shown as text, never as markup. Characters that HTML cannot hold are
shown by the stand-ins of `showable`.
"""

from __future__ import annotations

import unicodedata
from typing import Any, NamedTuple

from cactus_runtime.rendering import render, showable
from cactus_runtime.result.record import DecodeRecord
from cactus_runtime.result.svg_curve import running_sum
from cactus_runtime.result.terminal import figures
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


def html_page(result: DecodeRecord, *, title: str = "A decoded text and its account") -> str:
    """One self-contained page about a result: its text, its figures and its ledger.

    Tokens are coloured and underlined by origin. Under the pointer, by the tab key or at a touch a
    token shows its probabilities and what its position was charged. Two curves show the running
    sums of TV(out, q) and of the bound of KL(out || q) in nats, token by token.

    Parameters
    ----------
    result : DecodeRecord
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
    if not isinstance(result, DecodeRecord):
        raise TypeError(f"result must be a DecodeRecord, got {result!r}")
    if not isinstance(title, str):
        raise TypeError(f"title must be a text, got {title!r}")
    if not title.strip():
        raise ValueError(f"title must have a visible character, got {title!r}")
    return render("result.html", title=title, curves=_curves(result), **_body(result, page=True))


def fragment(result: DecodeRecord) -> str:
    """The text and the figures of a result as a part of some page; what notebooks show.

    Parameters
    ----------
    result : DecodeRecord

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
    return render("fragment.html", **_body(result, page=False))


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


def _body(result: DecodeRecord, *, page: bool) -> dict[str, Any]:
    """What the templates say of a result: all tokens, by their ids where there is no text."""
    has_text = result.text is not None
    told = {
        "rule": f"{result.rule}",
        "seed": f"{result.seed}",
        "number of the request": f"{result.number}",
        "prompt tokens": f"{result.prompt_tokens}",
        "ended by": result.finish_reason,
    }
    return {
        "looks": LOOKS,
        "whole_page": page,
        "warnings": result.warnings,
        "figures": told | figures(result),
        "tokens": [
            _token(token, token.text if has_text else f"{token.id} ", f"{i} of {len(result.trace)}")
            for i, token in enumerate(result.trace, start=1)
        ],
    }


def _token(token: Token, text: str, place: str) -> dict[str, Any]:
    lines = (f"{key}: {value}" for key, value in ({"token": place} | details(token)).items())
    return {
        "origin": token.origin,
        "visible": _is_visible(showable(text)),
        "text": text,
        "details": "\n".join(lines),
    }


def _is_visible(text: str) -> bool:
    """Whether a letter, a number, a punctuation mark or a symbol is in it."""
    return any(unicodedata.category(char)[0] in "LNPS" for char in text)


def _curves(result: DecodeRecord) -> list[str]:
    """Running sums of what the tokens were charged, if there are any."""
    if not result.trace:
        return []
    verdicts = [token.verdict for token in result.trace]
    distances = [verdict.total_variation if verdict else 0.0 for verdict in verdicts]
    divergences = [verdict.kl_bound if verdict else 0.0 for verdict in verdicts]
    return [
        running_sum(distances, label="total variation", colour=LOOKS["bonus"].colour),
        running_sum(divergences, label="KL bound (nats)", colour=LOOKS["recovered"].colour),
    ]
