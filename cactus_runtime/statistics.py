"""What a decode did: tokens and where they came from, counts, seconds, and what was spent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cactus_theory.rules import Rule

Origin = Literal["accepted", "recovered", "bonus", "plain"]
FinishReason = Literal["length", "eos", "stop", "interrupted"]


@dataclass(frozen=True)
class Token:
    """One emitted token.

    Attributes
    ----------
    id : int
    text : str
        The text it released: "" while a character is incomplete or a stop string may have begun.
    origin : str
        "accepted" (drafted and kept), "recovered" (after a rejection), "bonus" (after all drafts
        were kept) or "plain" (no draft was there to verify).
    """

    id: int
    text: str
    origin: Origin


@dataclass(frozen=True)
class Block:
    """One target pass. The three tuples speak of the drafted positions whose outcome was emitted.

    Attributes
    ----------
    drafted, accepted, emitted : int
        Tokens proposed; of them kept and emitted; all tokens emitted.
    acceptance_rates : tuple of float
        sum_x min(p, g): the chance that a token drafted there passes.
    total_variations, kl_bounds : tuple of float
        TV(out, q), exact, and the upper bound of KL(out || q) in nats.
    """

    drafted: int
    accepted: int
    emitted: int
    acceptance_rates: tuple[float, ...]
    total_variations: tuple[float, ...]
    kl_bounds: tuple[float, ...]


@dataclass
class Seconds:
    """Wall-clock seconds; `overhead` is what the three parts leave of `total`."""

    draft: float = 0.0
    target: float = 0.0
    verification: float = 0.0
    total: float = 0.0

    @property
    def overhead(self) -> float:
        return self.total - self.draft - self.target - self.verification


@dataclass(frozen=True)
class DecodeResult:
    """Tokens, text and the account of one decode.

    Attributes
    ----------
    text : str or None
        None if there was no tokenizer. Ends before a stop string.
    tokens, origins : tuple
        Emitted ids, the end-of-sequence token or those of a stop string included.
    prompt_tokens : int
    finish_reason : "length", "eos", "stop" or "interrupted"
    seed : int
        Repeats this result.
    rule : Rule
    blocks : tuple of Block
    seconds : Seconds
    """

    text: str | None
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    seed: int
    rule: Rule
    blocks: tuple[Block, ...] = field(repr=False)
    seconds: Seconds = field(repr=False)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over total seconds, the reading of the prompt included."""
        return len(self.tokens) / self.seconds.total if self.seconds.total else 0.0

    @property
    def accepted_tokens(self) -> float:
        """Drafted tokens kept per target pass, on average."""
        return _mean([block.accepted for block in self.blocks])

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target pass, on average."""
        return _mean([block.emitted for block in self.blocks])

    @property
    def counted_acceptance_rate(self) -> float:
        """Drafted tokens kept among those verified; nan if none was."""
        return _mean([1.0] * self._accepted + [0.0] * (self._verified - self._accepted))

    @property
    def acceptance_rate(self) -> float:
        """Mean of sum_x min(p, g) over the verified positions: the same with less noise."""
        return _mean([rate for block in self.blocks for rate in block.acceptance_rates])

    @property
    def total_variation(self) -> float:
        """Sum of TV(out, q) over the emitted tokens.

        Its expectation bounds the total variation of the whole text's law from the target's.
        """
        return sum(value for block in self.blocks for value in block.total_variations)

    @property
    def kl_bound(self) -> float:
        """Sum over the emitted tokens of the bound of KL(out || q), in nats.

        Its expectation bounds the KL of the whole text's law from the target's.
        """
        return sum(value for block in self.blocks for value in block.kl_bounds)

    @property
    def _accepted(self) -> int:
        return sum(block.accepted for block in self.blocks)

    @property
    def _verified(self) -> int:
        return sum(len(block.acceptance_rates) for block in self.blocks)

    def __str__(self) -> str:
        lines = [
            f"{self.rule}: {len(self.tokens)} tokens ({self.finish_reason}), seed {self.seed}",
            f"  {self.tokens_per_second:.1f} tokens/s, {self.block_efficiency:.2f} per target pass",
        ]
        if self._verified:
            lines += [
                f"  acceptance rate {self.acceptance_rate:.3f} "
                f"({self.counted_acceptance_rate:.3f} counted)",
                f"  spent: total variation {self.total_variation:.4f}, "
                f"KL at most {self.kl_bound:.4f} nats",
            ]
        return "\n".join(lines)


def _mean(values: list) -> float:
    return sum(values) / len(values) if values else float("nan")
