"""The plugin's entry points: workers that load a model, and calls by ``collective_rpc``."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from cactus_runtime.integrations.vllm.admission import check_requests
from cactus_runtime.integrations.vllm.booster import Booster
from cactus_runtime.integrations.vllm.cpu_build import repair_expansion
from cactus_runtime.integrations.vllm.metrics import publish_statistics
from cactus_runtime.integrations.vllm.requests import RequestSettings
from cactus_runtime.integrations.vllm.settings import KEY, check_fits, configured, settings_of

logger = logging.getLogger("vllm.cactus")  # vLLM shows messages of its own loggers


def register() -> None:
    """Entry point ``vllm.general_plugins``: prepare the workers of this process.

    May be called any number of times. A worker whose configuration has no settings is not changed.

    Raises
    ------
    RuntimeError
        If this vLLM has no workers, or no check of requests, of the known kind. The plugin can be
        kept from loading by VLLM_PLUGINS, or removed.
    """
    try:
        wrapper = import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
        processor = import_module("vllm.v1.engine.input_processor").InputProcessor
        if not hasattr(wrapper, "cactus_registered"):
            check_requests(processor)
            publish_statistics(import_module("vllm.v1.engine.async_llm").AsyncLLM)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            "cactus does not know the workers of this vLLM. Keep the plugin from loading by "
            "VLLM_PLUGINS, a list of others (it may be empty), or uninstall it."
        ) from error
    if not hasattr(wrapper, "cactus_registered"):
        wrapper.cactus_registered = True
        wrapper.load_model = _load_model(_stock(wrapper, "load_model"))
        wrapper.compile_or_warm_up_model = _warm_up(_stock(wrapper, "compile_or_warm_up_model"))


def _stock(wrapper: Any, name: str) -> Any:
    """The wrapper's method, or one that passes the call on to its worker if it has none."""

    def handed_on(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.worker, name)(*args, **kwargs)

    return vars(wrapper).get(name, handed_on)


def _load_model(stock: Any) -> Any:
    @functools.wraps(stock)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = self.vllm_config
        settings = configured(config)  # raises before anything is loaded
        loaded = stock(self, *args, **kwargs)
        if settings is not None:
            given = RequestSettings(config.additional_config[KEY])
            _attach(self.worker, config, Booster(settings, given))
        return loaded

    return load_model


def _warm_up(stock: Any) -> Any:
    @functools.wraps(stock)
    def compile_or_warm_up_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, *args, **kwargs)
        if booster := _booster(self.worker):
            booster.forget()  # dummy drafts
        return result

    return compile_or_warm_up_model


def _attach(worker: Any, config: Any, booster: Booster) -> None:
    sampler = getattr(worker.model_runner, "rejection_sampler", None)
    if sampler is None and config.parallel_config.pipeline_parallel_size > 1:
        return  # sampling happens in another stage of the pipeline
    booster.install(sampler, worker.model_runner)
    repair_expansion(sampler)
    logger.info("cactus: %s", booster.settings.rule)
    if config.speculative_config.draft_sample_method != "probabilistic":
        logger.warning(
            "cactus: drafts are greedy (draft_sample_method is not 'probabilistic'), so each is "
            "taken as certain, and the distribution emitted in its place is the candidate's: its "
            "KL from the target's is at most delta with the rules 'exact' and 'safe', at most "
            "log(1 + 2 delta) with 'cactus'."
        )


def _booster(worker: Any) -> Booster | None:
    sampler = getattr(worker.model_runner, "rejection_sampler", None)
    return getattr(sampler, "cactus", None)


class CactusExtension:
    """For ``worker_extension_cls``: settings and statistics of a running engine.

    Call its methods by ``collective_rpc``; they return one value per worker. Workers of a pipeline
    that do not sample return None.
    """

    model_runner: Any
    vllm_config: Any

    def cactus_configure(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Use other settings from the next step on, and reset the counts.

        Parameters
        ----------
        settings : mapping
            As under ``additional_config["cactus"]``.

        Returns
        -------
        dict
            `cactus_statistics` of the previous settings.

        Raises
        ------
        TypeError, ValueError
            If the settings are wrong; the old ones stay.
        RuntimeError
            If the engine was started without settings.
        """
        wanted = settings_of(settings)
        statistics = self.cactus_statistics()
        if booster := _booster(self):
            check_fits(wanted, self.vllm_config)
            booster.settings = wanted
            booster.forget()
        return statistics

    def cactus_statistics(self) -> dict[str, Any] | None:
        """Rule, budget and counts since the settings were last changed; see `Booster.statistics`.

        Raises
        ------
        RuntimeError
            If the engine was started without settings.
        """
        booster = _booster(self)
        if booster is not None:
            rule = booster.settings.rule
            budget = getattr(rule, "delta", getattr(rule, "epsilon", None))
            return {"rule": type(rule).__name__, "delta": budget} | booster.statistics()
        if getattr(self.model_runner, "rejection_sampler", None) is None:
            return None
        raise RuntimeError(
            "cactus is not in use: start the engine with additional_config={'cactus': {'delta': 0}}"
        )
