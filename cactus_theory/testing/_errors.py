"""What a check raises, and the one call of a verifier that all checks make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Verifier = Callable[[int, Any, Any, Any, Any], tuple[Any, Any]]


class ConformanceError(AssertionError):
    """A sampler does not follow its rule; the message says what it looks like instead.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> from cactus_theory.testing import check_by_enumeration
    >>> keeps_all = lambda token, draft, target, accept, recover: (token, True)
    >>> check_by_enumeration(keeps_all, SpeculativeSampling(), draft=[0.75, 0.25],
    ...                      target=[0.5, 0.5])
    Traceback (most recent call last):
    ...
    cactus_theory.testing.ConformanceError: ...
    """

    __module__ = "cactus_theory.testing"  # where users import it from, and read in tracebacks


def called(
    sampler: Verifier, token: int, draft: Any, target: Any, accept: Any, recover: Any
) -> tuple[int, bool]:
    """Call the verifier; its result must be a token of the vocabulary, the drafted one if kept."""
    emitted, accepted = sampler(token, draft, target, accept, recover)
    emitted, accepted = int(emitted), bool(accepted)
    if not 0 <= emitted < len(draft):
        raise ConformanceError(f"emitted {emitted}, outside a vocabulary of {len(draft)}")
    if accepted and emitted != token:
        raise ConformanceError(f"accepted drafted token {token} but emitted {emitted}")
    return emitted, accepted
