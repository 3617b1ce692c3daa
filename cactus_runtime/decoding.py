"""The loop: propose, verify, commit, until the text ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cactus_runtime.context import Context
from cactus_runtime.proposal import Drafter, Proposal
from cactus_runtime.random import Purpose, Streams
from cactus_runtime.sampling import SamplingParams
from cactus_runtime.statistics import Block, DecodeResult, FinishReason, Origin, Seconds, Token
from cactus_runtime.text import TextStream
from cactus_runtime.verification import block_emission, verify
from cactus_theory.ledger import Ledger, budget_stop
from cactus_theory.rules import CandidateRule

_SUM_TOLERANCE = 1e-3  # a half-precision softmax stays within it


@dataclass(frozen=True)
class Request:
    """All that determines one decode besides the models; checked by whoever makes it."""

    prompt_ids: tuple[int, ...]
    rule: CandidateRule
    num_draft_tokens: int
    sampling: SamplingParams
    max_new_tokens: int
    seed: int | None
    stop: tuple[str, ...]
    eos_token_ids: frozenset[int]
    budget: Ledger


class Decoding(Iterator[Token]):
    """One decode under way: iterate over its tokens, ask for its `result` at any time."""

    def __init__(
        self,
        target: PreTrainedModel,
        drafter: Drafter | None,
        tokenizer: PreTrainedTokenizerBase | None,
        vocabulary: int,
        request: Request,
    ) -> None:
        self._request = request
        self._target = Context(target, "target")
        self._drafter = drafter
        self._vocabulary = vocabulary
        self._streams = Streams(request.seed)
        self._text = TextStream(tokenizer, request.prompt_ids, request.stop)
        self._has_text = tokenizer is not None
        self._ids = torch.tensor([request.prompt_ids], device=target.device)
        self._tokens: list[int] = []
        self._origins: list[Origin] = []
        self._blocks: list[Block] = []
        self._seconds = Seconds()
        self._ledger = request.budget
        self._finish_reason: FinishReason | None = None
        self._failure: Exception | None = None
        self._pending = self._run()

    def __next__(self) -> Token:
        if self._failure is not None:
            raise self._failure
        try:
            return next(self._pending)
        except StopIteration:
            raise
        except Exception as failure:
            self._failure = failure  # or asking again would look like a text that ended
            raise

    def finish(self, on_token: Callable[[Token], object] | None = None) -> DecodeResult:
        """Decode to the end and return the result; on Ctrl-C, what there is by then."""
        try:
            for token in self:
                if on_token is not None:
                    on_token(token)
        except KeyboardInterrupt:
            self._finish_reason = self._finish_reason or "interrupted"
        return self.result

    @property
    def result(self) -> DecodeResult:
        """The result so far, in whole blocks; finish_reason is "interrupted" until the end."""
        return DecodeResult(
            text=self._text.text if self._has_text else None,
            tokens=tuple(self._tokens),
            origins=tuple(self._origins),
            prompt_tokens=len(self._request.prompt_ids),
            finish_reason=self._finish_reason or "interrupted",
            seed=self._streams.seed,
            rule=self._request.rule,
            blocks=tuple(self._blocks),
            seconds=self._seconds,
        )

    def _run(self) -> Iterator[Token]:
        while self._finish_reason is None:
            yield from self._block()

    def _block(self) -> list[Token]:
        started = time.perf_counter()
        proposal = self._propose()
        drafted = time.perf_counter()
        logits = self._read_target(proposal)
        read = time.perf_counter()
        tokens, accepted, costs = self._verify(proposal, logits)
        verified = time.perf_counter()
        emitted = self._commit(tokens, accepted, len(proposal.tokens))
        kept = costs[: len(emitted)]
        self._ledger = self._ledger.spend(
            total_variations=[cost[1] for cost in kept], kls=[cost[2] for cost in kept]
        )
        self._blocks.append(
            Block(
                drafted=len(proposal.tokens),
                accepted=min(accepted, len(emitted)),
                emitted=len(emitted),
                acceptance_rates=tuple(cost[0] for cost in kept),
                total_variations=tuple(cost[1] for cost in kept),
                kl_bounds=tuple(cost[2] for cost in kept),
            )
        )
        self._seconds.draft += drafted - started
        self._seconds.target += read - drafted
        self._seconds.verification += verified - read
        self._seconds.total += time.perf_counter() - started
        return emitted

    def _propose(self) -> Proposal:
        left = self._request.max_new_tokens - len(self._tokens)
        count = min(self._request.num_draft_tokens, left - 1)
        if self._drafter is None or count == 0:
            return Proposal(self._ids[0, :0])
        uniforms = self._uniforms(Purpose.DRAFT, count)
        proposal = self._drafter.propose(self._ids.clone(), count, uniforms)
        _check_proposal(proposal, count, self._vocabulary)
        return proposal

    def _read_target(self, proposal: Proposal) -> torch.Tensor:
        """The target's warped logits after the committed text and after each drafted token."""
        ids = torch.cat([self._ids, proposal.tokens.unsqueeze(0)], dim=1)
        logits = self._target.read(ids, last=len(proposal.tokens) + 1)
        return self._request.sampling.warp(logits[0]).unsqueeze(0)

    def _verify(
        self, proposal: Proposal, logits: torch.Tensor
    ) -> tuple[list[int], int, list[tuple[float, float, float]]]:
        """Emitted tokens, how many were drafted, and the cost of each verified position.

        A position whose cost would take the ledger past its budget is verified losslessly, and
        so are those after it: `budget_stop` says why a later one must not be weighed against it.
        """
        drafts = proposal.tokens.unsqueeze(0)
        probs = None if proposal.probs is None else proposal.probs.unsqueeze(0)
        count, rule = drafts.shape[1], self._request.rule
        cost = block_emission(rule, drafts, draft_probs=probs, target_logits=logits)
        rates, distances, divergences = (
            values[0].tolist()
            for values in (cost.acceptance_rate, cost.total_variation, cost.kl_bound)
        )
        allowed = budget_stop(self._ledger, total_variations=distances, kls=divergences)
        outcome = verify(
            rule,
            drafts,
            draft_probs=probs,
            target_logits=logits,
            accept_uniforms=self._uniforms(Purpose.ACCEPT, count).unsqueeze(0),
            recover_uniforms=self._uniforms(Purpose.RECOVER, 1),
            lossy=torch.arange(count, device=drafts.device).unsqueeze(0) < allowed,
        )
        accepted = int(outcome.accepted)
        tokens = [*drafts[0, :accepted].tolist(), int(outcome.last_token)]
        costs = list(zip(rates, distances, divergences, strict=True))
        # Lossless, a position accepts less by just what it would have cost ("gain = cost").
        costs[allowed:] = [(rate - distance, 0.0, 0.0) for rate, distance, _ in costs[allowed:]]
        return tokens, accepted, costs[: accepted + 1]

    def _commit(self, tokens: list[int], accepted: int, drafted: int) -> list[Token]:
        """Append the block's tokens up to the one that ends the text."""
        last: Origin = "plain" if drafted == 0 else "bonus" if accepted == drafted else "recovered"
        emitted = []
        for i, token in enumerate(tokens):
            reason: FinishReason | None = None
            if token in self._request.eos_token_ids:
                reason = "eos"
            elif len(self._tokens) + 1 == self._request.max_new_tokens:
                reason = "length"
            piece = self._text.push(token, last=reason is not None)
            self._finish_reason = "stop" if self._text.stopped else reason
            emitted.append(Token(token, piece, "accepted" if i < accepted else last))
            self._tokens.append(token)
            self._origins.append(emitted[-1].origin)
            if self._finish_reason is not None:
                break
        new = torch.tensor([[token.id for token in emitted]], device=self._ids.device)
        self._ids = torch.cat([self._ids, new], dim=1)
        return emitted

    def _uniforms(self, purpose: Purpose, count: int) -> torch.Tensor:
        position = len(self._tokens)
        return self._streams.uniforms(purpose, position=position, count=count).to(self._ids.device)


