"""From a block's logits to what is committed: verification, and the account, on the host once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import torch

from cactus_runtime.loop.drafting import Drafts
from cactus_runtime.loop.row import BlockWarp, Outcome, Row, distinct
from cactus_runtime.models.device import to_device
from cactus_runtime.result.result import Verdict
from cactus_runtime.sampling import SamplingParams
from cactus_runtime.streams import Purpose
from cactus_runtime.verification import kernels
from cactus_runtime.verification.verify import (
    Verification,
    Warp,
    block_emission,
    emission_and_target_prob,
    reads_one_number,
    verify,
    verify_by_law,
)
from cactus_theory.emitted import Emission
from cactus_theory.ledger import budget_stop
from cactus_theory.rules import Rule, SpeculativeSampling


def judge(
    rule: Rule,
    rows: Sequence[Row],
    drafts: Drafts,
    *,
    logits: torch.Tensor,
    normaliser: torch.Tensor,
    uniforms: torch.Tensor,
) -> list[Outcome]:
    """Verify one block of B rows under one rule, and account for it.

    A position whose cost would take a row's ledger past its budget is verified losslessly, and so
    are those after it: `budget_stop` says why a later one must not be weighed against it.

    Parameters
    ----------
    rule : Rule
    rows : sequence of B Rows
    drafts : Drafts
    logits : tensor, shape (B, k + 1, V)
        As the target gave them.
    normaliser : float64 tensor, shape (B, k + 1)
        Their log-sum-exp.
    uniforms : float64 tensor, shape (B, k + 1, 3)
        Columns by `Purpose`.

    Returns
    -------
    list of B Outcomes
        With one host synchronisation if no row has a budget.
    """
    warp = BlockWarp(rows, "target", drafts.tokens)
    limited = any(row.has_budget for row in rows)
    packed = decide(
        rule,
        drafts,
        to_device(drafts.counts, logits.device),
        logits=logits,
        normaliser=normaliser,
        uniforms=uniforms,
        samplings=distinct(row.request.sampling for row in rows),
        warp=warp,
        allowed=partial(_allowed, rows, drafts.counts) if limited else None,
    )
    outcomes = unpack(packed.tolist(), drafts.counts)
    return [replace(outcome, lawless=warp.lawless.get(i)) for i, outcome in enumerate(outcomes)]


def decide(
    rule: Rule,
    drafts: Drafts,
    num_drafts: torch.Tensor,
    *,
    logits: torch.Tensor,
    normaliser: torch.Tensor,
    uniforms: torch.Tensor,
    samplings: Sequence[SamplingParams],
    warp: Warp,
    allowed: Callable[[Emission], list[int]] | None = None,
) -> torch.Tensor:
    """Verify one block of B rows, account for it, and pack what was found for one copy.

    Nothing is decided on the host if `reads_one_number(rule)`, there is no `allowed`, and the warp
    decides nothing there.

    Parameters
    ----------
    rule, drafts, logits, normaliser, uniforms
        As for `judge`, but for the counts of the drafts.
    num_drafts : int64 tensor, shape (B,)
        Drafted tokens that count.
    samplings : sequence of SamplingParams
        The different ones of the rows.
    warp : Warp
        Theirs, for the target.
    allowed : callable Emission -> list of B int, optional
        Positions of each row that the rule may be used for, by what they would cost.

    Returns
    -------
    float64 tensor, shape (B, 3 + 9 k), for `unpack`
    """
    tokens, k = drafts.tokens, drafts.tokens.shape[1]
    block = {"draft_probs": drafts.probs, "target_logits": logits, "warp": warp}
    cost, target_prob = emission_and_target_prob(rule, tokens, **block)
    lossy = None
    if allowed is not None:
        limits = to_device(allowed(cost), tokens.device)
        lossy = torch.arange(k, device=tokens.device) < limits.unsqueeze(-1)
        cost = _lossless_after(lossy, cost, tokens, block)
    verifier = _verifier(rule, samplings, logits, warp, target_prob)
    outcome = verifier(
        rule,
        tokens,
        draft_probs=drafts.probs,
        target_logits=logits,
        accept_uniforms=uniforms[:, :k, Purpose.ACCEPT],
        recover_uniforms=uniforms[:, 0, Purpose.RECOVER],
        num_drafts=num_drafts,
        lossy=lossy,
    )
    last, accepted = outcome.last_token.unsqueeze(-1), outcome.accepted.unsqueeze(-1)
    emitted = torch.nn.functional.pad(tokens, (0, 1)).scatter(-1, accepted, last)
    chosen = logits.gather(-1, emitted.unsqueeze(-1)).squeeze(-1)
    figures = (outcome.draft_prob, outcome.target_prob, outcome.boosted)
    costs = (cost.acceptance_rate, cost.total_variation, cost.kl_bound)
    logprobs = chosen.double() - normaliser
    return torch.cat([accepted, emitted, tokens, logprobs, *figures, *costs], dim=-1)


def unpack(packed: Sequence[Sequence[float]], counts: Sequence[int]) -> list[Outcome]:
    """What `decide` packed, as rows of numbers, and of which so many drafted tokens count."""
    return [_outcome(row, count) for row, count in zip(packed, counts, strict=True)]


def _verifier(
    rule: Rule,
    samplings: Sequence[SamplingParams],
    logits: torch.Tensor,
    warp: Warp,
    target_prob: torch.Tensor,
) -> Callable[..., Verification]:
    """By law on the host, or from logits: fused where that is possible."""
    if not reads_one_number(rule):
        return partial(verify_by_law, warp=warp)
    first, *others = samplings
    if kernels.applies(logits) and not others and first.tempers_only:
        return partial(kernels.verify, temperature=float(first.temperature))
    return partial(verify, warp=warp, target_prob=target_prob)


def needs_host(row: Row) -> bool:
    """Whether a row is judged with its figures on the host: for its budget, or by its rule."""
    return row.has_budget or not reads_one_number(row.request.rule)


def _allowed(rows: Sequence[Row], counts: list[int], cost: Emission) -> list[int]:
    """Positions of each row that its budget lets the rule be used for."""
    distances, divergences = cost.total_variation.tolist(), cost.kl_bound.tolist()
    return [
        budget_stop(row.ledger, total_variations=distance[:count], kls=divergence[:count])
        for row, count, distance, divergence in zip(
            rows, counts, distances, divergences, strict=True
        )
    ]


def _lossless_after(
    lossy: torch.Tensor, cost: Emission, tokens: torch.Tensor, block: dict
) -> Emission:
    """The cost where positions outside `lossy` are verified by plain speculative sampling."""
    plain = block_emission(SpeculativeSampling(), tokens, **block).acceptance_rate
    return Emission(
        torch.where(lossy, cost.acceptance_rate, plain),
        torch.where(lossy, cost.total_variation, 0.0),
        torch.where(lossy, cost.kl_bound, 0.0),
    )


def _outcome(packed: Sequence[float], count: int) -> Outcome:
    """One row of `decide`'s, of whose drafted positions so many count."""
    k = (len(packed) - 3) // 9
    accepted, rest = int(packed[0]), iter(packed[1:])
    ids, drafted = [int(x) for x in islice(rest, k + 1)], [int(x) for x in islice(rest, k)]
    logprobs = list(islice(rest, k + 1))
    columns = [list(islice(rest, k))[:count] for _ in range(6)]
    return Outcome(
        tokens=ids[: accepted + 1],
        accepted=accepted,
        verdicts=[
            Verdict(token, *judged)
            for token, *judged in zip(drafted[:count], *columns, strict=True)
        ],
        logprobs=logprobs[: accepted + 1],
    )
