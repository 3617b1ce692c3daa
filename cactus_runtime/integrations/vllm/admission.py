"""A request's settings are checked where it arrives, before the engine sees it."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from cactus_runtime.integrations.vllm.settings import (
    KEY,
    PREFIX,
    check_fits,
    configured,
    own_settings,
    request_settings,
)


def check_requests(processor: Any) -> None:
    """Make vLLM's ``InputProcessor`` refuse wrong settings; a server then answers 400.

    Parameters
    ----------
    processor : type
        The class, whose method ``_validate_params`` sees the parameters of every request.
    """
    stock = processor._validate_params

    @functools.wraps(stock)
    def _validate_params(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        own = own_settings(getattr(params, "extra_args", None))
        if own:
            try:
                check_request(own, self.vllm_config)
            except (TypeError, ValueError) as error:
                refusal = import_module("vllm.exceptions").VLLMValidationError
                raise refusal(str(error), parameter="extra_args") from error
        return stock(self, params, *args, **kwargs)

    processor._validate_params = _validate_params


def check_request(own: dict[str, Any], config: Any) -> None:
    """Refuse settings of a request that the engine of a configuration cannot apply.

    Raises
    ------
    TypeError, ValueError
        If they are wrong, or the engine was started without settings.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> check_request({"delta": 0.3}, SimpleNamespace(additional_config={}))
    Traceback (most recent call last):
    ...
    ValueError: cactus_delta needs an engine started with additional_config={'cactus': {'delta': 0}}
    """
    names = ", ".join(PREFIX + name for name in own)
    if configured(config) is None:
        raise ValueError(
            f"{names} needs an engine started with additional_config={{'cactus': {{'delta': 0}}}}"
        )
    try:
        check_fits(request_settings(own, config.additional_config[KEY]), config)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{names}: {error}") from error
