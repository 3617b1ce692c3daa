"""One call for tokens and distributions that are all at hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.recording import Recording
from cactus_theory.rules import Rule
from cactus_theory.testing._alternatives import ALTERNATIVES, Alternative, other
from cactus_theory.testing._audit import Audit
from cactus_theory.testing._auditor import Auditor
from cactus_theory.testing._positions import merged_remainders, rows_of


def audit(
    tokens: Any,
    *,
    target: Any,
    draft: Any = None,
    others: Mapping[str, Any] | None = None,
    lengths: Iterable[int] | None = None,
    rule: Rule | None = None,
    num_draft_tokens: int | None = None,
    max_new_tokens: int | None = None,
    alternatives: Sequence[Alternative] = ALTERNATIVES,
    level: float = 1e-6,
    tolerance: float = 0.0,
    seed: int = 0,
) -> Audit:
    """Test whether tokens were drawn from the distributions of their positions.

    See `Auditor` for the test, which reads one position at a time.

    Parameters
    ----------
    tokens : int array_like, shape (T,)
        One text, or several one after the other.
    target, draft : array_like, shape (T, V), iterator of T array_like of shape (V,), or Recording
        Distributions q and p of each token given those before it, after temperature and filters.
        A `Recording` as `target` gives both; the tokens it left out are one token to the test.
    others : mapping of str to the same, optional
        Other distributions that the sampler may have used: without its filters, say.
    lengths : iterable of int, optional
        Tokens of each text; with `num_draft_tokens`, every text begins a block.
    rule, num_draft_tokens, max_new_tokens, alternatives, level, tolerance, seed
        As for `Auditor`.

    Returns
    -------
    Audit

    Raises
    ------
    TypeError, ValueError
        If rows are missing, one is not a distribution, or an argument is out of its range.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> rows = rng.dirichlet(np.ones(5), size=400)
    >>> fair = [rng.choice(5, p=row) for row in rows]
    >>> audit(fair, target=rows).consistent
    True
    >>> greedy = rows.argmax(axis=1)
    >>> found = audit(greedy, target=rows)
    >>> found.consistent, found.likely.family
    (False, 'greedy (the most probable token)')
    """
    ids = np.asarray(tokens)
    if ids.dtype.kind not in "iu" or ids.ndim != 1 or ids.size == 0:
        raise ValueError(
            f"tokens must be integers of shape (T,) with T >= 1, got {ids.dtype} {ids.shape}"
        )
    if isinstance(target, Recording):
        if draft is not None:
            raise ValueError("draft must be None where target is a Recording, which has its own")
        ids, draft, target = merged_remainders(target, ids)
    ends = _ends(lengths, ids.size)
    auditor = Auditor(
        rule=rule,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=max_new_tokens,
        alternatives=(*alternatives, *_missing(alternatives, others or {})),
        level=level,
        tolerance=tolerance,
        seed=seed,
    )
    named = {"target": target, "draft": draft, **(others or {})}
    rows: dict[str, Iterator[Any]] = {
        name: rows_of(name, given, ids.size) for name, given in named.items() if given is not None
    }
    for i, token in enumerate(ids):
        found = {name: next(given) for name, given in rows.items()}
        auditor.add(
            int(token),
            target=found.pop("target"),
            draft=found.pop("draft", None),
            others=found,
        )
        if i + 1 in ends:
            auditor.new_text()
    return auditor.result()


def _missing(alternatives: Sequence[Alternative], names: Iterable[str]) -> list[Alternative]:
    """Alternatives for the other distributions that none reads yet."""
    read = {a.needs for a in alternatives}
    return [other(name) for name in names if name not in read]


def _ends(lengths: Iterable[int] | None, total: int) -> set[int]:
    """Numbers of tokens after which a text ends."""
    if lengths is None:
        return {total}
    ends = list(accumulate(_validate.integer("lengths", n, 1) for n in lengths))
    if not ends or ends[-1] != total:
        raise ValueError(f"lengths must sum to the {total} tokens, got {ends[-1] if ends else 0}")
    return set(ends)
