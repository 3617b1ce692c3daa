"""How tokens and results look on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from cactus_runtime.rendering import showable
from cactus_runtime.result.record import DecodeRecord
from cactus_runtime.result.trace import Token

STYLES = {"accepted": "green", "recovered": "bold red", "bonus": "bold blue", "plain": "default"}


def colour(token: Token) -> Text:
    """The token's text in the colour of its origin; plain where there are no colours."""
    return Text(showable(token.text), style=STYLES[token.origin])


def legend() -> Text:
    """The meaning of the colours."""
    words = (Text(origin, style=STYLES[origin]) for origin in ("accepted", "recovered", "bonus"))
    return Text(", ").join(words)


def comparison(results: Mapping[str, DecodeRecord]) -> Table:
    """One column per named result, one row per figure."""
    table = Table(title="the same prompt and seed under three rules", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in results:
        table.add_column(name, justify="right")
    columns = [figures(result) for result in results.values()]
    for label in _FIGURES:
        table.add_row(label, *(column[label] for column in columns))
    return table


def figures(result: DecodeRecord) -> dict[str, str]:
    """The figures of a result by label, formatted for printing.

    Parameters
    ----------
    result : DecodeRecord

    Returns
    -------
    dict of str to str
        "-" means that nothing was verified.

    Examples
    --------
    >>> from cactus_runtime import decode
    >>> shown = figures(decode("tiny", "dog:", num_draft_tokens=0, max_new_tokens=4, seed=1))
    >>> shown["tokens"], shown["acceptance rate"], shown["total variation in all"]
    ('4', '-', '0.000')
    """
    missing = {} if result.accounted else dict.fromkeys(_CHARGED, "not accounted for")
    return {label: missing.get(label) or figure(result) for label, figure in _FIGURES.items()}


def _per_token(total: float, result: DecodeRecord) -> str:
    return f"{total / max(len(result.tokens), 1):.4f}"


def _rate(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


_FIGURES = {
    "tokens": lambda r: f"{len(r.tokens)}",
    "tokens/s": lambda r: f"{r.tokens_per_second:.1f}",
    "accepted drafts per block": lambda r: f"{r.accepted_tokens:.2f}",
    "acceptance rate": lambda r: _rate(r.acceptance_rate, 3),
    "acceptance by position": lambda r: (
        " ".join(_rate(rate, 2) for rate in r.acceptance_by_position) or "-"
    ),
    "block efficiency": lambda r: f"{r.block_efficiency:.2f}",
    "total variation per token": lambda r: _per_token(r.total_variation, r),
    "total variation in all": lambda r: f"{r.total_variation:.3f}",
    "KL bound per token (nats)": lambda r: _per_token(r.kl_bound, r),
    "KL bound in all (nats)": lambda r: f"{r.kl_bound:.3f}",
}
_CHARGED = [
    "acceptance rate",
    *("total variation per token", "total variation in all"),
    *("KL bound per token (nats)", "KL bound in all (nats)"),
]
