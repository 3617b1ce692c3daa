"""Recorded distributions of a model pair: the most probable tokens, and the rest merged.

They let you explore a pair without its models. The error of merging is bounded. Knows arrays and
one file format, no model.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.divergences import log_growth
from cactus_theory.rules import CandidateRule

REMAINDERS = 3  # merged tokens of a position: those with q = 0, with p > q > 0, with p <= q
_FORMAT = "cactus-laws-1"


@dataclass(frozen=True)
class RecordingErrors:
    """Bounds of the error that merging causes in figures of recorded distributions, by position.

    Attributes
    ----------
    acceptance_rate, total_variation, kl_bound : float64 array, shape (N,)
        Bounds of the error of those fields of `emission`; kl_bound in nats.
    kl : float64 array, shape (N,)
        Bound of the error of KL(out || q), in nats.

    Examples
    --------
    >>> laws = compress_distributions(draft=[0.5, 0.4, 0.1], target=[0.4, 0.5, 0.1], tolerance=0.2)
    >>> laws.errors.acceptance_rate
    array([0.1])
    """

    acceptance_rate: np.ndarray
    total_variation: np.ndarray
    kl_bound: np.ndarray
    kl: np.ndarray


@dataclass(frozen=True)
class Recording:
    r"""Draft and target at N positions: their K most probable tokens, the rest merged.

    Made by `compress_distributions` or `load_recording`. A column is a token; the last three are
    merged ones: all tokens left out with q = 0, with p > q > 0, and with p <= q. So both arrays
    hold distributions, and every function of `draft` and `target` accepts them.

    Attributes
    ----------
    draft, target : float64 array, shape (N, K + 3)
        Distributions p and q. Positions that need fewer tokens are padded with zeros.
    tokens : int64 array, shape (N, K)
        Ids, the most probable first by max(p, q); -1 where padded.
    left_out : float64 array, shape (N, 3)
        Of the tokens merged: their mass P under p, Q under q, and the sum k of [p log(p/q)]_+ over
        those with q > 0, in nats.
    about : mapping of str to str
        Where the distributions come from.

    Notes
    -----
    For a rule with candidates, whose boost reads q(n) alone, and g(0) = 0:

    * a token kept has the same g, and one left out accepts between 0 and p. So acceptance rate and
      total variation err by at most P, and `Emission.kl_bound` by at most k (log-sum inequality).
    * the emitted distribution is exact where p > q. Elsewhere, over the tokens kept, it errs by at
      most t = 2 P + Q in all: sum_n w(n)/Z(n) <= 1 and Z(n) errs by at most Q, what is rejected of
      the tokens left out is at most P. x log(x/q) on [0, q] changes by at most d (1 + log(1/d))
      where x changes by d, and the m terms by at most t (1 + log(m/t)) in all. Tokens left out have
      terms between -q/e and p log(p/q). So KL(out || q) errs by at most t (1 + log(m/t)) + k + Q/e.

    `errors` has these bounds. A file holds the tokens' probabilities as float32, which adds a
    relative error of less than 1e-7 to each, beyond them. Where a boost jumps, that may put a token
    on the other side of the jump; `errors_for` has bounds for a given rule that include it. For
    rules without candidates nothing is claimed.

    Examples
    --------
    >>> from cactus_theory import Cactus, acceptance_rate
    >>> p, q = [0.6, 0.3, 0.08, 0.02], [0.3, 0.6, 0.04, 0.06]
    >>> laws = compress_distributions(draft=p, target=q, tolerance=0.1)
    >>> laws.tokens, laws.draft.round(2)
    (array([[0, 1]]), array([[0.6 , 0.3 , 0.  , 0.08, 0.02]]))
    >>> rates = [acceptance_rate(Cactus(0.1), draft=a, target=b)
    ...          for a, b in ((p, q), (laws.draft[0], laws.target[0]))]
    >>> bool(abs(rates[0] - rates[1]) <= laws.errors.acceptance_rate[0])
    True
    """

    draft: np.ndarray
    target: np.ndarray
    tokens: np.ndarray
    left_out: np.ndarray
    about: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.draft)

    @property
    def errors(self) -> RecordingErrors:
        """Bounds of the error of merging, for rules with candidates."""
        return self._errors(np.zeros(len(self)))

    def errors_for(self, rule: CandidateRule, *, rounding: float = 2e-7) -> RecordingErrors:
        """Bounds of the error of merging and rounding, under a rule whose boost may jump.

        Figures are those of `errors`, and how far they vary while every p and q of the tokens kept
        varies by a factor of 1 +- `rounding`. A token n whose boost jumps in that range may also be
        recovered from otherwise, with all that it rejects on either side of the jump.

        Parameters
        ----------
        rule : CandidateRule
            Whose boost does not fall as q grows.
        rounding : float
            In [0, 1): largest relative error of a probability. The default covers what a file and
            its normalisation do to it. The KL of a boost without jumps may change by some
            `rounding` more.

        Raises
        ------
        TypeError
            If the rule has no candidates: nothing is claimed for it.
        ValueError
            If `rounding` is not in [0, 1).

        Examples
        --------
        >>> from cactus_theory import ThresholdAcceptance
        >>> laws = compress_distributions(draft=[0.9, 0.1], target=[0.7, 0.3], tolerance=0.0)
        >>> rule = ThresholdAcceptance(0.7, 0.9)  # g(0.7) = 1, and 7/9 just below it
        >>> float(laws.errors.acceptance_rate[0])
        0.0
        >>> round(float(laws.errors_for(rule).acceptance_rate[0]), 3)
        0.122
        """
        if not isinstance(rule, CandidateRule):
            raise TypeError(f"rule must have candidates for its errors to be bounded, got {rule!r}")
        rounding = _validate.fraction("rounding", rounding, "[0, 1)")
        jumps = _Rounded(rule, self.draft, self.target, rounding, self.tokens >= 0)
        found = self._errors(jumps.recovered)
        return RecordingErrors(
            found.acceptance_rate + jumps.acceptance_rate,
            found.total_variation + jumps.total_variation,
            found.kl_bound + jumps.kl_bound,
            found.kl + jumps.kl_bound,
        )

    def _errors(self, also_moved: np.ndarray) -> RecordingErrors:
        lost_p, lost_q, lost_kl = self.left_out.T
        moved = 2 * lost_p + lost_q + also_moved
        below = (self.target >= self.draft)[:, :-REMAINDERS] & (self.tokens >= 0)
        places = np.maximum(below.sum(axis=1), moved)
        logs = np.log(places / np.where(moved > 0, moved, 1.0), where=moved > 0, out=0 * moved)
        kl = moved * (1 + logs) + lost_kl + lost_q / np.e
        return RecordingErrors(lost_p, lost_p, lost_kl, kl)

    def save(self, path: str | Path) -> None:
        """Write a compressed .npz file that `load_recording` reads.

        Parameters
        ----------
        path : str or Path
        """
        kept = self.tokens >= 0
        arrays = {
            "counts": kept.sum(axis=1).astype(np.int32),
            "tokens": self.tokens[kept].astype(np.uint32),
            "draft": self.draft[:, :-REMAINDERS][kept].astype(np.float32),
            "target": self.target[:, :-REMAINDERS][kept].astype(np.float32),
            "remainders": np.stack([x[:, -REMAINDERS:] for x in (self.draft, self.target)]),
            "left_out": self.left_out,
        }
        header = json.dumps({"format": _FORMAT, **self.about}, allow_nan=False)
        with Path(path).open("wb") as file:
            np.savez_compressed(file, header=np.array(header), **arrays)


class _Rounded:
    """How far figures vary while p and q of the tokens kept do, by a relative `rounding`."""

    def __init__(
        self,
        rule: CandidateRule,
        draft: np.ndarray,
        target: np.ndarray,
        rounding: float,
        kept: np.ndarray,
    ) -> None:
        columns = slice(kept.shape[1])
        p, q = (np.where(kept, law[:, columns], 0.0) for law in (draft, target))
        (p_low, p_high), (q_low, q_high) = (
            (law * (1 - rounding), np.minimum(law * (1 + rounding), 1.0)) for law in (p, q)
        )
        boosts = np.stack([rule.boost(side) for side in (q_low, q, q_high)])
        g_low, g_high = boosts.min(axis=0), boosts.max(axis=0)
        low, high = np.minimum(p_low, g_low), np.minimum(p_high, g_high)  # what is accepted
        self.acceptance_rate = (high - low).sum(axis=1)
        above = p_high > q_low
        most = np.where(above, np.maximum(high - q_low, 0.0), 0.0)
        least = np.where(above, np.maximum(low - q_high, 0.0), 0.0)
        self.total_variation = (most - least).sum(axis=1)
        self.kl_bound = (_growth(q_low, most) - _growth(q_high, least)).sum(axis=1)
        jumps = above & (g_high - g_low > 10 * rounding * g_high)
        both = (p_high - low) + np.maximum(p_high - g_high, 0.0)
        self.recovered = np.where(jumps, both, 0.0).sum(axis=1)


def _growth(q: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """(q + gain) log(1 + gain/q), and 0 at q = 0."""
    return (q + gain) * log_growth(np.where(q > 0, q, 1.0), gain, xp=np)


def compress_distributions(
    *,
    draft: Any,
    target: Any,
    tolerance: float = 1e-5,
    about: Mapping[str, str] | None = None,
) -> Recording:
    """Keep as many of the most probable tokens as `tolerance` asks for, and merge the others.

    Parameters
    ----------
    draft, target : array_like, shape (N, V) or (V,)
        Distributions p and q at N positions.
    tolerance : float
        In [0, 1): an upper limit for P, Q and k of `Recording` at each position (k in nats).
    about : mapping of str to str, optional
        Stored with the distributions.

    Returns
    -------
    Recording

    Raises
    ------
    ValueError, TypeError
        If an argument is not a distribution, shapes do not fit, or the tolerance is not in [0, 1).

    Examples
    --------
    >>> laws = compress_distributions(draft=[0.5, 0.4, 0.1], target=[0.4, 0.5, 0.1], tolerance=0.0)
    >>> laws.tokens, float(laws.errors.kl[0])
    (array([[0, 1, 2]]), 0.0)
    """
    tolerance = _validate.fraction("tolerance", tolerance, "[0, 1)")
    draft, target = (np.atleast_2d(law) for law in _validate.law_pair(draft=draft, target=target))
    if draft.ndim != 2 or draft.shape != target.shape:
        raise ValueError(
            f"draft and target must both have shape (N, V), got {draft.shape} and {target.shape}"
        )
    positions = [_position(p, q, tolerance) for p, q in zip(draft, target, strict=True)]
    ids, remainders, left_out = zip(*positions, strict=True)
    kept = [(p[i], q[i]) for p, q, i in zip(draft, target, ids, strict=True)]
    return Recording(
        *(
            np.column_stack([_padded([pair[side] for pair in kept], 0.0), remains])
            for side, remains in enumerate(np.moveaxis(np.array(remainders), 1, 0))
        ),
        tokens=_padded(ids, -1),
        left_out=np.array(left_out),
        about=dict(about or {}),
    )


def load_recording(path: str | Path | None = None) -> Recording:
    """Read recorded distributions; by default those that come with the package.

    The package's own are of the pair "tiny": 96 positions at temperature 0.7.

    Parameters
    ----------
    path : str or Path, optional

    Returns
    -------
    Recording

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it holds no recorded distributions.

    Examples
    --------
    >>> laws = load_recording()
    >>> len(laws), laws.about["pair"], float(laws.errors.kl.max()) < 1e-3
    (96, 'tiny', True)
    """
    if path is None:
        with as_file(files("cactus_theory") / "data" / "tiny.npz") as bundled:
            return _read(bundled)
    return _read(Path(path))


def _read(path: Path) -> Recording:
    wanted = f"{path} holds no recorded distributions; `cactus record` writes them"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError(wanted)
            arrays = dict(stored)
            about = json.loads(str(arrays.pop("header")))
            if about.pop("format") != _FORMAT:
                raise ValueError(wanted)
            return _unpacked(about=about, **arrays)
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(wanted) from error


def _unpacked(
    *,
    about: Mapping[str, str],
    counts: np.ndarray,
    tokens: np.ndarray,
    draft: np.ndarray,
    target: np.ndarray,
    remainders: np.ndarray,
    left_out: np.ndarray,
) -> Recording:
    ends = np.cumsum(counts)[:-1]
    laws = [
        np.column_stack([_padded(np.split(kept.astype(np.float64), ends), 0.0), remains])
        for kept, remains in zip((draft, target), remainders, strict=True)
    ]
    p, q = _validate.law_pair(draft=laws[0], target=laws[1])
    p, q = (law / law.sum(axis=1, keepdims=True) for law in (p, q))  # float32 rounding
    return Recording(p, q, _padded(np.split(tokens.astype(np.int64), ends), -1), left_out, about)


def _position(
    p: np.ndarray, q: np.ndarray, tolerance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids kept, merged tokens of shape (2, 3) and masses left out, at one position."""
    order = np.argsort(-np.maximum(p, q), kind="stable")
    p, q = p[order], q[order]
    over = (p > q) & (q > 0)
    excess = np.zeros_like(p)
    excess[over] = p[over] * np.log(p[over] / q[over])
    left_out = np.array([_suffix_sums(x) for x in (p, q, excess)])
    count = int(np.argmax((left_out <= tolerance).all(axis=0)))
    classes = np.array([q == 0, over, (p <= q) & (q > 0)])[:, count:]
    remainders = np.array([[law[count:][one].sum() for one in classes] for law in (p, q)])
    return order[:count], remainders, left_out[:, count]


def _suffix_sums(values: np.ndarray) -> np.ndarray:
    """Sums of all values from the i-th on, i = 0 ... n."""
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def _padded(rows: Any, fill: float) -> np.ndarray:
    """Rows of different lengths as one array."""
    width = max(map(len, rows))
    return np.array([np.pad(row, (0, width - len(row)), constant_values=fill) for row in rows])
