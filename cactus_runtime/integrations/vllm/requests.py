"""Whose settings each request of a batch has, in vLLM's two model runners."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from cactus_runtime.integrations.vllm.settings import Settings, own_settings, request_settings

logger = logging.getLogger("vllm.cactus")

Arrived = tuple[str | None, Mapping[str, Any] | None]  # name and extra_args; None: a dummy


class Requests(Protocol):
    """Names and ``extra_args`` of a batch's requests, in its order."""

    def batch(self, slots: Sequence[int] | None) -> list[Arrived]: ...


class RequestsV1:
    """Of the first runner, which keeps the order of its batch on the host."""

    def __init__(self, model_runner: Any) -> None:
        self._runner = model_runner

    def batch(self, slots: Sequence[int] | None) -> list[Arrived]:
        requests = self._runner.requests
        params = [
            (name, requests[name].sampling_params) for name in self._runner.input_batch.req_ids
        ]
        return [(name, getattr(given, "extra_args", None)) for name, given in params]


class RequestsV2:
    """Of the second runner, whose sampler is told of each request and the slot it takes."""

    def __init__(self, model_runner: Any) -> None:
        self._known: dict[int, Arrived] = {}
        sampler, states = model_runner.sampler, model_runner.req_states
        stock = sampler.add_request

        def add_request(req_idx: int, sampling_params: Any) -> Any:
            name = states.index_to_req_id.get(req_idx)
            self._known[req_idx] = name, sampling_params.extra_args
            return stock(req_idx, sampling_params)

        sampler.add_request = add_request

    def batch(self, slots: Sequence[int] | None) -> list[Arrived]:
        return [self._known.get(int(slot), (None, None)) for slot in slots or ()]


class RequestSettings:
    """Settings by request: its own, completed by those the engine was started with.

    Parameters
    ----------
    engine : mapping
        ``additional_config["cactus"]``.

    Examples
    --------
    >>> given, now = RequestSettings({"delta": 0.1}), Settings()
    >>> given.of(None, now), given.of({"cactus_delta": 0.3}, now).rule
    (None, Cactus(delta=0.3))
    """

    def __init__(self, engine: Mapping[str, Any]) -> None:
        self._engine = engine
        self._made: dict[tuple[tuple[str, Any], ...], Settings] = {}

    def of(self, extra_args: Mapping[str, Any] | None, current: Settings) -> Settings | None:
        """A request's settings; None if it has none of its own.

        A budget alone is added to the engine's current settings.

        Wrong ones were refused when the request arrived (`admission`). If they come here past that
        check, the request is served losslessly, and an error is logged.
        """
        own = own_settings(extra_args)
        if not own:
            return None
        key = tuple(sorted((name, repr(value)) for name, value in own.items()))
        if key not in self._made:
            try:
                self._made[key] = request_settings(own, self._engine)
            except (TypeError, ValueError) as error:
                logger.error("cactus: a request is served losslessly: %s", error)
                self._made[key] = Settings()
        made = self._made[key]
        return replace(current, max_kl=made.max_kl) if own.keys() == {"max_kl"} else made
