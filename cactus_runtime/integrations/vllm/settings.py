"""The rule that ``additional_config={"cactus": ...}`` describes, and which engines can use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cactus_theory.rules import CandidateRule
from cactus_theory.rules.parsing import rule_from
from cactus_theory.rules.registry import RULES

KEY = "cactus"
CANDIDATES = [name for name, entry in RULES.items() if entry.has_candidates]


def rule_of(settings: Any) -> CandidateRule:
    """The rule that settings describe: the name of a ``rule``, and its parameters.

    Parameters
    ----------
    settings : mapping
        ``rule``, "cactus" if not given, and the parameters of that rule in the registry, such as
        ``delta``, the budget of one candidate in nats. A shifted logit can only express rules with
        candidates, and torch must be able to evaluate them.

    Returns
    -------
    CandidateRule

    Raises
    ------
    TypeError, ValueError
        If there is no such rule, the rule is of another kind, or its parameters are wrong.

    Examples
    --------
    >>> rule_of({"delta": 0.75})
    Cactus(delta=0.75)
    >>> rule_of({"dleta": 0.75})
    Traceback (most recent call last):
    ...
    ValueError: rule cactus takes delta, got dleta=0.75
    """
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise TypeError(f"cactus settings must be like {{'delta': 0.75}}, got {settings!r}")
    parameters = dict(settings)
    name = parameters.pop("rule", "cactus")
    rule = rule_from(name, **parameters)
    if not isinstance(rule, CandidateRule):
        raise ValueError(f"rule must be one with candidates, {', '.join(CANDIDATES)}, got {name!r}")
    try:
        rule.boost(torch.full((1,), 0.5, dtype=torch.float64), xp=torch)
    except TypeError as error:
        raise ValueError(f"rule must be one that torch evaluates, got {rule}: {error}") from error
    return rule


def configured_rule(config: Any) -> CandidateRule | None:
    """The rule of a vLLM configuration; None if it has no settings.

    Parameters
    ----------
    config : vllm.config.VllmConfig

    Returns
    -------
    CandidateRule or None

    Raises
    ------
    TypeError, ValueError
        If the settings are wrong, or shifting a logit would not give the rule in this engine:
        without speculative decoding; with a rejection sampling method ("block", "synthetic", "fly")
        other than "standard", the only one that judges token by token; with a watermark, which
        draws differently; with elastic expert parallelism, whose new workers start differently.

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
