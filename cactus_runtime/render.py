"""How tokens and results look on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from cactus_runtime.statistics import DecodeResult, Token

STYLES = {"accepted": "green", "recovered": "bold red", "bonus": "bold blue", "plain": "default"}


def colour(token: Token) -> Text:
    """The token's text in the colour of its origin; plain where there are no colours."""
    return Text(token.text, style=STYLES[token.origin])


def legend() -> Text:
    """Which colour means what."""
    words = (Text(origin, style=STYLES[origin]) for origin in ("accepted", "recovered", "bonus"))
    return Text(", ").join(words)


def comparison(results: Mapping[str, DecodeResult]) -> Table:
    """One column per named result, one row per figure."""
    table = Table(title="the same prompt and seed under three rules", title_justify="left")
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right")
    for label, figure in _FIGURES.items():
        table.add_row(label, *(figure(result) for result in results.values()))
    return table


def _per_token(total: float, result: DecodeResult) -> str:
    return f"{total / max(len(result.tokens), 1):.4f}"


_FIGURES = {
    "tokens": lambda r: f"{len(r.tokens)}",
    "tokens/s": lambda r: f"{r.tokens_per_second:.1f}",
    "accepted drafts per block": lambda r: f"{r.accepted_tokens:.2f}",
    "acceptance rate": lambda r: (
        "-" if math.isnan(r.acceptance_rate) else f"{r.acceptance_rate:.3f}"
    ),
    "block efficiency": lambda r: f"{r.block_efficiency:.2f}",
    "total variation per token": lambda r: _per_token(r.total_variation, r),
    "total variation in all": lambda r: f"{r.total_variation:.3f}",
    "KL bound per token (nats)": lambda r: _per_token(r.kl_bound, r),
    "KL bound in all (nats)": lambda r: f"{r.kl_bound:.3f}",
}
