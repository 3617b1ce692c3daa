"""Judges the rows of a batch, grouped by rule and within their budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from cactus_runtime.loop.drafting import Drafts
from cactus_runtime.loop.row import Row, distinct
from cactus_runtime.loop.warp import BlockWarp
from cactus_runtime.models.device import to_device
from cactus_runtime.models.kv_cache import NonFiniteLogitsError
from cactus_runtime.streams import Purpose
from cactus_runtime.verification.charges import Charges
from cactus_runtime.verification.judge import judge, judged_in_torch
from cactus_runtime.verification.judgement import RowJudgement, unpacked
from cactus_runtime.verification.method import Method
from cactus_runtime.verification.reading import log_normaliser
from cactus_theory.ledger import budget_stop


def judge_rows(
    rows: Sequence[Row], drafts: Drafts, logits: torch.Tensor, uniforms: torch.Tensor
) -> list[RowJudgement]:
    """Verify one block of B rows; rows of one method are judged together.

    Parameters
    ----------
    rows : sequence of B Rows
    drafts : Drafts
    logits : tensor, shape (B, k + 1, V)
        The target's own logits.
    uniforms : float64 tensor, shape (B, k + 1, 3)
        Columns by `Purpose`.

    Raises
    ------
    NonFiniteLogitsError
        If logits that matter are not finite.
    """
    if any(any(row.processors.values()) or _needs_host(row, logits) for row in rows):
        check_finite(rows, drafts, log_normaliser(logits))  # before the rules raise on NaN
    methods = distinct(row.method for row in rows)
    judged: dict[int, RowJudgement] = {}
    for method in methods:
        own = [i for i, row in enumerate(rows) if row.method == method]
        some = slice(None) if len(methods) == 1 else own
        found = _judge_alike(
            method,
            [rows[i] for i in own],
            drafts.of(some, [drafts.counts[i] for i in own]),
            logits[some],
            uniforms[some],
        )
        judged.update(zip(own, found, strict=True))
    return [judged[i] for i in range(len(rows))]


def check_finite(rows: Sequence[Row], drafts: Drafts, normaliser: torch.Tensor) -> None:
    """Raise NonFiniteLogitsError, naming model and position, if logits are not finite.

    Parameters
    ----------
    rows : sequence of B Rows
    drafts : Drafts
    normaliser : float64 tensor, shape (B, k + 1)
        Log-sum-exps of the target's logits.
    """
    for role, found in (("target", normaliser), ("draft", drafts.peaks)):
        if found is None or torch.isfinite(found).all():
            continue
        i, j = (int(x) for x in (~torch.isfinite(found)).nonzero()[0])
        raise NonFiniteLogitsError(
            f"the {role} model gave non-finite logits after token {len(rows[i].ids) - 1 + j} "
            f"of request {rows[i].index} (log-sum-exp or largest value {float(found[i, j])})"
        )


def _judge_alike(
    method: Method,
    rows: Sequence[Row],
    drafts: Drafts,
    logits: torch.Tensor,
    uniforms: torch.Tensor,
) -> list[RowJudgement]:
    """Rows of one method; with one host synchronisation if none of them has a budget.

    A position whose charge would take a row's ledger past its budget is verified losslessly, and so
    are all positions after it. `cactus_theory.ledger` explains why later ones may not be
    considered.
    """
    warp = BlockWarp(rows, "target", drafts.tokens)
    limited = any(row.has_budget for row in rows)
    judgement = judge(
        method.rule,
        drafts.tokens,
        draft_probs=drafts.probs,
        target_logits=logits,
        accept_uniforms=uniforms[:, : drafts.tokens.shape[1], Purpose.ACCEPT],
        recover_uniforms=uniforms[:, 0, Purpose.RECOVER],
        num_drafts=to_device(drafts.counts, logits.device),
        warp=warp,
        limits=partial(_lossy_positions, rows, drafts.counts) if limited else None,
        verification=method.verification,
        emitted_logprobs=method.emitted_logprobs,
        ledger=method.ledger,
    )
    judged = unpacked(judgement.packed().tolist(), drafts.counts, method)
    if logits.is_cpu or not all(row.finite for row in judged):
        check_finite(rows, drafts, judgement.log_normaliser)
    return [replace(row, empty_at=warp.empty_at.get(i)) for i, row in enumerate(judged)]


def _lossy_positions(rows: Sequence[Row], counts: Sequence[int], charges: Charges) -> torch.Tensor:
    """For how many positions of each row its budget allows the rule."""
    distances, divergences = charges.total_variation.tolist(), charges.kl_bound.tolist()
    found = [
        budget_stop(row.ledger, total_variations=distance[:count], kls=divergence[:count])
        for row, count, distance, divergence in zip(
            rows, counts, distances, divergences, strict=True
        )
    ]
    return to_device(found, charges.kl_bound.device)


def _needs_host(row: Row, logits: torch.Tensor) -> bool:
    """Whether judging a row needs the host, because of its budget, or for numpy's formulas."""
    method = row.method
    whole_rows = method.verification == "block" or method.emitted_logprobs
    return row.has_budget or not judged_in_torch(method.rule) or (whole_rows and logits.is_cpu)
