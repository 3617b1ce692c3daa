"""How drafts are verified: what rows must share to be judged together."""

from __future__ import annotations

from typing import Literal, NamedTuple

from cactus_theory.rules import Rule

Verification = Literal["token", "block"]


class Method(NamedTuple):
    """The part of a request that `judge` reads.

    Attributes
    ----------
    rule : Rule
    verification : "token" or "block"
    emitted_logprobs : bool
    ledger : bool
        Whether acceptance rates and charges are computed.
    """

    rule: Rule
    verification: Verification = "token"
    emitted_logprobs: bool = False
    ledger: bool = True

    def check(self) -> None:
        """Raise a TypeError or ValueError that names what is wrong."""
        if not isinstance(self.rule, Rule):
            raise TypeError(f"rule must be one of cactus_theory's rules, got {self.rule!r}")
        if self.verification not in ("token", "block"):
            raise ValueError(f"verification must be 'token' or 'block', got {self.verification!r}")
        if self.verification == "block" and not self.rule.ordered:
            raise ValueError(
                "verification='block' needs a rule that emits a distribution between those of "
                f"draft and target (an ordered rule), got {self.rule!r}"
            )
        for name in ("emitted_logprobs", "ledger"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be a bool, got {value!r}")
