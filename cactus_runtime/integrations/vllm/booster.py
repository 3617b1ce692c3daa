"""Rules in front of one of vLLM's rejection samplers, with counts of the outcomes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch

from cactus_runtime.integrations.vllm.change import change_rows_
from cactus_runtime.integrations.vllm.ledger import Ledger, charge_rows
from cactus_runtime.integrations.vllm.requests import Requests, RequestSettings
from cactus_runtime.integrations.vllm.runners import DraftedRows, Runner, rebound, runner_of
from cactus_runtime.integrations.vllm.settings import Settings

_NAMES = ("blocks", "drafted_tokens", "accepted_tokens", "rejected_tokens")


class Booster:
    """Changes the target's logits of drafted tokens while a stock rejection sampler runs.

    Rules with candidates shift the drafted token's logit; for these nothing waits for the device:
    counts stay there until they are read. Other rules replace the row. Rows of greedy requests are
    neither changed nor counted.

    Parameters
    ----------
    settings : Settings
        Of requests without their own. May be replaced between two steps of the engine.
    given : RequestSettings, optional
        Reads the settings of requests.

    Attributes
    ----------
    settings : Settings

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> Booster(Settings(Cactus(0.5))).statistics()["drafted_tokens"]
    0
    """

    def __init__(self, settings: Settings, given: RequestSettings | None = None) -> None:
        self.settings = settings
        self._given = given
        self._requests: Requests | None = None
        self._slots: Sequence[int] | None = None
        self._ledger = Ledger()
        self.forget()

    def forget(self) -> None:
        """Reset the counts; sums of single requests go on."""
        self._counts = torch.zeros(len(_NAMES), dtype=torch.int64)
        self._ledger.forget()

    def install(self, sampler: Any, model_runner: Any = None) -> None:
        """Attach to a sampler of vLLM, as its attribute ``cactus``.

        Parameters
        ----------
        sampler : RejectionSampler
        model_runner : optional
            The sampler's; without one all requests have the engine's settings.

        Raises
        ------
        RuntimeError
            If the sampler, or the function it calls, is not a known one.
        """
        runner = runner_of(sampler)
        method = getattr(type(sampler), runner.method)
        boosted = rebound(method, "rejection_sample", lambda stock: self.around(stock, runner))
        if model_runner is not None:
            self._requests = runner.requests(model_runner)
        if runner.slots is not None:
            boosted = self._noting(boosted, runner.slots)
        setattr(sampler, runner.method, MethodType(boosted, sampler))
        sampler.cactus = self

    def _noting(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The method, after which slots its argument `name` has were noted."""
        signature = inspect.signature(method)

        def noting(*args: Any, **kwargs: Any) -> Any:
            self._slots = signature.bind(*args, **kwargs).arguments[name].tolist()
            return method(*args, **kwargs)

        return noting

    def around(self, sample: Callable[..., Any], runner: Runner) -> Callable[..., Any]:
        """The function `sample` of a runner, with the rules applied.

        Raises
        ------
        RuntimeError
            If its parameters are not the known ones; from a call, if it sets one that is not known.
        """
        signature = runner.signature(sample)

        def boosted(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            runner.check_unknown(bound)
            arguments, (names, own) = bound.arguments, self._arrived()
            if not all(settings.is_lossless for settings in {self.settings, *own.values()}):
                # half precision would round what is changed
                arguments["target_logits"] = arguments["target_logits"].float()
            drafts = runner.drafts(arguments)
            if drafts is None:
                return sample(*args, **kwargs)
            where = drafts.drafted & (drafts.temperature > 0)[drafts.request]
            if len(names) != len(drafts.temperature):  # a dummy batch
                names, own = [None] * len(drafts.temperature), {}
            rows = _by_settings(drafts, where, self.settings, own)
            charges, charged = None, {each: at for each, at in rows.items() if each.is_charged}
            if charged:
                before = self._ledger.before(names, drafts.temperature)
                charges, within = charge_rows(drafts, charged, before[:, -1])
                rows |= within
            undo = change_rows_(drafts, rows, emitted=self.settings.logprobs == "emitted")
            output = sample(*bound.args, **bound.kwargs)
            undo()  # log-probabilities are read from them
            accepted = runner.accepted(output)
            self._count(drafts, where, accepted)
            if charges is not None:
                some = torch.stack(list(charged.values())).any(0)
                self._ledger.add(names, before, drafts, charges, some, accepted)
            return output

        return boosted

    def _arrived(self) -> tuple[list[str | None], dict[int, Settings]]:
        """Names of the requests, and by their place in the batch the settings some have."""
        if self._requests is None or self._given is None:
            return [], {}
        arrived = self._requests.batch(self._slots)
        found = [self._given.of(extra_args, self.settings) for _, extra_args in arrived]
        own = {i: settings for i, settings in enumerate(found) if settings is not None}
        return [name for name, _ in arrived], own

    def _count(self, drafts: DraftedRows, where: torch.Tensor, accepted: torch.Tensor) -> None:
        drafted = torch.zeros_like(drafts.temperature, dtype=torch.int64)
        drafted = drafted.index_add(0, drafts.request, where.long())
        blocks = drafted > 0
        kept = torch.where(blocks, accepted.long(), 0)
        sums = torch.stack([blocks.sum(), drafted.sum(), kept.sum(), (kept < drafted).sum()])
        self._counts = self._counts.to(sums.device) + sums

    def statistics(self) -> dict[str, Any]:
        """The counts since the last `forget`.

        Returns
        -------
        dict
            ``blocks``, requests verified; ``drafted_tokens``; ``accepted_tokens``;
            ``rejected_tokens``, blocks that ended at a rejection; ``acceptance_rate`` =
            accepted / (accepted + rejected), of the tokens that were judged; ``block_efficiency``
            = 1 + accepted / blocks, tokens emitted per target pass. The rates are None where
            nothing was counted. Where requests are charged, ``ledger`` has `Ledger.statistics`.
        """
        counts = dict(zip(_NAMES, self._counts.tolist(), strict=True))
        blocks, _, accepted, rejected = counts.values()
        ledger = self._ledger.statistics()
        return {
            **counts,
            "acceptance_rate": accepted / (accepted + rejected) if blocks else None,
            "block_efficiency": 1 + accepted / blocks if blocks else None,
            **({"ledger": ledger} if ledger["judged_tokens"] or ledger["requests"] else {}),
        }


def _by_settings(
    drafts: DraftedRows, where: torch.Tensor, common: Settings, own: dict[int, Settings]
) -> dict[Settings, torch.Tensor]:
    """The rows of `where`, by the settings of their requests."""
    if not own:
        return {common: where}
    settings = [own.get(i, common) for i in range(len(drafts.temperature))]
    found = {}
    for each in dict.fromkeys(settings):
        mine = torch.tensor([other == each for other in settings], device=where.device)
        found[each] = where & mine[drafts.request]
    return found
