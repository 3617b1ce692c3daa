"""What a decode returns: a record that displays itself in terminals and notebooks."""

from __future__ import annotations

from dataclasses import dataclass

from cactus_runtime.result.record import DecodeRecord
from cactus_runtime.result.web_page import fragment


@dataclass(frozen=True)
class DecodeResult(DecodeRecord):
    """Tokens, text and the ledger of one decode.

    Attributes
    ----------
    text : str or None
        None if there was no tokenizer. Ends before a stop string.
    trace : tuple of Token
        Everything about each emitted token, the end-of-sequence token or those of a stop string
        included.
    prompt_tokens : int
    finish_reason : "length", "eos", "stop" or "interrupted"
    seed, number : int
        Those of the request; they reproduce this result.
    rule : Rule or BetweenMarkers
        With markers as token ids.
    blocks : tuple of Block
    seconds : Seconds
    dtypes : Dtypes
        Types of the models' weights.

    Examples
    --------
    >>> from cactus_runtime import decode
    >>> result = decode("tiny", "dog:", max_new_tokens=4, seed=1)
    >>> len(result.tokens) == sum(block.emitted for block in result.blocks)
    True
    """

    def __str__(self) -> str:
        lines = [
            f"{self.rule}: {len(self.trace)} tokens ({self.finish_reason}), seed {self.seed}",
            f"  {self.tokens_per_second:.1f} tokens/s, {self.block_efficiency:.2f} per target pass "
            f"({self.dtypes})",
        ]
        if self.seconds.compilation:
            lines.append(f"  compiled before decoding, in {self.seconds.compilation:.1f} s")
        if self.verdicts:
            lines += (
                [
                    f"  acceptance rate {self.acceptance_rate:.3f} "
                    f"({self.counted_acceptance_rate:.3f} counted)",
                    f"  ledger: total variation {self.total_variation:.4f}, "
                    f"bound of KL {self.kl_bound:.4f} nats",
                ]
                if self.accounted
                else [
                    f"  acceptance rate {self.counted_acceptance_rate:.3f} counted",
                    "  ledger: none, nothing was accounted for",
                ]
            )
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return fragment(self)
