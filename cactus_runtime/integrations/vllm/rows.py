"""An ordered rule as rows of logits, so that any lossless sampler emits what the rule emits.

An ordered rule accepts sum_x min(p, out) and is lossless sampling of its own emitted distribution
`out`: where a sampler reads log out in the place of the target's logits, it emits out, by whichever
lossless method it verifies drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from cactus_runtime.integrations.vllm.runners import DraftedRows
from cactus_runtime.verification.emitted import emitted_rows
from cactus_theory.rules import Rule

_TOGETHER = 2**22  # probabilities solved at once on a device: 32 MiB in float64


class Replaced(NamedTuple):
    """Rows that were replaced, shape (n,), and what they held, shape (n, V)."""

    rows: torch.Tensor
    logits: torch.Tensor
    beyond: torch.Tensor | None


def replace_rows_(
    drafts: DraftedRows, rules: Mapping[Rule, torch.Tensor], *, keep: bool = True
) -> Replaced | None:
    """Replace, in place, rows of the target's logits by log out.

    Parameters
    ----------
    drafts : DraftedRows
        ``logits`` is changed.
    rules : mapping of Rule to bool tensor, shape (R,)
        The rows to change by each rule. The host waits until it knows how many they are.
    keep : bool
        Whether to copy the rows before.

    Returns
    -------
    Replaced or None
        For `restore_rows_`; None if nothing was kept.
    """
    found = {rule: where.nonzero().squeeze(1) for rule, where in rules.items()}
    old = _copied(drafts, torch.cat(list(found.values()))) if keep else None
    for rule, mine in found.items():
        for some in portions(mine, drafts.logits.shape[1]):
            out = emitted_rows(rule, *distributions(drafts, some))[1]
            drafts.logits[some] = out.log().to(drafts.logits.dtype)
            if drafts.beyond is not None:
                drafts.beyond[some] = -torch.inf  # tokens that the draft does not have
    return old


def _copied(drafts: DraftedRows, rows: torch.Tensor) -> Replaced:
    beyond = None if drafts.beyond is None else drafts.beyond[rows]
    return Replaced(rows, drafts.logits[rows], beyond)


def restore_rows_(drafts: DraftedRows, old: Replaced) -> None:
    """Put back what `replace_rows_` replaced."""
    drafts.logits[old.rows] = old.logits
    if drafts.beyond is not None and old.beyond is not None:
        drafts.beyond[old.rows] = old.beyond


def portions(rows: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """The rows, a few at a time."""
    return iter(rows.split(max(1, _TOGETHER // size)) if len(rows) else ())


def distributions(drafts: DraftedRows, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """p and q of some rows, float64 of shape (n, V); p is certain where the engine has none."""
    target = drafts.logits[rows].double().softmax(-1)
    if drafts.draft is None:
        draft = torch.zeros_like(target).scatter_(1, drafts.tokens[rows].unsqueeze(1), 1.0)
    else:
        draft = drafts.draft(rows)
    return draft, target
