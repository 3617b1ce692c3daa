r"""How probable a text is under a block decoder with a lossy rule.

Knows both models' rows along a text, not the models. Let p and q be the draft's and the target's
distribution of the next token, out = out(p, q) what the rule emits at a verified position, and m
the mass that it accepts. A *path* is a text together with which of its tokens were verified, that
is accepted or recovered; the others are bonus or plain tokens, drawn from q.

A text has many paths. The sum of their probabilities is found by recursion over the phases j of a
block, A(i, j) being the chance of i tokens of which j belong to the block under way:

    A(i+1, j+1) += A(i, j) m(x),  A(i+1, 0) += A(i, j) (out - m)(x)    where a draft is verified,
    A(i+1, 0) += A(i, j) q(x)                                          at the end of a block.

This takes O(k) steps a token. Under block verification (`block_verification`) a token is accepted,
given that its block has come to it, with min(out(x), p(x) / s) in place of m(x), s being the chance
that the drafts before it survive.

The recursion needs a known number of drafts at every position, and one row of the draft for every
position. With a number that depends on what was drafted, or a budget, which makes the rule at a
position depend on the path, the phase does not determine what follows. A text then has no such sum,
but its paths still have probabilities and weights (`path_weights`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cactus_theory import _validate
from cactus_theory._forward import LOGS, prefix_totals
from cactus_theory.divergences import kl, total_variation
from cactus_theory.emitted import accepted_and_emitted
from cactus_theory.rules import Rule

Verification = Literal["token", "block"]


@dataclass(frozen=True)
class TokenProbabilities:
    """Probabilities of each token of a text, and the cost of its position.

    Positions at and after the end of a text shorter than T hold probabilities of 1 and costs of 0,
    so that they change no product and no sum.

    Attributes
    ----------
    rule : Rule
    lengths : int64 array, shape (...)
        Tokens of each text.
    draft, target : float64 array, shape (..., T)
        p(x) and q(x).
    accepted : float64 array, shape (..., T)
        m(x), the chance that x is drafted and accepted where the position is verified.
    emitted : float64 array, shape (..., T)
        out(x), the chance that x is emitted there, accepted or recovered.
    kl : float64 array, shape (..., T)
        KL(out || q) of the position, in nats.
    total_variation : float64 array, shape (..., T)
        TV(out, q) of the position.
    coverage : float64 array, shape (..., T)
        Sum of q over the tokens with out > 0. Where it is below 1, weights miss the rest.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> found = token_probabilities(
    ...     [0, 1], draft=[[0.75, 0.25]] * 2, target=[[0.5, 0.5]] * 2, rule=Cactus(0.02))
    >>> found.accepted.round(3), found.emitted.round(3)
    (array([0.6 , 0.25]), array([0.6, 0.4]))
    """

    rule: Rule
    lengths: np.ndarray
    draft: np.ndarray
    target: np.ndarray
    accepted: np.ndarray
    emitted: np.ndarray
    kl: np.ndarray
    total_variation: np.ndarray
    coverage: np.ndarray


def token_probabilities(
    tokens: Any, *, draft: Any, target: Any, rule: Rule, lengths: Any = None
) -> TokenProbabilities:
    """Probability that a rule accepts and emits each token of a text, from both models' rows.

    Rows are read one position at a time and processed one text at a time, so that beyond the input
    only a few rows of float64 are held at once, for any T.

    Parameters
    ----------
    tokens : int array_like, shape (..., T)
    draft, target : array_like, shape (..., T, V), or iterator of T array_like, shape (..., V)
        Distributions p and q of the token at each position given those before it, after temperature
        and filters. Leading axes broadcast to those of `tokens`.
    rule : Rule
        Any rule; it need not be ordered.
    lengths : int array_like, shape (...), optional
        Tokens of each text, from 1 to T, T if not given; later rows are not read.

    Returns
    -------
    TokenProbabilities

    Raises
    ------
    TypeError, ValueError
        If the draft has no distributions, a row is not a distribution, rows are missing, a token
        lies outside the vocabulary, or `rule` is not a Rule.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> draft, target = iter([[0.75, 0.25]]), iter([[0.5, 0.5]])
    >>> found = token_probabilities([0], draft=draft, target=target, rule=Cactus(0.02))
    >>> found.emitted.round(3), found.total_variation.round(3), found.coverage
    (array([0.6]), array([0.1]), array([1.]))
    """
    tokens = _tokens(tokens)
    *batch, length = tokens.shape
    if not isinstance(rule, Rule):
        raise TypeError(f"rule must be a Rule, got {rule!r}")
    lengths = _lengths(lengths, tuple(batch), length)
    rows = [_rows(name, rows, length) for name, rows in (("draft", draft), ("target", target))]
    columns = [np.full(tokens.shape, fill) for fill in (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0)]
    for i in range(length):
        pair = [_next_row(*named, tuple(batch), i, length) for named in rows]
        for at in np.ndindex(*batch):
            if i < lengths[at]:
                found = _of_token(int(tokens[(*at, i)]), rule, pair[0][at], pair[1][at])
                for column, value in zip(columns, found, strict=True):
                    column[(*at, i)] = value
    return TokenProbabilities(rule, lengths, *columns)


def prefix_log_likelihood(
    probabilities: TokenProbabilities,
    *,
    num_draft_tokens: Any,
    max_new_tokens: int | None,
    verification: Verification = "token",
) -> np.ndarray:
    r"""Log-probability that the decoder's text begins with the first 1, 2, ..., T tokens.

    log sum_j A(i, j), for i = 1..T, with A as in the module's docstring. Differences of successive
    entries are log P(x_i | x_1 ... x_(i-1)) of the decoder. O(T k) time.

    Parameters
    ----------
    probabilities : TokenProbabilities
    num_draft_tokens : int >= 0, or int array_like that broadcasts to (..., T)
        Drafted tokens per block k; an array gives that of a block which begins at each position,
        which may depend on the text before it.
    max_new_tokens : int or None
        N, the longest text the decoder emits: a block that begins after s tokens has
        min(k, N - s - 1) drafts. None: no block is shortened.
    verification : {"token", "block"}
        How a block's drafts are verified.

    Returns
    -------
    float64 array, shape (..., T)
        Nats, non-increasing; -inf from the first token that cannot be emitted. After the end of a
        text shorter than T the value stays.

    Raises
    ------
    TypeError, ValueError
        If the number of drafts is not fixed, a text is longer than `max_new_tokens`, or
        `verification` is "block" and the rule is not ordered.

    References
    ----------
    Ours.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> found = token_probabilities(
    ...     [0, 1], draft=[[0.75, 0.25]] * 2, target=[[0.5, 0.5]] * 2, rule=Cactus(0.02))
    >>> np.exp(prefix_log_likelihood(found, num_draft_tokens=1, max_new_tokens=2)).round(6)
    array([0.6, 0.3])
    """
    if verification not in ("token", "block"):
        raise ValueError(f"verification must be 'token' or 'block', got {verification!r}")
    rule = probabilities.rule
    if verification == "block" and not rule.ordered:
        raise ValueError(f"block verification needs an ordered rule, got {rule!r}")
    drafts = _drafts(num_draft_tokens, max_new_tokens, probabilities)
    totals = prefix_totals(
        draft=probabilities.draft,
        target=probabilities.target,
        accepted=np.minimum(probabilities.accepted, probabilities.emitted),  # up to rounding
        emitted=probabilities.emitted,
        drafts=drafts,
        block=verification == "block",
        numbers=LOGS,
    )
    return np.stack(list(totals), axis=-1)


def text_log_likelihood(
    tokens: Any,
    *,
    draft: Any,
    target: Any,
    rule: Rule,
    num_draft_tokens: Any,
    max_new_tokens: int | None,
    lengths: Any = None,
    verification: Verification = "token",
) -> np.ndarray:
    """Exact log-probability of given texts under the lossy decoder.

    It sums over all ways in which the tokens may have been accepted, recovered or drawn after a
    block. For a text that ended by itself (with an end-of-sequence token or a stop string) or has
    `max_new_tokens` tokens, it is the probability of the text. For any other text it is the
    probability that the decoder's text begins with it.

    Parameters
    ----------
    tokens : int array_like, shape (..., T)
    draft, target : array_like, shape (..., T, V), or iterator of T array_like, shape (..., V)
        As for `token_probabilities`; iterators need only one row in memory at a time.
    rule : Rule
        Any rule; for block verification an ordered one.
    num_draft_tokens : int >= 0, or int array_like that broadcasts to (..., T)
    max_new_tokens : int or None
        The decoder's limit, which shortens the last blocks; None where no block is shortened.
    lengths : int array_like, shape (...), optional
        Tokens of each text, T if not given.
    verification : {"token", "block"}

    Returns
    -------
    float64 array, shape (...)
        Nats; -inf of a text that cannot be emitted.

    Raises
    ------
    TypeError, ValueError
        As `token_probabilities` and `prefix_log_likelihood`.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> settings = {"rule": Cactus(0.02), "num_draft_tokens": 1, "max_new_tokens": 2}
    >>> texts = [[0, 0], [0, 1], [1, 0], [1, 1]]
    >>> logs = text_log_likelihood(
    ...     texts, draft=[[0.75, 0.25]] * 2, target=[[0.5, 0.5]] * 2, **settings)
    >>> np.exp(logs).round(6), round(float(np.exp(logs).sum()), 6)
    (array([0.3, 0.3, 0.2, 0.2]), 1.0)
    """
    found = token_probabilities(tokens, draft=draft, target=target, rule=rule, lengths=lengths)
    return prefix_log_likelihood(
        found,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=max_new_tokens,
        verification=verification,
    )[..., -1]


def _of_token(token: int, rule: Rule, p: Any, q: Any) -> tuple[float, ...]:
    p, q = _validate.law_pair(draft=p, target=q)
    _validate.token("tokens", token, q.shape[-1])
    accepted, out = accepted_and_emitted(rule, p, q)
    costs = float(kl(out, q)), float(total_variation(out, q))
    covered = 1.0 if (out > 0).all() else float(q.sum(where=out > 0))
    return (*(float(x[token]) for x in (p, q, accepted, out)), *costs, covered)


def _tokens(tokens: Any) -> np.ndarray:
    array = np.asarray(tokens)
    if array.dtype.kind not in "iu":
        raise TypeError(f"tokens must be integers, got an array of {array.dtype}")
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"tokens must have shape (..., T) with T >= 1, got shape {array.shape}")
    return array


def _lengths(lengths: Any, batch: tuple[int, ...], most: int) -> np.ndarray:
    array = np.asarray(most if lengths is None else lengths)
    if array.dtype.kind not in "iu":
        raise TypeError(f"lengths must be integers, got {lengths!r}")
    if not ((array >= 1) & (array <= most)).all():
        raise ValueError(f"lengths must lie in [1, {most}], got {lengths!r}")
    if lengths is not None and array.shape != batch:
        raise ValueError(f"lengths must have shape {batch}, got {array.shape}")
    return np.broadcast_to(array, batch).astype(np.int64)


def _rows(name: str, rows: Any, length: int) -> tuple[str, Iterator[Any]]:
    """The name of the argument, and its rows by position."""
    if rows is None:
        raise TypeError(
            f"{name} must be distributions, got None: a draft that gives its tokens no "
            "probabilities leaves texts without a likelihood"
        )
    if isinstance(rows, Iterator):
        return name, rows
    array = np.asarray(rows)
    if array.ndim < 2 or array.shape[-2] != length:
        raise ValueError(f"{name} must have shape (..., {length}, V), got shape {array.shape}")
    return name, iter(np.moveaxis(array, -2, 0))


def _next_row(
    name: str, rows: Iterator[Any], batch: tuple[int, ...], place: int, length: int
) -> np.ndarray:
    try:
        row = np.asarray(next(rows))
    except StopIteration:
        raise ValueError(f"{name} must have {length} rows, one a token, got {place}") from None
    try:
        return np.broadcast_to(row, (*batch, row.shape[-1]))
    except (ValueError, IndexError):
        raise ValueError(
            f"a row of {name} must have shape (V,) or {(*batch, 'V')}, got {row.shape}"
        ) from None


def _drafts(
    num_draft_tokens: Any, max_new_tokens: int | None, probabilities: TokenProbabilities
) -> np.ndarray:
    """Drafted tokens of a block that begins at each position."""
    shape = probabilities.target.shape
    drafts = np.asarray(num_draft_tokens)
    if drafts.dtype.kind not in "iu":
        raise TypeError(
            "num_draft_tokens must be fixed, an integer or one for each position (with an adaptive "
            f"number only paths have probabilities, not texts), got {num_draft_tokens!r}"
        )
    if drafts.size and drafts.min() < 0:
        raise ValueError(f"num_draft_tokens must be >= 0, got {num_draft_tokens!r}")
    try:
        drafts = np.broadcast_to(drafts, shape)
    except ValueError:
        raise ValueError(
            f"num_draft_tokens must broadcast to {shape}, got shape {drafts.shape}"
        ) from None
    if max_new_tokens is None:
        return drafts
    if not _validate.is_integer(max_new_tokens):
        raise TypeError(f"max_new_tokens must be an integer or None, got {max_new_tokens!r}")
    longest = int(probabilities.lengths.max(initial=1))
    if longest > max_new_tokens:
        raise ValueError(
            f"max_new_tokens must be at least the length of each text, got {max_new_tokens} for a "
            f"text of {longest} tokens"
        )
    return np.clip(max_new_tokens - 1 - np.arange(shape[-1]), 0, drafts)
