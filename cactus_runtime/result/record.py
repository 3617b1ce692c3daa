"""What a decode did, as data: tokens with their origins, counts, seconds and charges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cactus_runtime.result.trace import Block, Dtypes, FinishReason, Origin, Seconds, Token, Verdict
from cactus_theory.rules import BetweenMarkers, Rule

ENOUGH = 20  # verified positions, or blocks that drafted, before a warning


@dataclass(frozen=True)
class DecodeRecord:
    """Everything about one decode, and the figures derived from it; see `DecodeResult`.

    Examples
    --------
    >>> from cactus_runtime import DecodeResult
    >>> issubclass(DecodeResult, DecodeRecord)
    True
    """

    text: str | None
    trace: tuple[Token, ...] = field(repr=False)
    prompt_tokens: int
    finish_reason: FinishReason
    seed: int
    number: int
    rule: Rule | BetweenMarkers
    blocks: tuple[Block, ...] = field(repr=False)
    seconds: Seconds = field(repr=False)
    dtypes: Dtypes = field(repr=False)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Emitted ids."""
        return tuple(token.id for token in self.trace)

    @property
    def origins(self) -> tuple[Origin, ...]:
        return tuple(token.origin for token in self.trace)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens divided by total seconds, prompt processing included."""
        return len(self.trace) / self.seconds.total if self.seconds.total else 0.0

    @property
    def accepted_tokens(self) -> float:
        """Drafted tokens kept per target pass, on average."""
        return _mean([block.accepted for block in self.blocks])

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target pass, on average."""
        return _mean([block.emitted for block in self.blocks])

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts of all verified positions whose outcome was emitted."""
        return tuple(token.verdict for token in self.trace if token.verdict is not None)

    @property
    def counted_acceptance_rate(self) -> float:
        """Fraction of the verified drafted tokens that was kept; nan if none was verified."""
        judged = [token for token in self.trace if token.verdict is not None]
        return _mean([float(token.origin == "accepted") for token in judged])

    @property
    def accounted(self) -> bool:
        """Whether there is a ledger: False if the request had ``ledger=False``."""
        return all(verdict.charges is not None for verdict in self.verdicts)

    @property
    def acceptance_rate(self) -> float:
        """Mean of sum_x min(p, g) over the verified positions: the same rate with less noise.

        Raises ValueError, as `total_variation` and `kl_bound` do, if the request had no ledger.
        """
        return _mean(self._charged("acceptance_rate"))

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Fraction of verified drafted tokens kept, at the first, second, ... place of a block."""
        longest = max((block.drafted for block in self.blocks), default=0)
        kept = [sum(block.accepted > j for block in self.blocks) for j in range(longest)]
        judged = [
            sum(min(block.drafted, block.emitted) > j for block in self.blocks)
            for j in range(longest)
        ]
        return tuple(
            count / total if total else float("nan")
            for count, total in zip(kept, judged, strict=True)
        )

    @property
    def total_variation(self) -> float:
        """Sum of TV(out, q) over the emitted tokens.

        Its expectation bounds the total variation between the distributions of the whole text and
        of the target's text.
        """
        return sum(self._charged("total_variation"), 0.0)

    @property
    def kl_bound(self) -> float:
        """Sum over the emitted tokens of the bound of KL(out || q), in nats.

        Its expectation bounds the KL of the distribution of the whole text from the target's.
        """
        return sum(self._charged("kl_bound"), 0.0)

    def _charged(self, name: str) -> list[float]:
        """A figure of the ledger at all verified positions."""
        figures = [getattr(verdict, name) for verdict in self.verdicts]
        if None in figures:
            raise ValueError(f"{name} needs a request with ledger=True")
        return figures

    @property
    def log_weight(self) -> float:
        """Log of the importance weight w of this text, as it was decoded.

        Sum of log q(x) - log out(x) over the verified positions, in nats, with q the target's
        distribution after temperature, filters and penalties. Over many decodes the average of
        w f(text) estimates what the target gives for f, without bias, if the decoder can emit
        whatever the target can; see `cactus_theory.path_log_weight`.

        Raises
        ------
        ValueError
            If the request did not ask for `emitted_logprobs`.

        Examples
        --------
        >>> from cactus_runtime import Decoder, Request
        >>> from cactus_theory import Cactus, effective_sample_size
        >>> request = Request("dog:", rule=Cactus(0.1), max_new_tokens=5, seed=1,
        ...                   emitted_logprobs=True)
        >>> results = Decoder("tiny").batch(request.samples(4)).finish()
        >>> 1 <= float(effective_sample_size([result.log_weight for result in results])) <= 4
        True
        """
        warped, emitted = self._logs()
        return sum(a - b for a, b in zip(warped, emitted, strict=True) if a != b)

    def _logs(self) -> tuple[list[float], list[float]]:
        """Log-probabilities of all tokens, after the warp and as emitted."""
        warped = [x for token in self.trace if (x := token.warped_logprob) is not None]
        emitted = [x for token in self.trace if (x := token.emitted_logprob) is not None]
        if len(emitted) < len(self.trace):
            raise ValueError("log_weight needs a request with emitted_logprobs=True")
        return warped, emitted

    def sums(self) -> dict[str, Any]:
        """Counts and sums for JSON, from which rates and means over many results can be computed.

        Returns
        -------
        dict
            `blocks` target passes emitted `tokens` tokens; `drafted` were proposed, `judged` of
            them verified with their outcome emitted, `accepted` kept; `acceptance_rate`,
            `total_variation` and `kl_bound` (nats) are sums over the judged tokens, None if the
            request had no ledger; `seconds` is the total time. `kl_bound` is None also where it is
            infinite, which JSON cannot represent: a rule such as `Mixture` then gave positive
            probability to a token that the target never emits. If the request asked for
            `emitted_logprobs`: `emitted_logprob` and `warped_logprob` are sums over all tokens, and
            `log_weight` is that of the path (nats); None is then -inf.

        Examples
        --------
        >>> from cactus_runtime import decode
        >>> sums = decode("tiny", "dog:", max_new_tokens=5, seed=1).sums()
        >>> sums["tokens"], sums["rule"], sums["accepted"] <= sums["judged"]
        (5, 'SpeculativeSampling()', True)
        """
        verdicts = self.verdicts
        names = ("acceptance_rate", "total_variation", "kl_bound")
        charges = {
            name: sum(self._charged(name), 0.0) if self.accounted else None for name in names
        }
        logs: dict[str, float] = {}
        if any(token.emitted_logprob is not None for token in self.trace):
            warped, emitted = self._logs()
            logs = {
                "emitted_logprob": sum(emitted),
                "warped_logprob": sum(warped),
                "log_weight": self.log_weight,
            }
        return {
            "rule": str(self.rule),
            "seed": self.seed,
            "number": self.number,
            "prompt_tokens": self.prompt_tokens,
            "tokens": len(self.trace),
            "finish_reason": self.finish_reason,
            "blocks": len(self.blocks),
            "drafted": sum(block.drafted for block in self.blocks),
            "judged": len(verdicts),
            "accepted": sum(block.accepted for block in self.blocks),
            **{name: _finite(x) for name, x in charges.items()},
            "seconds": self.seconds.total,
            **{name: _finite(x) for name, x in logs.items()},
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about ineffective speculation; none for short or effective decodes.

        * No drafted token was kept at 20 verified positions or more. If each were kept with chance
          a, regardless of the past, this would happen with chance (1 - a)^20 at most.
        * Over 20 blocks or more that drafted, plain decoding would have been faster. Say B target
          passes emitted N tokens in T seconds, D of them spent on drafting. A block without drafts
          costs at most (T - D)/B seconds on average, provided that reading and verifying fewer
          tokens does not cost more; plain decoding needs N of them. So speculation was slower where
          T > N (T - D)/B, that is D/T > 1 - B/N. Where this does not hold it may have been slower
          too: the right side bounds plain decoding's time and does not estimate it.
        """
        found = []
        judged = len(self.verdicts)
        if judged >= ENOUGH and self.counted_acceptance_rate == 0:
            found.append(f"none of {judged} verified draft tokens was kept")
        if sum(block.drafted > 0 for block in self.blocks) >= ENOUGH and self.seconds.total:
            share = self.seconds.draft / self.seconds.total
            most = 1 - 1 / self.block_efficiency
            if share > most:
                found.append(
                    f"plain decoding would have been faster: drafting took {share:.1%} of the "
                    f"time, and {self.block_efficiency:.2f} tokens per target pass repay at most "
                    f"{most:.1%}"
                )
        return tuple(found)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
