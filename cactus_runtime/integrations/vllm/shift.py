"""The candidate as a shift of one logit, so that a stock rejection sampler applies the rule."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from cactus_theory.rules import CandidateRule

_TOGETHER = 2**22  # logits read at once: 16 MiB
_LEAST = math.exp(-60)  # smallest shrink factor: below it float32 rounds the other tokens away


def shift_logits_(
    logits: torch.Tensor, tokens: torch.Tensor, rules: Mapping[CandidateRule, torch.Tensor]
) -> torch.Tensor:
    """Replace, in place, the logit of each row's token by that of the candidate distribution.

    With Z the sum of exponentials of a row and q the token's probability, the new logit is
    log Z + log g - log s, g = ``rule.boost(q)``, s = ``rule.shrink(q)`` = (1-g)/(1-q). The softmax
    is then the candidate distribution h: g at the token, s times the target elsewhere. A token of
    probability 0 keeps its -inf and one of probability 1 its logit.

    Parameters
    ----------
    logits : float32 tensor, shape (R, V)
        The target's, after temperature and filters; changed at one place per row.
    tokens : int64 tensor, shape (R,)
        Drafted tokens; ignored in rows of no rule.
    rules : mapping of CandidateRule to bool tensor, shape (R,)
        The rows to change by each rule.

    Returns
    -------
    float32 tensor, shape (R, 1)
        The previous logits; `restore_logits_` puts them back.

    References
    ----------
    Theorem 2 of Hao and Mou (2026): the optimum moves one coordinate.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> logits = torch.tensor([[0.2, 0.8]]).log()
    >>> old = shift_logits_(logits, torch.tensor([0]), {Cactus(0.5): torch.tensor([True])})
    >>> logits.softmax(-1)
    tensor([[0.6000, 0.4000]])
    """
    places = _places(logits, tokens)
    old = new = logits.gather(1, places)
    log_z = _log_sums(logits).double()
    target = (old.double() - log_z).exp().clamp(max=1.0)
    for rule, where in rules.items():
        shrunk = rule.shrink(target, xp=torch).clamp(min=_LEAST)
        raised = log_z + rule.boost(target, xp=torch).log() - shrunk.log()
        new = torch.where(where.unsqueeze(1), raised.to(logits.dtype), new)
    logits.scatter_(1, places, new)
    return old


def restore_logits_(logits: torch.Tensor, tokens: torch.Tensor, old: torch.Tensor) -> None:
    """Put back what `shift_logits_` replaced, to the last bit.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> logits, tokens = torch.zeros(1, 2), torch.tensor([1])
    >>> old = shift_logits_(logits, tokens, {Cactus(0.1): torch.tensor([True])})
    >>> restore_logits_(logits, tokens, old)
    >>> logits
    tensor([[0., 0.]])
    """
    logits.scatter_(1, _places(logits, tokens), old)


def _log_sums(logits: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp of each row, some rows at a time: it copies what it reads."""
    some = max(1, _TOGETHER // logits.shape[1])
    return torch.cat([rows.logsumexp(-1, keepdim=True) for rows in logits.split(some)])


def _places(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return tokens.long().clamp(0, logits.shape[1] - 1).unsqueeze(1)
