"""What the rules cost the requests of an engine: charges in TV and KL, and expected acceptance.

Knows p, q and the rule of each drafted row. Sums stay on the device until they are read. The
guarantee of a budget is that of `cactus_theory.ledger`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from cactus_runtime.integrations.vllm.rows import distributions, portions
from cactus_runtime.integrations.vllm.runners import DraftedRows
from cactus_runtime.integrations.vllm.settings import Settings
from cactus_runtime.verification.charges import dense_charges

NAMES = ("judged_tokens", "accepted_tokens", "expected_accepted_tokens", "total_variation", "kl")
KEPT = 8192  # requests whose sums are remembered
SHOWN = 1024  # of these, in statistics
_ROUNDING = 1e-12  # relative, of a sum of charges


class Charges(NamedTuple):
    """Of each row, float64 tensors of shape (R,); 0 in rows that are not charged.

    Attributes
    ----------
    acceptance_rate : tensor
        The chance that the drafted token is kept, over all that could have been drafted.
    total_variation, kl : tensor
        TV(out, q), and a bound of KL(out || q) in nats.
    """

    acceptance_rate: torch.Tensor
    total_variation: torch.Tensor
    kl: torch.Tensor


def charge_rows(
    drafts: DraftedRows, rows: Mapping[Settings, torch.Tensor], spent: torch.Tensor
) -> tuple[Charges, dict[Settings, torch.Tensor]]:
    """Charge rows before they are judged, and stop where a budget is spent.

    Parameters
    ----------
    drafts : DraftedRows
        With the target's own logits.
    rows : mapping of Settings to bool tensor, shape (R,)
        The rows to charge, by how they would be judged.
    spent : float64 tensor, shape (B,)
        KL that each request was charged before.

    Returns
    -------
    (Charges, dict of Settings to bool tensor)
        The second has the rows within budget. The others are to be judged losslessly.
    """
    size = len(drafts.logits)
    rate, plain, distance, divergence = drafts.logits.new_zeros(4, size, dtype=torch.float64)
    for settings, where in rows.items():
        for some in portions(where.nonzero().squeeze(1), drafts.logits.shape[1]):
            found = dense_charges(settings.rule, *distributions(drafts, some))
            rate[some], plain[some] = found.acceptance_rate, found.lossless_acceptance_rate
            distance[some], divergence[some] = found.total_variation, found.kl_bound
    run = divergence.cumsum(0)
    first = starts(drafts)
    before = torch.where(first > 0, run[(first - 1).clamp(min=0)], 0.0)
    total = (spent[drafts.request] + run - before[drafts.request]) * (1 + _ROUNDING)
    within = {settings: where & (total <= settings.max_kl) for settings, where in rows.items()}
    lossy = torch.zeros_like(drafts.drafted)
    for where in within.values():
        lossy = lossy | where
    charges = Charges(
        torch.where(lossy, rate, plain),
        torch.where(lossy, distance, 0.0),
        torch.where(lossy, divergence, 0.0),
    )
    return charges, within


def starts(drafts: DraftedRows) -> torch.Tensor:
    """The first row of each request, shape (B,)."""
    batch = torch.arange(len(drafts.temperature), device=drafts.request.device)
    return torch.searchsorted(drafts.request, batch)


class Ledger:
    """Sums of the charges of requests, by their names, and of all together.

    Examples
    --------
    >>> Ledger().statistics()["total_variation"], Ledger().statistics()["requests"]
    (0.0, {})
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self.forget()

    def forget(self) -> None:
        """Reset the sums of all requests together; each one's own go on, for its budget."""
        self._total = torch.zeros(len(NAMES), dtype=torch.float64)

    def before(self, names: Sequence[str | None], like: torch.Tensor) -> torch.Tensor:
        """Sums of requests, shape (B, 5), `NAMES` in the columns, on the device of `like`."""
        zero = like.new_zeros(len(NAMES), dtype=torch.float64)
        return torch.stack([self._sums.get(name, zero) if name else zero for name in names])

    def add(
        self,
        names: Sequence[str | None],
        before: torch.Tensor,
        drafts: DraftedRows,
        charges: Charges,
        charged: torch.Tensor,
        accepted: torch.Tensor,
    ) -> None:
        """Charge the rows that were judged: those of accepted tokens and of each first rejection.

        Parameters
        ----------
        names : sequence of str or None
            Of the B requests; one without a name is in the total only.
        before : float64 tensor
            `before` of the same names.
        charged : bool tensor, shape (R,)
            The rows that `charges` holds for.
        accepted : int tensor, shape (B,)
        """
        row = torch.arange(len(drafts.request), device=drafts.request.device)
        place = row - starts(drafts)[drafts.request]
        kept = accepted[drafts.request]
        judged = charged & (place <= kept)
        figures = torch.stack([judged, judged & (place < kept), *charges], 1)
        figures = torch.where(judged.unsqueeze(1), figures, 0.0)
        sums = figures.new_zeros(len(names), len(NAMES)).index_add(0, drafts.request, figures)
        self._total = self._total.to(sums.device) + sums.sum(0)
        for name, own in zip(names, before + sums, strict=True):
            if name is not None:
                self._sums.pop(name, None)  # so that the latest comes last
                self._sums[name] = own
        while len(self._sums) > max(KEPT, len(names)):
            del self._sums[next(iter(self._sums))]

    def statistics(self) -> dict[str, object]:
        """Sums of all requests, and under ``requests`` of the latest ones by name.

        Returns
        -------
        dict
            ``judged_tokens``, ``accepted_tokens``, ``expected_accepted_tokens`` (the sum of their
            chances), ``total_variation``, ``kl`` (nats; a bound).
        """
        requests = list(self._sums)[-SHOWN:]
        rows = torch.stack([self._total, *(self._sums[name] for name in requests)]).tolist()
        total, *own = (dict(zip(NAMES, row, strict=True)) for row in rows)
        return {**total, "requests": dict(zip(requests, own, strict=True))}
