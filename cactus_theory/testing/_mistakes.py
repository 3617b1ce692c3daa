"""The emitted law of one position with a part replaced, and families of such laws to fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import rel_entr

from cactus_theory import _validate
from cactus_theory.emitted import output_distribution
from cactus_theory.rules import Rule, SharedRecoveryRule


@dataclass(frozen=True)
class Position:
    """One position of a rule: its chances of acceptance, and the recovery law of each token.

    Attributes
    ----------
    rule : Rule
    draft, target, kept : array, shape (V,)
        Laws and accepted mass.
    accepted : array, shape (V,)
        kept / draft; 0 where nothing is drafted.
    drafted : array of int, shape (R,)
        Tokens that can be drafted.
    recovery : array, shape (R, V)
        Recovery law of each of them; the target where the weights are empty.
    """

    rule: Rule
    draft: np.ndarray
    target: np.ndarray
    kept: np.ndarray
    accepted: np.ndarray
    drafted: np.ndarray
    recovery: np.ndarray

    @classmethod
    def of(cls, rule: Rule, *, draft: Any, target: Any) -> Position:
        """Solve the rule once at this position."""
        draft, target = _validate.law_pair(draft=draft, target=target)
        if draft.ndim != 1 or draft.shape != target.shape:
            raise ValueError(
                f"draft and target must have shape (V,), got {draft.shape} and {target.shape}"
            )
        kept = np.asarray(rule.accepted_mass(draft, target), dtype=np.float64)
        accepted = np.divide(kept, draft, out=np.zeros_like(kept), where=draft > 0)
        drafted = np.flatnonzero(draft > 0)
        recovery = np.empty((drafted.size, draft.size))
        shared = isinstance(rule, SharedRecoveryRule)
        for row, token in enumerate(drafted):
            if shared and row:
                recovery[row] = recovery[0]
            else:
                weights = rule.recovery_weights(int(token), draft, target)
                recovery[row] = normalised(weights if weights.sum() > 0 else target)
        return cls(rule, draft, target, kept, accepted, drafted, recovery)

    def law(self, *, proposal: Any = None, accepted: Any = None, recovery: Any = None) -> Any:
        """Emitted law with the proposal, the chance of acceptance or the recovery replaced."""
        drawn = self.draft if proposal is None else proposal
        accepted = self.accepted if accepted is None else accepted
        rejected = (drawn * (1 - accepted))[self.drafted]
        if recovery is None:
            return drawn * accepted + rejected @ self.recovery
        if recovery.ndim == 1:
            return drawn * accepted + rejected.sum() * recovery
        return drawn * accepted + rejected @ recovery


@dataclass(frozen=True)
class Mistake:
    """A named wrong law, or a family of them.

    Attributes
    ----------
    name : str
        With a place for the parameter, if there is one: ``"mixture w = {:.3g}"``.
    law : callable (Position, float) -> array, shape (V,)
    grid : tuple of float
        Empty without a parameter; else where the fit starts, ascending.
    usual : tuple of float
        Values of the parameter whose detection a test should be able to promise.
    between : bool
        Whether values between those of the grid mean anything.

    Examples
    --------
    >>> from cactus_theory import SpeculativeSampling
    >>> mistake = Mistake("the draft itself", lambda at, _: at.draft)
    >>> position = Position.of(SpeculativeSampling(), draft=[0.75, 0.25], target=[0.5, 0.5])
    >>> mistake.fit(np.array([0.75, 0.25]), position)
    (0.0, 0.0)
    """

    name: str
    law: Callable[[Position, float], np.ndarray]
    grid: tuple[float, ...] = ()
    usual: tuple[float, ...] = ()
    between: bool = True

    def fit(self, observed: np.ndarray, position: Position) -> tuple[float, float]:
        """Parameter and KL(observed || law) of the member nearest to the observed law."""
        if not self.grid:
            return 0.0, kl(observed, self.law(position, 0.0))
        grid = [x for x in self.grid if self.between or x < position.target.size]
        if not grid:
            return 0.0, np.inf
        far = [kl(observed, self.law(position, x)) for x in grid]
        best = int(np.argmin(far))
        if not self.between or len(grid) == 1 or not np.isfinite(far[best]):
            return grid[best], far[best]
        refined = minimize_scalar(
            lambda x: min(kl(observed, self.law(position, x)), 1e9),
            bounds=(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]),
            method="bounded",
            options={"xatol": 1e-6 * grid[best] + 1e-9},
        )
        if refined.fun < far[best]:
            return float(refined.x), float(refined.fun)
        return grid[best], far[best]


def tempered(law: Any, temperature: float) -> np.ndarray:
    """The law^(1/T), normalised; T = 0 is one-hot at the first maximum.

    Parameters
    ----------
    law : array_like, shape (V,)
    temperature : float
        T >= 0.

    Returns
    -------
    float64 array, shape (V,)

    Examples
    --------
    >>> tempered(np.array([0.8, 0.2]), 0.5).round(4)
    array([0.9412, 0.0588])
    >>> tempered(np.array([0.8, 0.2]), 0)
    array([1., 0.])
    """
    law = np.asarray(law, dtype=np.float64)
    if temperature == 0:
        return np.eye(law.size)[int(np.argmax(law))]
    positive = law > 0
    logs = np.log(np.where(positive, law, 1.0)) / temperature
    raised = np.where(positive, np.exp(logs - logs[positive].max()), 0.0)
    return normalised(raised)


def normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()


def kl(observed: np.ndarray, law: np.ndarray) -> float:
    return max(float(rel_entr(observed, law).sum()), 0.0)


def law_of(rule: Rule, position: Position) -> np.ndarray:
    return output_distribution(rule, draft=position.draft, target=position.target)


def unrescaled(position: Position, _: float) -> np.ndarray:
    weights = np.maximum(position.target - position.draft, 0.0)
    return position.law(recovery=normalised(weights if weights.sum() > 0 else position.target))


def residual_argmax(position: Position, _: float) -> np.ndarray:
    size = position.target.size
    return position.law(recovery=np.eye(size)[position.recovery.argmax(axis=-1)])


def without_draft(position: Position, _: float) -> np.ndarray:
    accepted = np.zeros_like(position.kept)
    for token in position.drafted:
        limit = position.rule.threshold(int(token), position.draft, position.target)
        accepted[token] = min(limit, 1.0)
    return position.law(accepted=accepted)


def drafted_at(position: Position, temperature: float) -> np.ndarray:
    return position.law(proposal=tempered(position.draft, temperature))


def swapped(position: Position, _: float) -> np.ndarray:
    return output_distribution(position.rule, draft=position.target, target=position.draft)


def top_of_target(position: Position, k: float) -> np.ndarray:
    order = np.argsort(-position.target, kind="stable")
    cut = np.zeros_like(position.target)
    cut[order[: int(k)]] = position.target[order[: int(k)]]
    return normalised(cut)
