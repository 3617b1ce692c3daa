"""The catalogue of common mistakes.

A mistake changes how tokens are drafted, how one position is judged, or how a whole block is
processed. Only a sampler that drafts its own tokens can make the first kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cactus_theory.rules import (
    Cactus,
    CactusExact,
    Lenience,
    Mixture,
    SpeculativeSampling,
    TopKAcceptance,
    TypicalAcceptance,
)
from cactus_theory.testing._block import Position
from cactus_theory.testing._block_mistakes import (
    accepted,
    by_one_uniform,
    counting,
    ending,
    last_residual,
    not_cut,
    one_lost,
    recovering_at,
    rejected_too,
    replayed,
    showing,
    targeting,
    verified_on,
    without_bonus,
    without_recovered,
)
from cactus_theory.testing._mistakes import (
    Mistake,
    all_accepted,
    at,
    by_the_same_uniform,
    drafted_at,
    judged_as,
    judging,
    recovering,
    residual_argmax,
    tempered,
    top_of,
    unrescaled,
    without_draft,
)


def _grid(values: Any) -> tuple[float, ...]:
    return tuple(float(x) for x in values)


_TEMPERATURES = _grid(np.geomspace(0.05, 8.0, 31))
_BUDGETS = _grid(np.geomspace(1e-4, 20.0, 37))
_COUNTS = _grid(range(1, 65))

CATALOGUE: tuple[Mistake, ...] = (
    Mistake("plain speculative sampling (no boost)", judging(lambda _: SpeculativeSampling())),
    Mistake("everything accepted (the draft itself)", at(all_accepted)),
    Mistake("residual not rescaled", recovering(unrescaled)),
    Mistake("recovery from the target", recovering(lambda p: p.target)),
    Mistake("recovery of the residual's argmax", recovering(residual_argmax)),
    Mistake("recovery of the target's argmax", recovering(lambda p: tempered(p.target, 0.0))),
    Mistake("acceptance without the draft's probability", at(without_draft)),
    Mistake(
        "judged with draft and target exchanged",
        at(lambda p, _: judged_as(p, p.target, p.draft)),
    ),
    Mistake(
        "the uniform that rejected also draws the recovered token",
        recovering(by_the_same_uniform),
    ),
    Mistake("typical acceptance", judging(lambda _: TypicalAcceptance())),
    Mistake(
        "mixture w = {:.3g}", judging(Mixture), grid=_grid(np.linspace(0.0, 1.0, 21)), usual=(0.5,)
    ),
    Mistake(
        "lenience l = {:.3g}",
        judging(Lenience),
        grid=_grid(np.linspace(0.04, 1.0, 25)),
        usual=(0.5,),
    ),
    Mistake(
        "judged by the draft at temperature {:.3g}",
        at(lambda p, t: judged_as(p, tempered(p.draft, t), p.target)),
        grid=_TEMPERATURES,
        usual=(0.5, 0.7, 1.5),
    ),
    Mistake(
        "draft and target exchanged",
        at(lambda p, _: Position.of(p.rule, p.target, p.draft)),
        "drafting",
    ),
    Mistake(
        "greedy draft, judged as if it were sampled",
        at(lambda p, _: drafted_at(p, 0.0)),
        "drafting",
    ),
    Mistake("draft temperature {:.3g}", at(drafted_at), "drafting", _TEMPERATURES, (0.5, 0.7, 1.5)),
    Mistake("Cactus, delta = {:.3g}", judging(Cactus), grid=_BUDGETS, usual=(0.5, 1.0)),
    Mistake("CactusExact, delta = {:.3g}", judging(CactusExact), grid=_BUDGETS, usual=(0.5, 1.0)),
    Mistake(
        "the target's top {:.0f}", targeting(top_of), grid=_COUNTS, usual=(1.0,), between=False
    ),
    Mistake(
        "top-k acceptance, k = {:.0f}",
        judging(lambda k: TopKAcceptance(int(k))),
        grid=_COUNTS,
        usual=(1.0,),
        between=False,
    ),
    *(
        Mistake(name, wrong, "block")
        for name, wrong in {
            "the count includes the recovered or bonus token": counting(
                lambda kept: accepted(kept) + 1
            ),
            "the count is one too small": counting(lambda kept: max(accepted(kept) - 1, 0)),
            "the count goes on after the first rejection": counting(sum),
            "drafted tokens after the rejection are not cut": showing(not_cut),
            "positions after the rejection are verified on": verified_on,
            "off by one: the rejected token is kept": showing(rejected_too),
            "off by one: the last accepted token is lost": showing(one_lost),
            "no bonus token": showing(without_bonus),
            "no token after a rejection": showing(without_recovered),
            "bonus drawn from the draft at the last position": ending(lambda b: b.draft[-1]),
            "bonus drawn from the target one position early": ending(lambda b: b.target[-2]),
            "bonus drawn from a residual": ending(last_residual),
            "bonus is the target's argmax": ending(lambda b: tempered(b.target[-1], 0.0)),
            "residual of the first position": recovering_at(lambda place, k: 0),
            "residual of the last position": recovering_at(lambda place, k: k - 1),
            "residual of the next position": recovering_at(lambda place, k: min(place + 1, k - 1)),
            "residual of the position before": recovering_at(lambda place, k: max(place - 1, 0)),
            "target one position late": targeting(lambda q, _: q[[0, *range(len(q) - 1)]]),
            "target one position early": targeting(lambda q, _: q[[*range(1, len(q)), -1]]),
            "one uniform for the whole block": lambda block, _: replayed(
                block, passes=by_one_uniform
            ),
        }.items()
    ),
)
