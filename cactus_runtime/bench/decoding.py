"""Tokens per second of the decoder, of the bound its forward passes set, and of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from cactus_runtime.bench.pass_costs import PassCosts, measure_costs
from cactus_runtime.bench.rounds import interleave, spread
from cactus_runtime.decoder import Decoder
from cactus_runtime.request import Request
from cactus_runtime.result.result import DecodeResult
from cactus_runtime.sampling import SamplingParams
from cactus_theory import Cactus, Rule, SpeculativeSampling

PLAIN, SPECULATIVE, ASSISTED, GENERATE = (
    "plain",
    "speculative sampling",
    "transformers assisted",
    "transformers generate",
)


def bench_decoding(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt_ids: Sequence[int],
    *,
    deltas: Sequence[float],
    num_draft_tokens: int,
    tokens: int,
    temperature: float,
    rounds: int,
    transformers: bool = True,
    compile: bool = False,
) -> Iterator[dict[str, Any]]:
    """Speed, acceptance and ledger of every rule, with ratios within each round.

    The bound of a round is block_efficiency / (k t_draft + t_verify), with the bare forward times
    measured in that round.
    """
    decoder = Decoder(target, draft=draft, compile=compile)
    rules: dict[str, tuple[Rule, int]] = {PLAIN: (SpeculativeSampling(), 0)}
    rules[SPECULATIVE] = (SpeculativeSampling(), num_draft_tokens)
    rules |= {f"Cactus({delta:g})": (Cactus(delta), num_draft_tokens) for delta in deltas}
    sampling = SamplingParams(temperature=temperature)

    def ours(rule: Rule, drafts: int) -> Callable[[int], DecodeResult]:
        def run(number: int) -> DecodeResult:
            request = Request(
                prompt_ids,
                rule=rule,
                num_draft_tokens=drafts,
                sampling=sampling,
                max_new_tokens=tokens,
                seed=number,
                eos_token_id=(),
            )
            return decoder.stream(request).finish()

        return run

    contenders: dict[str, Callable[[int], Any]] = {
        name: ours(rule, drafts) for name, (rule, drafts) in rules.items()
    }
    contenders["passes"] = lambda _: measure_costs(
        target,
        draft,
        max_draft_tokens=num_draft_tokens,
        context_tokens=len(prompt_ids) + tokens // 2,
        repetitions=5,
        compile=compile,
    )
    if transformers:
        generate = _generate(target, prompt_ids, tokens, temperature)
        contenders[GENERATE] = lambda number: generate(number)
        _fix_assistant(draft, num_draft_tokens)
        contenders[ASSISTED] = lambda number: generate(number, assistant_model=draft)
    runs = interleave(contenders, rounds=rounds, description="decoding")
    yield from _lines(runs, rules, tokens, num_draft_tokens, compile)


def _lines(
    runs: dict[str, list[tuple[float, Any]]],
    rules: dict[str, tuple[Rule, int]],
    tokens: int,
    num_draft_tokens: int,
    compiled: bool,
) -> Iterator[dict[str, Any]]:
    rates = {name: [tokens / seconds for seconds, _ in run] for name, run in runs.items()}
    yield {
        "name": "passes",
        "dtypes": str(runs[PLAIN][0][1].dtypes),
        "compiled": compiled,
        "draft_cost": spread([costs.draft_cost for _, costs in runs["passes"]]),
        "verify_cost": spread([costs.verify_cost[num_draft_tokens] for _, costs in runs["passes"]]),
        "seconds": spread([costs.seconds for _, costs in runs["passes"]]),
    }
    for name in (GENERATE, ASSISTED):
        if name in runs:
            yield {"name": name, "tokens_per_second": spread(rates[name])}
    for name, (_, drafts) in rules.items():
        results: list[DecodeResult] = [result for _, result in runs[name]]
        line: dict[str, Any] = {
            "name": name,
            "num_draft_tokens": drafts,
            "tokens_per_second": spread(rates[name]),
            "of_bound": spread(
                [
                    rate / _bound(result, costs, drafts)
                    for rate, result, (_, costs) in zip(
                        rates[name], results, runs["passes"], strict=True
                    )
                ]
            ),
            "block_efficiency": spread([result.block_efficiency for result in results]),
        }
        for other in (PLAIN, GENERATE, ASSISTED):
            if other in runs and other != name:
                ratios = [a / b for a, b in zip(rates[name], rates[other], strict=True)]
                line[f"over {other}"] = spread(ratios)
        if drafts:
            line |= {
                "acceptance_rate": spread([result.acceptance_rate for result in results]),
                "total_variation_per_token": spread(
                    [result.total_variation / len(result.tokens) for result in results]
                ),
                "kl_bound_per_token": spread(
                    [result.kl_bound / len(result.tokens) for result in results]
                ),
            }
        yield line


def _bound(result: DecodeResult, costs: PassCosts, drafts: int) -> float:
    """Tokens per second if a block took no more than its bare forward passes."""
    block = drafts * costs.draft_cost + costs.verify_cost[drafts]
    return result.block_efficiency / (block * costs.seconds)


def _generate(
    target: PreTrainedModel, prompt_ids: Sequence[int], tokens: int, temperature: float
) -> Callable[..., Any]:
    ids = torch.tensor([list(prompt_ids)], device=target.device)
    sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}

    def run(number: int, **assistant: Any) -> Any:
        torch.manual_seed(number)
        return target.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
            **(sampled if temperature else {"do_sample": False}),
            **assistant,
        )

    return run


def _fix_assistant(draft: PreTrainedModel, num_draft_tokens: int) -> None:
    """Make transformers always draft this number of tokens."""
    config: Any = draft.generation_config
    config.num_assistant_tokens = num_draft_tokens
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0