def _check_proposal(proposal: Proposal, count: int, vocabulary: int) -> None:
    if not isinstance(proposal, Proposal):
        raise TypeError(f"the draft must return a Proposal, got {type(proposal).__name__}")
    tokens, probs = proposal.tokens, proposal.probs
    for name, value in (("tokens", tokens), ("probs", probs)):
        if not (isinstance(value, torch.Tensor) or (name == "probs" and value is None)):
            raise TypeError(f"the draft's {name} must be a torch tensor, got {type(value)}")
    if tokens.ndim != 1 or tokens.dtype != torch.int64 or len(tokens) > count:
        raise ValueError(
            f"the draft must propose an int64 tensor of at most {count} tokens, "
            f"got {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ValueError(f"the draft must propose ids in [0, {vocabulary}), got {tokens.tolist()}")
    if probs is not None and tuple(probs.shape) != (len(tokens), vocabulary):
        raise ValueError(
            f"the draft's probs must have shape {(len(tokens), vocabulary)}, "
            f"got {tuple(probs.shape)}"
        )
    if probs is None or not len(tokens):
        return
    sums = probs.double().sum(-1)
    if not (probs >= 0).all() or not ((sums - 1).abs() <= _SUM_TOLERANCE).all():
        raise ValueError(
            f"the draft's probs must be laws, got sums {sums.tolist()} "
            f"and a smallest entry of {float(probs.min())}"
        )
    if not (probs.gather(-1, tokens.unsqueeze(-1)) > 0).all():
        raise ValueError(
            f"the draft's tokens {tokens.tolist()} must have positive probability in its probs"
        )
