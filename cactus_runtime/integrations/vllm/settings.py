"""The rule that ``additional_config={"cactus": ...}`` asks for, and the engines it can work in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cactus_theory.rules import Cactus, CactusExact, CactusSafe

KEY = "cactus"
Budgeted = Cactus | CactusExact | CactusSafe
RULES = {"cactus": Cactus, "exact": CactusExact, "safe": CactusSafe}


def rule_of(settings: Any) -> Budgeted:
    """The rule that settings describe: ``delta`` in nats and, if given, the name of a ``rule``.

    Parameters
    ----------
    settings : mapping
        ``delta``, a number of nats >= 0, the budget of one candidate; ``rule``, one of "cactus"
        (the default), "exact" and "safe".

    Returns
    -------
    Cactus, CactusExact or CactusSafe

    Raises
    ------
    TypeError, ValueError
        If there are other keys, no delta, an unknown rule, or a delta that is not such a number.

    Examples
    --------
    >>> rule_of({"delta": 0.75})
    Cactus(delta=0.75)
    >>> rule_of({"dleta": 0.75})
    Traceback (most recent call last):
    ...
    ValueError: cactus settings have 'delta' and 'rule' only, got 'dleta'
    """
    if not isinstance(settings, Mapping):
        raise TypeError(f"cactus settings must be like {{'delta': 0.75}}, got {settings!r}")
    unknown = [key for key in settings if key not in ("delta", "rule")]
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise ValueError(f"cactus settings have 'delta' and 'rule' only, got {names}")
    if "delta" not in settings:
        raise ValueError("cactus settings must have 'delta', a number of nats; 0 is lossless")
    name = settings.get("rule", "cactus")
    if not isinstance(name, str) or name not in RULES:
        raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))}, got {name!r}")
    return RULES[name](settings["delta"])


def configured_rule(config: Any) -> Budgeted | None:
    """The rule of a vLLM configuration, None if it asks for none.

    Parameters
    ----------
    config : vllm.config.VllmConfig

    Returns
    -------
    Cactus, CactusExact, CactusSafe or None

    Raises
    ------
    TypeError, ValueError
        If the settings are wrong, or the engine is not one whose sampler a shifted logit makes the
        rule: without speculative decoding; with a rejection sampling method ("block", "synthetic",
        "fly") other than "standard", which alone judges token by token; with a watermark, whose
        draws are others; with elastic expert parallelism, whose new workers start otherwise.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> configured_rule(SimpleNamespace(additional_config={})) is None
    True
    """
    additional = config.additional_config
    if not isinstance(additional, Mapping) or KEY not in additional:
        return None
    rule = rule_of(additional[KEY])
    if config.speculative_config is None:
        raise ValueError("cactus needs speculative decoding: speculative_config is None")
    method = config.speculative_config.rejection_sample_method
    if method != "standard":
        raise ValueError(f"cactus needs rejection_sample_method='standard', got {method!r}")
    if getattr(config, "watermark_config", None) is not None:
        raise ValueError("cactus cannot be used with a watermark: set watermark_config=None")
    if getattr(config.parallel_config, "enable_elastic_ep", False):
        raise ValueError("cactus cannot be used with enable_elastic_ep=True")
    return rule
