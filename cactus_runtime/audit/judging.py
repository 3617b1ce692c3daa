"""The audit of scored transcripts: tolerance, verdict, and how many tokens it would have taken."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from cactus_runtime.audit.scoring import Scored, Scorer
from cactus_runtime.audit.transcripts import Scorable
from cactus_theory.rules import Rule
from cactus_theory.testing import (
    Audit,
    Auditor,
    measured_tolerance,
    of_rule,
    tokens_to_tell,
)

MEASURED = 200  # positions at which two dtypes are compared


def audit_samples(
    samples: Sequence[Scorable],
    scorer: Scorer,
    *,
    rule: Rule | None = None,
    num_draft_tokens: int | None = None,
    max_new_tokens: int | None = None,
    level: float = 1e-6,
    tolerance: float = 0.0,
    on_sample: Callable[[], object] = lambda: None,
) -> tuple[Audit, list[Scored]]:
    """Judge transcripts by the distributions that a scorer gives their tokens.

    Parameters
    ----------
    samples : sequence of Scorable
    scorer : Scorer
    rule, num_draft_tokens, max_new_tokens, level, tolerance
        As for `cactus_theory.testing.Auditor`.
    on_sample : callable
        Called after each sample.

    Returns
    -------
    Audit
    list of Scored
        The first positions, for `tokens_for`.

    Examples
    --------
    >>> from cactus_runtime import SamplingParams, load_pair
    >>> scorer = Scorer(load_pair("tiny").target, sampling=SamplingParams())
    >>> found, _ = audit_samples([Scorable([5], [9] * 30)], scorer)
    >>> found.tokens, found.consistent
    (30, False)
    """
    auditor = Auditor(
        rule=rule,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=max_new_tokens,
        alternatives=scorer.alternatives,
        level=level,
        tolerance=tolerance,
    )
    first: list[Scored] = []
    for sample in samples:
        auditor.new_text()
        for row in scorer.score(sample):
            auditor.add(row.token, target=row.target, draft=row.draft, others=row.others)
            if len(first) < MEASURED:
                first.append(row)
        on_sample()
    return auditor.result(), first


def tolerance_of(
    samples: Sequence[Scorable], target: Any, scorer: Scorer, **settings: Any
) -> float:
    """How far the target in bfloat16 is from the scorer's target, in nats per token.

    Parameters
    ----------
    samples : sequence of Scorable
        The first `MEASURED` positions are read.
    target : PreTrainedModel
    scorer : Scorer
    **settings
        Of the second scorer, which reads the copy in bfloat16.

    Returns
    -------
    float
    """
    other = Scorer(copy.deepcopy(target).to(torch.bfloat16), **settings)
    exact, rough = [], []
    for sample in samples:
        rows = list(scorer.score(sample))
        exact += [row.target for row in rows]
        rough += [row.target for row in other.score(sample, [row.kept for row in rows])]
        if len(exact) >= MEASURED:
            break
    return measured_tolerance(np.array(rough), np.array(exact))


def tokens_for(
    rule: Rule, first: Sequence[Scored], *, level: float, power: float, tolerance: float
) -> float:
    """Tokens needed to tell a rule from the target, at positions such as those scored.

    Parameters
    ----------
    rule : Rule
    first : sequence of Scored
        With a draft.
    level, power, tolerance : float

    Returns
    -------
    float
    """
    return tokens_to_tell(
        of_rule(rule, f"{rule}"),
        target=np.array([row.target for row in first]),
        draft=np.array([row.draft for row in first]),
        level=level,
        power=power,
        tolerance=tolerance,
    )
