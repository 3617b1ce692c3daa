"""What the logits of drafted rows are while a stock sampler runs, and what they are after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from cactus_runtime.integrations.vllm.rows import replace_rows_, restore_rows_
from cactus_runtime.integrations.vllm.runners import DraftedRows
from cactus_runtime.integrations.vllm.settings import Settings
from cactus_runtime.integrations.vllm.shift import restore_logits_, shift_logits_
from cactus_theory.rules import CandidateRule, Rule


def change_rows_(
    drafts: DraftedRows, rows: Mapping[Settings, torch.Tensor], *, emitted: bool = False
) -> Callable[[], None]:
    """Change, in place, the logits of rows so that a stock sampler applies their rules.

    Parameters
    ----------
    drafts : DraftedRows
    rows : mapping of Settings to bool tensor, shape (R,)
        Lossless ones are left as they are.
    emitted : bool
        Whether the rows shall hold log out afterwards, for log-probabilities, and not the target's
        logits. A rule with candidates then takes a sort of each row. Where nothing reads the rows
        again, they may hold log out in either case, and no row is copied.

    Returns
    -------
    callable
        To be called after the sampler.
    """
    lossy: dict[Rule, torch.Tensor] = {}
    for settings, where in rows.items():
        if not settings.is_lossless:
            before = lossy.get(settings.rule)
            lossy[settings.rule] = where if before is None else before | where
    shifts = {rule: where for rule, where in lossy.items() if isinstance(rule, CandidateRule)}
    others = {rule: where for rule, where in lossy.items() if rule not in shifts}
    keep = drafts.read_again and not emitted
    replaced = replace_rows_(drafts, others, keep=keep) if others else None
    shifted = shift_logits_(drafts.logits, drafts.tokens, shifts) if shifts else None

    def after() -> None:
        if shifted is not None:
            restore_logits_(drafts.logits, drafts.tokens, shifted)
        if emitted and shifts and drafts.read_again:
            replace_rows_(drafts, {**shifts}, keep=False)
        if replaced is not None:
            restore_rows_(drafts, replaced)

    return after
