"""A rule in front of one of vLLM's rejection samplers, with counts of the outcomes."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from cactus_runtime.integrations.vllm.runners import DraftedRows, Runner, rebound, runner_of
from cactus_runtime.integrations.vllm.shift import restore_logits_, shift_logits_
from cactus_theory.rules import CandidateRule, SpeculativeSampling

_NAMES = ("blocks", "drafted_tokens", "accepted_tokens", "rejected_tokens")


class Booster:
    """Shifts the drafted tokens' logits while a stock rejection sampler runs.

    Nothing waits for the device: counts stay there until they are read. Rows of greedy
    requests are neither shifted nor counted.

    Parameters
    ----------
    rule : CandidateRule
        May be replaced between two steps of the engine; one of budget 0 changes no logit.

    Attributes
    ----------
    rule : CandidateRule

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> Booster(Cactus(0.5)).statistics()["drafted_tokens"]
    0
    """

    def __init__(self, rule: CandidateRule) -> None:
        self.rule = rule
        self.forget()

    def forget(self) -> None:
        """Reset the counts."""
        self._counts = torch.zeros(len(_NAMES), dtype=torch.int64)

    def install(self, sampler: Any) -> None:
        """Attach to a sampler of vLLM, as its attribute ``cactus``.

        Raises
        ------
        RuntimeError
            If the sampler, or the function it calls, is not a known one.
        """
        runner = runner_of(sampler)
        method = getattr(type(sampler), runner.method)
        boosted = rebound(method, "rejection_sample", lambda stock: self.around(stock, runner))
        setattr(sampler, runner.method, MethodType(boosted, sampler))
        sampler.cactus = self

    def around(self, sample: Callable[..., Any], runner: Runner) -> Callable[..., Any]:
        """The function `sample` of a runner, with the rule applied.

        Raises
        ------
        RuntimeError
            If its parameters are not the known ones; from a call, if it sets one that is not known.
        """
        signature = runner.signature(sample)

        def boosted(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            runner.check_unknown(bound)
            rule, arguments = self.rule, bound.arguments
            shifts = not is_lossless(rule)
            if shifts:  # half precision would round the shift
                arguments["target_logits"] = arguments["target_logits"].float()
            drafts = runner.drafts(arguments)
            if drafts is None:
                return sample(*args, **kwargs)
            where = drafts.drafted & (drafts.temperature > 0)[drafts.request]
            if shifts:
                old = shift_logits_(drafts.logits, drafts.tokens, where, rule)
                output = sample(*bound.args, **bound.kwargs)
                restore_logits_(drafts.logits, drafts.tokens, old)  # log-probabilities need them
            else:
                output = sample(*args, **kwargs)
            self._count(drafts, where, runner.accepted(output))
            return output

        return boosted

    def _count(self, drafts: DraftedRows, where: torch.Tensor, accepted: torch.Tensor) -> None:
        drafted = torch.zeros_like(drafts.temperature, dtype=torch.int64)
        drafted = drafted.index_add(0, drafts.request, where.long())
        blocks = drafted > 0
        kept = torch.where(blocks, accepted.long(), 0)
        sums = torch.stack([blocks.sum(), drafted.sum(), kept.sum(), (kept < drafted).sum()])
        self._counts = self._counts.to(sums.device) + sums

    def statistics(self) -> dict[str, float | None]:
        """The counts since the last `forget`.

        Returns
        -------
        dict
            ``blocks``, requests verified; ``drafted_tokens``; ``accepted_tokens``;
            ``rejected_tokens``, blocks that ended at a rejection; ``acceptance_rate`` =
            accepted / (accepted + rejected), of the tokens that were judged; ``block_efficiency``
            = 1 + accepted / blocks, tokens emitted per target pass. The rates are None where
            nothing was counted.
        """
        counts = dict(zip(_NAMES, self._counts.tolist(), strict=True))
        blocks, _, accepted, rejected = counts.values()
        return {
            **counts,
            "acceptance_rate": accepted / (accepted + rejected) if blocks else None,
            "block_efficiency": 1 + accepted / blocks if blocks else None,
        }


def is_lossless(rule: CandidateRule) -> bool:
    """Whether the rule is speculative sampling, by its name or its budget.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> is_lossless(SpeculativeSampling()), is_lossless(Cactus(0)), is_lossless(Cactus(0.1))
    (True, True, False)
    """
    return isinstance(rule, SpeculativeSampling) or getattr(rule, "delta", None) == 0
