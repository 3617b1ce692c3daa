"""How many tokens to draft on this machine, planned from measured costs and a short trial.

Knows measurements and the planning functions; nothing is decided while a text is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedModel

from cactus_runtime.bench.pass_costs import PassCosts, measure_costs
from cactus_runtime.decoder import Decoder
from cactus_runtime.request import Request
from cactus_theory.planning import speedup

_TRIAL_DRAFTS = 4


@dataclass(frozen=True)
class DraftPlan:
    """The best number of drafted tokens, and what it should give.

    Attributes
    ----------
    num_draft_tokens : int
        0 where plain decoding is the fastest.
    speedup : float
        Expected tokens per second over those of plain decoding, bare passes only.
    acceptance_rate : float
        Of the trial.
    costs : PassCosts
    """

    num_draft_tokens: int
    speedup: float
    acceptance_rate: float
    costs: PassCosts

    def __str__(self) -> str:
        k = max(self.num_draft_tokens, 1)
        prices = (
            f"a drafted token costs {self.costs.draft_cost:.2f} of a pass, a pass over {k + 1} "
            f"tokens {self.costs.verify_cost[k]:.2f}"
        )
        if not self.num_draft_tokens:
            return (
                f"{prices}: at an acceptance rate of {self.acceptance_rate:.2f}, drafting gives "
                "nothing on this machine"
            )
        return (
            f"{prices}: at an acceptance rate of {self.acceptance_rate:.2f}, {k} drafted "
            f"token{'s' * (k > 1)} should give {self.speedup:.2f} times plain decoding"
        )


def plan_costs(decoder: Decoder, *, max_draft_tokens: int = 8) -> PassCosts:
    """Costs of the passes of a decoder whose draft is a model, measured in a few seconds."""
    if not isinstance(decoder.draft, PreTrainedModel):
        raise TypeError(f"draft must be a model to be timed, got {decoder.draft!r}")
    return measure_costs(
        decoder.target, decoder.draft, max_draft_tokens=max_draft_tokens, repetitions=3
    )


def plan_drafts(
    decoder: Decoder, request: Request, costs: PassCosts, *, trial_tokens: int = 20
) -> DraftPlan:
    """Try a request briefly, and plan its number of drafted tokens from its acceptance rate.

    Parameters
    ----------
    decoder : Decoder
    request : Request
        Its rule and sampling decide the acceptance rate.
    costs : PassCosts
        Of the decoder's models, up to the largest number that may be planned.
    trial_tokens : int
        Tokens that the trial decodes; its text is not used.

    Returns
    -------
    DraftPlan

    Examples
    --------
    >>> costs = PassCosts(draft_cost=0.1, verify_cost=(1.0,) * 5, seconds=0.01)
    >>> plan = plan_drafts(Decoder("tiny"), Request("dog:", seed=1), costs)
    >>> 1 <= plan.num_draft_tokens <= 4, plan.speedup > 1
    (True, True)
    """
    most = len(costs.verify_cost) - 1
    trial = replace(
        request,
        num_draft_tokens=min(_TRIAL_DRAFTS, most),
        max_new_tokens=trial_tokens,
        eos_token_id=(),
    )
    rate = decoder.stream(trial).finish().acceptance_rate
    gains = [
        float(speedup(rate, k, draft_cost=costs.draft_cost, verify_cost=costs.verify_cost))
        for k in range(most + 1)
    ]
    best = int(np.argmax(gains))  # the smallest of equals
    return DraftPlan(best, gains[best], rate, costs)
