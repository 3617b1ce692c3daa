"""The verification of one block and its ledger in Triton, in two passes over the logits.

`normalise` reads every row of target logits once: for its log-sum-exps, with and without the
temperature. Torch then evaluates the rule on the (B, k) probabilities of the drafted tokens.
`charge_and_weigh` reads the k drafted rows of logits and of draft probabilities once: for all that
is charged, and for the sums that the last token is drawn from, whichever row that will be. `draw`
reads one chunk of one row.

With logits of s bytes and draft probabilities of s' bytes an element, a row of the batch reads
(2 k + 1) V s + k V s' bytes and one chunk of each again. It writes 56 bytes a chunk and position
at most. There are no atomics and no synchronisation with the host: the same input gives the same
output.

Budgets (`limits`) must know what is charged before a token is accepted. Then the charges are
taken first, and the one row drawn from is weighed after acceptance. Without a ledger nothing is
charged, and only that row is weighed.

Rules other than `SpeculativeSampling`, `Cactus`, `CactusSafe` and `CactusExact` under KL take what
is charged from torch, which reads the logits once more, and the rest from here.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import pad

from cactus_runtime.verification import device_functions
from cactus_runtime.verification.acceptance import accept, probs_of
from cactus_runtime.verification.candidates import figures, logprobs_of
from cactus_runtime.verification.charges import Limits, charged, limited
from cactus_runtime.verification.judgement import Judgement
from cactus_runtime.verification.passes import (
    NOTHING,
    Gain,
    charge,
    charge_and_weigh,
    draw,
    normalise,
    weigh,
)
from cactus_runtime.verification.warp import Warp
from cactus_theory.divergences import KL
from cactus_theory.rules import Cactus, CactusExact, CactusSafe, CandidateRule


def applies(logits: torch.Tensor) -> bool:
    """Whether the kernels can run where these logits are.

    Examples
    --------
    >>> applies(torch.zeros(1, 1, 2))
    False
    """
    return device_functions.AVAILABLE and logits.is_cuda


def gain_of(rule: CandidateRule) -> Gain | None:
    """How the kernels find what this rule gains; None if they cannot.

    Examples
    --------
    >>> gain_of(Cactus(0.5))
    Gain(kind='closed', delta=0.0, reach=1.0)
    >>> from cactus_theory import TotalVariation
    >>> gain_of(CactusExact(0.5, TotalVariation())) is None
    True
    """
    if rule.lossless:
        return NOTHING
    reach = math.sqrt(rule.chi_square_floor)
    if type(rule) in (Cactus, CactusSafe):
        return Gain("closed", reach=reach)
    if type(rule) is CactusExact and type(rule.divergence) is KL:
        return Gain("root", rule.delta, reach)
    return None


def judge_candidates(
    rule: CandidateRule,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    accept_uniforms: torch.Tensor,
    recover_uniforms: torch.Tensor,
    num_drafts: torch.Tensor | None,
    limits: Limits | None,
    warp: Warp,
    ledger: bool = True,
) -> Judgement:
    """`judge` for a rule with a candidate, where the warp is only a temperature.

    What `candidates.judge_candidates` returns for the same uniforms, up to the rounding of the
    probabilities: a uniform that near to a threshold may come to lie on its other side.

    Raises
    ------
    ModuleNotFoundError
        If triton is missing.
    ValueError
        If the temperature is wrong, or Triton cannot run where the logits are.
    """
    temperature: float = warp.temperature  # type: ignore[assignment]
    rows = normalise(target_logits, tokens, temperature=temperature)
    shrink = rule.shrink(rows.target_prob, xp=torch)
    block = target_logits, rows, tokens, draft_probs
    gain, residuals = gain_of(rule), None
    charges = None
    if not ledger:
        pass
    elif gain is None:
        charges = figures(rule, tokens, draft_probs, target_logits, warp, ledger=True).charges
    elif limits is None:  # one pass for both
        charges, residuals = charge_and_weigh(*block, gain=gain, shrink=shrink)
    else:
        charges = charge(*block, gain=gain)
    charges, lossy = limited(charges, limits)
    if lossy is not None:
        shrink = torch.where(lossy, shrink, 1.0)
    draft_prob = probs_of(tokens, draft_probs)
    accepted, boosted = accept(
        rule,
        rows.target_prob,
        draft_prob,
        accept_uniforms=accept_uniforms,
        num_drafts=num_drafts,
        lossy=lossy,
    )
    if residuals is None:
        residuals = weigh(*block, shrink=shrink, row=accepted)
    row = accepted.unsqueeze(-1)
    rejected_token = pad(tokens, (0, 1), value=-1).gather(-1, row).squeeze(-1)
    if num_drafts is not None:
        rejected_token = torch.where(accepted < num_drafts, rejected_token, -1)
    last_token = draw(
        target_logits,
        rows,
        accepted,
        residuals=residuals,
        shrink=pad(shrink, (0, 1)).gather(-1, row).squeeze(-1),
        draft_probs=draft_probs,
        rejected_token=rejected_token,
        uniforms=recover_uniforms,
    )
    return Judgement(
        tokens=tokens,
        accepted=accepted,
        last_token=last_token,
        logprobs=logprobs_of(tokens, accepted, last_token, target_logits, rows.log_normaliser),
        draft_prob=draft_prob,
        target_prob=rows.target_prob,
        boosted=boosted,
        log_normaliser=rows.log_normaliser,
        **charged(charges),
    )
