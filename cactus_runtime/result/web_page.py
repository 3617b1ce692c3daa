"""Shows a result in a notebook or on its own page, without scripts and without network.

Text from a model is always escaped. Characters that HTML cannot contain are replaced by those of
`showable`.
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


# Okabe and Ito's colours, and a grey: each has a contrast of at least 3 on white and near-black.
LOOKS: dict[Origin, Look] = {
    "accepted": Look("#009E73", "solid", "drafted and kept"),
    "recovered": Look("#D55E00", "wavy", "drawn after a draft was rejected"),
    "bonus": Look("#0072B2", "double", "drawn after all drafts were kept"),
    "plain": Look("#767676", "dotted", "drawn where nothing was drafted"),
}


def html_page(result: DecodeRecord, *, title: str = "A decoded text and its ledger") -> str:
    """One self-contained page about a result: its text, its figures and its ledger.

    Tokens are coloured and underlined by origin. On hover, focus or touch a token shows its
    probabilities and the charge of its position. Two curves show the running sums of TV(out, q) and
    of the bound of KL(out || q) in nats, token by token.

    Parameters
    ----------
    result : DecodeRecord
    title : str
        Title of the page.

    Returns
    -------
    str
        HTML; to be written as UTF-8. The page loads nothing and runs no script.

    Raises
    ------
    TypeError, ValueError
        If `result` is not the result of a decode, or `title` is not visible text.

    Examples
    --------
    >>> from cactus_runtime import decode
    >>> page = html_page(decode("tiny", "dog:", max_new_tokens=4, seed=1), title="p < q")
    >>> page.splitlines()[0], "<h1>p &lt; q</h1>" in page, page.count("tabindex")
    ('<!DOCTYPE html>', True, 4)
    """
    if not isinstance(result, DecodeRecord):
        raise TypeError(f"result must be a DecodeResult, got {result!r}")
    if not isinstance(title, str):
        raise TypeError(f"title must be a text, got {title!r}")
    if not title.strip():
        raise ValueError(f"title must have a visible character, got {title!r}")
    return render("result.html", title=title, curves=_curves(result), **_body(result, page=True))


def fragment(result: DecodeRecord) -> str:
    """The text and figures of a result as part of a page, as shown in notebooks.

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
    """What is shown for one token: origin, probabilities, and the charge of its position.

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
    shown = {
        "origin": token.origin,
        "id": f"{token.id}",
        "log-probability": f"{token.logprob:.6g} nats",
    }
    if token.emitted_logprob is not None and token.warped_logprob is not None:
        shown["drawn with log-probability"] = f"{token.emitted_logprob:.6g} nats"
        shown["target's, after the warp"] = f"{token.warped_logprob:.6g} nats"
    verdict = token.verdict
    if verdict is None:
        return shown | {"charged": "nothing"}
    if token.origin == "recovered":
        shown["rejected draft"] = f"id {verdict.id}"
    shown |= {
        "draft p": f"{verdict.draft_prob:.6g}",
        "target q": f"{verdict.target_prob:.6g}",
        "granted g": f"{verdict.boosted:.6g}",
        "chance to pass": f"{verdict.acceptance_probability:.6g}",
    }
    if verdict.charges is None:
        return shown | {"charged": "not accounted for"}
    distance, nats = verdict.charges
    return shown | {
        "acceptance rate": f"{verdict.acceptance_rate:.6g}",
        "charged TV": f"{distance:.6g}",
        "charged KL": f"at most {nats:.6g} nats",
    }


def _body(result: DecodeRecord, *, page: bool) -> dict[str, Any]:
    """The values for the templates: all tokens, by id where there is no text."""
    has_text = result.text is not None
    shown = {
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
        "figures": shown | figures(result),
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
    """Whether it contains a letter, number, punctuation mark or symbol."""
    return any(unicodedata.category(char)[0] in "LNPS" for char in text)


def _curves(result: DecodeRecord) -> list[str]:
    """Running sums of the tokens' charges, if there are any."""
    if not result.trace or not result.accounted:
        return []
    verdicts = [token.verdict for token in result.trace]
    charges = [(verdict and verdict.charges) or (0.0, 0.0) for verdict in verdicts]
    distances, divergences = zip(*charges, strict=True)
    return [
        running_sum(distances, label="total variation", colour=LOOKS["bonus"].colour),
        running_sum(divergences, label="KL bound (nats)", colour=LOOKS["recovered"].colour),
    ]
