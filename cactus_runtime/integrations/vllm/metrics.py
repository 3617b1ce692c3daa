"""The statistics of the workers as Prometheus metrics of vLLM's server, beside its own."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from cactus_runtime.integrations.vllm.settings import configured

_SUMS = {
    "blocks": "Blocks of drafted tokens that were verified at a temperature above 0.",
    "accepted_tokens": "Drafted tokens that were accepted in them.",
    "rejected_tokens": "Blocks that ended at a rejection.",
    "charged_tokens": "Judged tokens that the ledger was charged for.",
    "expected_accepted_tokens": "Sum of the acceptance probabilities of these.",
    "total_variation": "Sum of TV(emitted, target) of these.",
    "kl_nats": "Sum of a bound of KL(emitted || target) of these, in nats.",
}


def publish_statistics(engine: Any) -> None:
    """Make vLLM's ``AsyncLLM`` publish them whenever it logs its own, every ten seconds.

    Parameters
    ----------
    engine : type
        The class, whose coroutine ``do_log_stats`` a server calls. Engines without the plugin's
        settings or without `CactusExtension` are not asked.
    """
    stock = engine.do_log_stats

    @functools.wraps(stock)
    async def do_log_stats(self: Any) -> None:
        await stock(self)
        config = self.vllm_config
        extension = config.parallel_config.worker_extension_cls or ""
        if extension.endswith("CactusExtension") and configured(config) is not None:
            found = await self.collective_rpc("cactus_statistics")
            statistics = next((each for each in found if each is not None), None)
            if statistics is not None:
                publish(statistics, config.model_config.served_model_name)

    engine.do_log_stats = do_log_stats


def publish(statistics: dict[str, Any], model: str) -> None:
    """Raise the counters to a worker's sums, which begin anew where its settings are changed."""
    ledger = statistics.get("ledger") or {}
    sums = statistics | {
        "charged_tokens": ledger.get("judged_tokens", 0.0),
        "expected_accepted_tokens": ledger.get("expected_accepted_tokens", 0.0),
        "total_variation": ledger.get("total_variation", 0.0),
        "kl_nats": ledger.get("kl", 0.0),
    }
    for name, counter in _counters().items():
        before, now = _seen.get((name, model), 0.0), float(sums[name])
        counter.labels(model_name=model).inc(now - before if now >= before else now)
        _seen[name, model] = now


_seen: dict[tuple[str, str], float] = {}


@functools.cache
def _counters() -> dict[str, Any]:
    counter = import_module("prometheus_client").Counter
    return {
        name: counter(f"vllm:cactus_{name}", text, ["model_name"]) for name, text in _SUMS.items()
    }
