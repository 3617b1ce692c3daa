"""What a rule, a law or a formula should be tried on: inputs chosen to break it.

Knows how to generate valid input and nothing of what should be true of it. Every value drawn is
accepted by the public functions; probabilities are 0 or at least about 1e-301, never subnormal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from cactus_theory.rules import (
    Cactus,
    CactusExact,
    CactusSafe,
    Clamp,
    Lenience,
    Mixture,
    OneLevelRecovery,
    Rule,
    SpeculativeSampling,
    TopKAcceptance,
    TypicalAcceptance,
)
from cactus_theory.testing._shapes import SMALLEST as SMALLEST
from cactus_theory.testing._shapes import Pair as Pair
from cactus_theory.testing._shapes import disjoint, laws_of_size, pairs_of_size, power_of_ten

LARGEST_BUDGET = 50.0


def target_probabilities() -> st.SearchStrategy[float]:
    """Probabilities of one token: 0, 1, the floats beside them, every magnitude from 1e-300 up.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(target_probabilities())
    ... def is_a_probability(q):
    ...     assert q == 0 or 1e-300 <= q <= 1
    >>> is_a_probability()
    """
    special = [0.0, 1.0, SMALLEST, 1 - 2.0**-53, 2.0**-53, 0.5, 0.5 - 2.0**-54, 0.5 + 2.0**-53]
    return st.one_of(
        st.sampled_from(special),
        st.floats(SMALLEST, 1.0),
        st.floats(-300.0, 0.0).map(power_of_ten),
        st.floats(-15.9, 0.0).map(lambda exponent: 1 - 10.0**exponent),
    )


def budgets(*, smallest: float = 1e-12) -> st.SearchStrategy[float]:
    """Budgets in nats: exactly 0, and every magnitude from `smallest` to 50.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(budgets())
    ... def is_a_budget(delta):
    ...     assert delta == 0 or 1e-12 <= delta <= 50
    >>> is_a_budget()
    """
    special = [0.0, smallest, 0.03, 0.75, 1.0, 1.2564312086261697, 10.0, LARGEST_BUDGET]
    exponents = st.floats(float(np.log10(smallest)), float(np.log10(LARGEST_BUDGET)))
    clip = lambda delta: min(max(delta, smallest), LARGEST_BUDGET)  # noqa: E731
    return st.one_of(
        st.floats(max(0.01, smallest), max(1.0, smallest)),  # boosts neither void nor capped
        st.sampled_from([delta for delta in special if delta == 0 or delta >= smallest]),
        exponents.map(lambda exponent: clip(10.0**exponent)),
    )


class RaggedBatch(NamedTuple):
    """Rows of a batch with k_0, k_1, ... drafted tokens: one array of each per row.

    ``tokens[i]`` has shape (k_i,), ``draft[i]`` (k_i, V) and ``target[i]`` (k_i + 1, V); each token
    has a positive probability under the draft's law at its place.
    """

    tokens: list[np.ndarray]
    draft: list[np.ndarray]
    target: list[np.ndarray]


def rules() -> st.SearchStrategy[Rule]:
    """The rules of the paper and plain speculative sampling, with budgets from `budgets`.

    All of them have candidates; `all_rules` draws the others as well.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(rules())
    ... def raises_the_drafted_token(rule):
    ...     assert 0.25 <= rule.boost(0.25) <= 1
    >>> raises_the_drafted_token()
    """
    return st.one_of(
        st.just(SpeculativeSampling()),
        budgets().map(Cactus),
        budgets().map(CactusExact),
    )


def all_rules() -> st.SearchStrategy[Rule]:
    """Every rule of the package, also those that bound nothing.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(all_rules())
    ... def never_accepts_more_than_was_drafted(rule):
    ...     draft, target = np.array([0.75, 0.25]), np.array([0.5, 0.5])
    ...     assert (rule.accepted_mass(draft, target) <= draft).all()
    >>> never_accepts_more_than_was_drafted()
    """
    return rules_of(Rule)


def rules_of(kind: type) -> st.SearchStrategy[Rule]:
    """Every rule of the package that is of a kind, `Rule` for all.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(rules_of(Lenience))
    ... def is_lenient(rule):
    ...     assert 0 < rule.lenience <= 1
    >>> is_lenient()
    """
    fractions = st.one_of(st.sampled_from([0.5, 1.0]), st.floats(1e-3, 1.0))
    weights = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0))
    made: dict[type, st.SearchStrategy[Any]] = {
        SpeculativeSampling: st.just(SpeculativeSampling()),
        Cactus: budgets().map(Cactus),
        CactusExact: budgets().map(CactusExact),
        CactusSafe: budgets().map(CactusSafe),
        Clamp: budgets().map(Clamp),
        OneLevelRecovery: st.builds(OneLevelRecovery, rules()),
        Lenience: fractions.map(Lenience),
        Mixture: weights.map(Mixture),
        TypicalAcceptance: st.builds(TypicalAcceptance, fractions),
        TopKAcceptance: st.integers(1, 9).map(TopKAcceptance),
    }
    return st.one_of(*(strategy for rule, strategy in made.items() if issubclass(rule, kind)))


def laws(*, min_size: int = 1, max_size: int = 8) -> st.SearchStrategy[np.ndarray]:
    """Probability laws: smooth, with exact zeros and ties, one-hot, or spread over 300 decades.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(laws(min_size=2, max_size=5))
    ... def is_a_law(law):
    ...     assert 2 <= law.size <= 5 and law.min() >= 0 and abs(law.sum() - 1) < 1e-15 * law.size
    >>> is_a_law()
    """
    return st.integers(min_size, max_size).flatmap(laws_of_size)


def pairs(*, min_size: int = 1, max_size: int = 8) -> st.SearchStrategy[Pair]:
    """Pairs (draft, target): unrelated, equal, an ulp apart, permuted, disjoint, one-hot.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(pairs(max_size=4))
    ... def share_a_vocabulary(pair):
    ...     assert pair.draft.shape == pair.target.shape
    >>> share_a_vocabulary()
    """
    return st.integers(min_size, max_size).flatmap(pairs_of_size)


def pairs_with_acceptance(
    rate: float, *, min_size: int = 2, max_size: int = 8
) -> st.SearchStrategy[Pair]:
    """Pairs with sum min(p, q) = `rate`, the acceptance rate of plain speculative sampling.

    p = rate c + (1 - rate) a and q = rate c + (1 - rate) b, a and b of disjoint supports; the sum
    is right but for the rounding of its terms.

    Raises
    ------
    ValueError
        If `rate` is outside [0, 1] or `min_size` < 2.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(pairs_with_acceptance(0.7))
    ... def accept_so_often(pair):
    ...     assert abs(np.minimum(pair.draft, pair.target).sum() - 0.7) < 1e-14
    >>> accept_so_often()
    """
    if not 0 <= rate <= 1 or min_size < 2:
        raise ValueError(f"got rate={rate!r}, min_size={min_size!r}")

    def join(parts: Any) -> Pair:
        common, (only_draft, only_target), order = parts
        order = list(order)
        draft = rate * common + (1 - rate) * only_draft[order]
        return Pair(draft, rate * common + (1 - rate) * only_target[order])

    def of_size(size: int) -> st.SearchStrategy[Pair]:
        apart = st.integers(1, size - 1).flatmap(lambda cut: disjoint(cut, size - cut))
        return st.tuples(laws_of_size(size), apart, st.permutations(range(size))).map(join)

    return st.integers(min_size, max_size).flatmap(of_size)


def logits(
    *, dtype: str = "bfloat16", min_size: int = 1, max_size: int = 8, masked: bool = True
) -> st.SearchStrategy[np.ndarray]:
    """Logits as float32 whose values are those of a coarser type: ties, large steps, -inf.

    Parameters
    ----------
    dtype : {"bfloat16", "float16", "float32"}
    masked : bool
        Whether some, never all, may be -inf.

    Raises
    ------
    ValueError
        If `dtype` is none of these.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(logits(dtype="float16"))
    ... def are_halves(row):
    ...     assert (row == row.astype(np.float16)).all() and np.isfinite(row).any()
    >>> are_halves()
    """
    if dtype not in ("bfloat16", "float16", "float32"):
        raise ValueError(f"dtype must be bfloat16, float16 or float32, got {dtype!r}")
    values = st.one_of(
        st.floats(-30.0, 30.0, width=32),
        st.integers(-3, 3).map(float),
        st.sampled_from([0.0, -0.0, 6e4, -6e4, 2.0**-14, 88.0, -104.0]),
    )
    entry = st.one_of(values, st.just(-np.inf)) if masked else values
    rows = st.lists(entry, min_size=min_size, max_size=max_size)
    return rows.filter(lambda row: max(row) > -np.inf).map(lambda row: _on_grid(row, dtype))


def ragged_batches(
    *, max_rows: int = 4, max_drafts: int = 4, min_size: int = 1, max_size: int = 6
) -> st.SearchStrategy[RaggedBatch]:
    """Batches whose rows have different numbers of drafted tokens, among them none.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(ragged_batches())
    ... def have_one_more_target(batch):
    ...     for tokens, draft, target in zip(*batch):
    ...         assert len(tokens) == len(draft) == len(target) - 1
    ...         assert all(row[token] > 0 for row, token in zip(draft, tokens))
    >>> have_one_more_target()
    """

    @st.composite
    def batches(draw: Any) -> RaggedBatch:
        size = draw(st.integers(min_size, max_size))
        lengths = draw(st.lists(st.integers(0, max_drafts), min_size=1, max_size=max_rows))
        batch = RaggedBatch([], [], [])
        for length in lengths:
            drafted = [draw(pairs_of_size(size)) for _ in range(length)]
            last = draw(laws_of_size(size))
            tokens = [draw(st.sampled_from(np.flatnonzero(p).tolist())) for p, _ in drafted]
            batch.tokens.append(np.array(tokens, dtype=np.int64))
            batch.draft.append(np.array([p for p, _ in drafted]).reshape(length, size))
            batch.target.append(np.array([*(q for _, q in drafted), last]))
        return batch

    return batches()


def _on_grid(row: list[float], dtype: str) -> np.ndarray:
    exact = np.array(row, dtype=np.float32)
    if dtype == "float16":
        return exact.astype(np.float16).astype(np.float32)
    if dtype == "float32":
        return exact
    bits = exact.view(np.uint32)
    even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (even & np.uint32(0xFFFF0000)).view(np.float32)
