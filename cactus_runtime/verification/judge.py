"""`judge`: the verification of one block from logits, with its uniforms as arguments.

Agrees token for token with `cactus_theory.specification.verify`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

import torch

from cactus_runtime.verification import kernels
from cactus_runtime.verification.acceptance import check_shapes
from cactus_runtime.verification.block import judge_as_block
from cactus_runtime.verification.by_distribution import judge_by_distribution
from cactus_runtime.verification.candidates import judge_candidates
from cactus_runtime.verification.charges import Charges, Limits
from cactus_runtime.verification.emitted import emitted_logprobs as logprobs_emitted
from cactus_runtime.verification.judgement import Judgement
from cactus_runtime.verification.method import Method, Verification
from cactus_runtime.verification.warp import IdentityWarp, Warp
from cactus_theory.rules import CandidateRule, Rule

_NO_WARP = IdentityWarp()


def judge(
    rule: Rule,
    tokens: torch.Tensor,
    *,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    accept_uniforms: torch.Tensor,
    recover_uniforms: torch.Tensor,
    num_drafts: torch.Tensor | None = None,
    warp: Warp = _NO_WARP,
    limits: Limits | None = None,
    verification: Verification = "token",
    emitted_logprobs: bool = False,
    ledger: bool = True,
) -> Judgement:
    """Keep a prefix of each row's drafted tokens, draw one more token, and report the charges.

    Parameters
    ----------
    rule : Rule
    tokens : int64 tensor, shape (B, k)
        Drafted tokens; k may be 0.
    draft_probs : tensor, shape (B, k, V), or None
        The distributions the tokens were drawn from; None means one-hot on the tokens.
    target_logits : floating tensor, shape (B, k + 1, V)
        -inf excludes a token.
    accept_uniforms : float64 tensor, shape (B, k)
    recover_uniforms : float64 tensor, shape (B,)
    num_drafts : int64 tensor, shape (B,), optional
        Valid drafted tokens of each row; the others are padding. Default all.
    warp : Warp
        Temperature, filters and penalties. Default none.
    limits : callable Charges of shape (B, k) -> int64 tensor of shape (B,), optional
        How many positions of each row may use the rule. The others are verified by plain
        speculative sampling and charged nothing. Default all.
    verification : {"token", "block"}
        Token by token, or all drafts of a block together, which keeps as many tokens or more and
        needs an ordered rule; see `cactus_theory.verify_block`.
    emitted_logprobs : bool
        Whether to compute the judgement's `emitted_logprobs` and `warped_logprobs`.
    ledger : bool
        Whether to compute acceptance rates and charges, which read whole rows. Without them, a rule
        that boosts one candidate reads each row of logits for its normaliser only, and one row to
        draw from.

    Returns
    -------
    Judgement
        Computed without a host synchronisation on a GPU, if the rule has a candidate whose formulas
        run in torch, and if `limits` and `warp` do not synchronise.

    Raises
    ------
    TypeError, ValueError
        If the shapes do not fit, block verification is asked of a rule that is not ordered, or
        limits are given without a ledger.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> block = judge(
    ...     Cactus(0.5), torch.tensor([[1]]), draft_probs=torch.tensor([[[0.5, 0.5]]]),
    ...     target_logits=torch.tensor([[[0.0, 0.0], [0.0, -torch.inf]]]),
    ...     accept_uniforms=torch.tensor([[0.3]]).double(),
    ...     recover_uniforms=torch.tensor([0.3]).double())
    >>> block.accepted.tolist(), block.last_token.tolist()
    ([1], [0])
    """
    others = {
        "draft_probs": draft_probs,
        "accept_uniforms": accept_uniforms,
        "recover_uniforms": recover_uniforms,
        "num_drafts": num_drafts,
    }
    check_shapes(tokens, target_logits, others)
    Method(rule, verification, emitted_logprobs, ledger).check()
    if limits is not None and not ledger:
        raise ValueError("limits read the charges, so they need ledger=True")
    kept = None if limits is None else _Remembered(limits)
    block = {
        **others,
        "target_logits": target_logits,
        "limits": kept,
        "warp": warp,
        "ledger": ledger,
    }
    if verification == "block":
        judgement = judge_as_block(rule, tokens, **block)
    elif not judged_in_torch(rule):
        judgement = judge_by_distribution(rule, tokens, **block)
    elif kernels.applies(target_logits) and warp.temperature is not None:
        judgement = kernels.judge_candidates(rule, tokens, **block)
    else:
        judgement = judge_candidates(rule, tokens, **block)
    if not emitted_logprobs:
        return judgement
    found = logprobs_emitted(
        rule,
        judgement,
        draft_probs=draft_probs,
        target_logits=target_logits,
        num_drafts=num_drafts,
        warp=warp,
        lossy=None if kept is None else kept.lossy,
    )
    return replace(judgement, **found)


class _Remembered:
    """Limits that remember which positions they allowed the rule."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.lossy: torch.Tensor | None = None

    def __call__(self, charges: Charges) -> torch.Tensor:
        count = self._limits(charges)
        place = torch.arange(charges.kl_bound.shape[1], device=count.device)
        self.lossy = place < count.unsqueeze(-1)
        return count


def judged_in_torch(rule: Rule) -> TypeGuard[CandidateRule]:
    """Whether the rule has a candidate with torch formulas, so that its device judges a block."""
    return isinstance(rule, CandidateRule) and rule.torch_ready
