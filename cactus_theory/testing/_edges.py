"""The edge battery: inputs at which samplers were seen to break, and what must hold there."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from cactus_theory.rules import Rule, SpeculativeSampling
from cactus_theory.testing._errors import ConformanceError, Verifier, called

LARGEST = 1 - 2.0**-53

LAWS = {
    "draft = target": ([0.1, 0.2, 0.7], [0.1, 0.2, 0.7]),
    "draft = target, with zeros": ([0.0, 0.3, 0.0, 0.7], [0.0, 0.3, 0.0, 0.7]),
    "target 0 where the draft is not": ([0.5, 0.25, 0.25], [0.0, 0.5, 0.5]),
    "disjoint supports": ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.25, 0.75]),
    "one-hot target": ([0.25, 0.5, 0.25], [0.0, 0.0, 1.0]),
    "one-hot draft": ([0.0, 1.0, 0.0], [0.5, 0.25, 0.25]),
    "one-hot draft and target, apart": ([1.0, 0.0], [0.0, 1.0]),
    "one token": ([1.0], [1.0]),
    "leading and trailing zeros in the residual": ([0.0, 0.75, 0.25, 0.0], [0.0, 0.25, 0.75, 0.0]),
    "padded vocabulary": ([0.5, 0.25, 0.25, 0.0, 0.0], [0.25, 0.25, 0.5, 0.0, 0.0]),
    "draft mass on the padding": ([0.25, 0.25, 0.25, 0.25], [0.25, 0.5, 0.25, 0.0]),
}


def check_edges(
    sampler: Verifier,
    rule: Rule | None = None,
    *,
    largest_uniform: float = LARGEST,
) -> None:
    """Try a verifier on the edge battery, and report everything that fails at once.

    At every pair of laws, drafted token and uniforms in {0, 1/2, largest}: nothing raises; a token
    is emitted that is in the vocabulary; one of no accepted mass is never kept (also at u = 0), one
    whose mass is all accepted always is (also at the largest u); a recovered token has positive
    recovery weight, so that padding, zeros and rejected tokens are not emitted. Where draft and
    target differ in the last bit a rejection leaves an empty residual: nothing may crash, and the
    token must be one of the target's. A row of NaN must raise, or emit a token of the vocabulary
    without accepting the drafted one.

    Parameters
    ----------
    sampler : callable (token, draft, target, accept_uniform, recover_uniform) -> (int, bool)
    rule : Rule, optional
        What it is meant to follow; plain speculative sampling if not given.
    largest_uniform : float
        The largest number below 1 in the sampler's arithmetic: 1 - 2**-24 for float32.

    Raises
    ------
    ConformanceError
        Naming each case that failed, once.

    See Also
    --------
    check_block_edges : the same in ragged batches, among them rows that have no draft.

    Examples
    --------
    >>> from cactus_theory.testing import check_edges, specification_verifier
    >>> check_edges(specification_verifier(SpeculativeSampling()))
    >>> def loose(token, draft, target, accept, recover):
    ...     accepted = accept * draft[token] <= target[token]
    ...     return (token if accepted else int(np.argmax(target - draft))), accepted
    >>> check_edges(loose)
    Traceback (most recent call last):
    ...
    cactus_theory.testing.ConformanceError: ...target 0 where the draft is not, u = 0...
    """
    rule = SpeculativeSampling() if rule is None else rule
    uniforms = (0.0, 0.5, largest_uniform)
    failures: dict[str, str] = {}
    for case, (p, q) in LAWS.items():
        draft, target = np.array(p), np.array(q)
        for token, u, v in product(np.flatnonzero(draft).tolist(), uniforms, uniforms):
            fault = _fault(sampler, rule, token, draft, target, u, v)
            if fault:
                failures.setdefault(case, f"{case}, u = {u:.17g}, v = {v:.17g}: {fault}")
    for case, fault in (
        ("empty residual", empty_residual(sampler, largest_uniform)),
        ("NaN row", not_a_number(sampler)),
    ):
        if fault:
            failures[case] = f"{case}: {fault}"
    if failures:
        listed = "\n  ".join(failures.values())
        raise ConformanceError(f"{len(failures)} edge cases of {rule!r} fail:\n  {listed}")


def _fault(
    sampler: Verifier, rule: Rule, token: int, draft: Any, target: Any, u: float, v: float
) -> str | None:
    """What is wrong with one call, or None."""
    mass = rule.accepted_mass(draft, target)[token]
    try:
        emitted, accepted = called(sampler, token, draft.copy(), target.copy(), u, v)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if accepted and mass == 0:
        return f"accepted token {token}, which has no chance of acceptance"
    if not accepted and mass >= draft[token]:
        return f"rejected token {token}, which is always accepted"
    if not accepted:
        weights = rule.recovery_weights(token, draft, target)
        weights = weights if weights.sum() > 0 else target
        if not weights[emitted] > 0:
            return f"recovered token {emitted}, whose recovery weight is 0"
    return None


def empty_residual(sampler: Verifier, largest: float) -> str | None:
    step = 1 - largest
    target = np.array([0.5, 0.5, 0.0])
    draft = target + np.array([step, 0.0, 0.0])
    for v in (0.0, largest):
        try:
            emitted, _ = called(sampler, 0, draft.copy(), target.copy(), largest, v)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if not target[emitted] > 0:
            return f"emitted token {emitted}, whose target probability is 0"
    return None


def not_a_number(sampler: Verifier) -> str | None:
    draft, target = np.array([0.5, 0.5]), np.array([np.nan, np.nan])
    try:
        _, accepted = called(sampler, 0, draft, target, 0.5, 0.5)
    except ConformanceError as error:
        return str(error)
    except Exception:
        return None
    return "accepted a token of unknown probability" if accepted else None
