"""What ``additional_config={"cactus": ...}`` and a request's own settings ask for, and where.

Knows which rules a stock sampler can be made to apply, and which engines can do so. Does not know
how.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cactus_theory import _validate
from cactus_theory.rules import CandidateRule, Rule, SpeculativeSampling
from cactus_theory.rules.parsing import rule_from, takes
from cactus_theory.rules.registry import RULES

KEY = "cactus"
PREFIX = "cactus_"
_BESIDE = ("max_kl", "ledger", "logprobs")
_OF_ENGINE = ("ledger", "logprobs")
ORDERED = [name for name, entry in RULES.items() if entry.kind.ordered]


@dataclass(frozen=True)
class Settings:
    """How the drafted tokens of a request are judged.

    Attributes
    ----------
    rule : Rule
        An ordered one.
    max_kl : float
        Budget of the request's whole text, in nats; lossless once it is spent.
    ledger : bool
        Whether requests without such a budget are charged too. Of the engine.
    logprobs : "target" or "emitted"
        Whose log-probabilities are returned. Of the engine.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> Settings(Cactus(0.0)).is_lossless, Settings(Cactus(0.1)).is_lossless
    (True, False)
    """

    rule: Rule = SpeculativeSampling()
    max_kl: float = math.inf
    ledger: bool = False
    logprobs: str = "target"

    def __post_init__(self) -> None:
        if not isinstance(self.ledger, bool):
            raise TypeError(f"ledger must be true or false, got {self.ledger!r}")
        if self.logprobs not in ("target", "emitted"):
            raise ValueError(f"logprobs must be 'target' or 'emitted', got {self.logprobs!r}")

    @property
    def is_lossless(self) -> bool:
        """Whether the rule is speculative sampling, by its name or its budget."""
        rule = self.rule
        return isinstance(rule, CandidateRule) and (
            rule.lossless or getattr(rule, "delta", None) == 0
        )

    @property
    def shifts(self) -> bool:
        """Whether the rule raises one logit; another one replaces the row."""
        return isinstance(self.rule, CandidateRule)

    @property
    def is_charged(self) -> bool:
        """Whether a ledger is kept of the request."""
        return self.ledger or self.max_kl < math.inf


def settings_of(settings: Any) -> Settings:
    """The settings that a mapping describes.

    Parameters
    ----------
    settings : mapping
        ``rule``, "cactus" if not given, and the parameters of that rule in the registry, such as
        ``delta``, the budget of one candidate in nats. The budget of the clamp, ``epsilon``, may be
        called delta too. Beside these, the other fields of `Settings`.

    Returns
    -------
    Settings

    Raises
    ------
    TypeError, ValueError
        If there is no such rule, its parameters are wrong, torch cannot evaluate it, or what it
        emits does not lie between the two distributions: then no stock sampler can apply it.

    Examples
    --------
    >>> settings_of({"delta": 0.75}).rule
    Cactus(delta=0.75)
    >>> settings_of({"rule": "clamp", "delta": 0.1}).rule
    Clamp(epsilon=0.1, divergence=KL())
    >>> settings_of({"dleta": 0.75})
    Traceback (most recent call last):
    ...
    ValueError: rule cactus takes delta, got dleta=0.75
    """
    parameters = _named(settings)
    beside = {name: parameters.pop(name) for name in _BESIDE if name in parameters}
    if "max_kl" in beside:
        beside["max_kl"] = _budget("max_kl", beside["max_kl"])
    name = parameters.pop("rule", "cactus")
    rule = rule_from(name, **parameters)
    if not rule.ordered:
        raise ValueError(f"rule must be one of {', '.join(ORDERED)}, got {name!r}")
    try:
        _evaluate(rule)
    except TypeError as error:
        raise ValueError(f"rule must be one that torch evaluates, got {rule}: {error}") from error
    return Settings(rule, **beside)


def _budget(name: str, given: Any) -> float:
    """A number of nats, also as text, as HTTP clients may send it."""
    try:
        return _validate.budget(name, float(given) if isinstance(given, str) else given)
    except ValueError:
        raise ValueError(f"{name} must be a number of nats in [0, 1e100], got {given!r}") from None


def _named(settings: Any) -> dict[str, Any]:
    """The settings as keyword arguments, with the clamp's budget by its own name."""
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise TypeError(f"cactus settings must be like {{'delta': 0.75}}, got {settings!r}")
    named = dict(settings)
    name = named.get("rule", "cactus")
    if "delta" in named and not takes(name, "delta") and takes(name, "epsilon"):
        if "epsilon" in named:
            raise ValueError(f"delta and epsilon of rule {name} are the same, got both")
        named["epsilon"] = named.pop("delta")
    return named


def _evaluate(rule: Rule) -> None:
    half = torch.full((1, 2), 0.5, dtype=torch.float64)
    if isinstance(rule, CandidateRule):
        rule.boost(half, xp=torch)
    else:
        rule.accepted_and_emitted(half, half, xp=torch)


def own_settings(extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """A request's own settings, without their prefix.

    Examples
    --------
    >>> own_settings({"cactus_delta": 0.3, "session_id": "a"}), own_settings(None)
    ({'delta': 0.3}, {})
    """
    return {
        key.removeprefix(PREFIX): value
        for key, value in (extra_args or {}).items()
        if key.startswith(PREFIX)
    }


def request_settings(own: Mapping[str, Any], engine: Mapping[str, Any]) -> Settings:
    """The settings of a request, from its own and those that the engine was started with.

    Parameters
    ----------
    own : mapping
        As `own_settings` returns them. A rule among them stands alone; without one, they change
        parameters of the engine's.
    engine : mapping
        ``additional_config["cactus"]``.

    Raises
    ------
    TypeError, ValueError
        As for `settings_of`.

    Examples
    --------
    >>> request_settings({"delta": 0.3}, {"rule": "safe", "delta": 0.1}).rule
    CactusSafe(delta=0.3)
    >>> request_settings({"rule": "clamp", "epsilon": 0.2}, {"delta": 0.1}).rule
    Clamp(epsilon=0.2, divergence=KL())
    """
    for name in set(own) & set(_OF_ENGINE):
        raise ValueError(f"{name} is a setting of the engine, in additional_config['cactus']")
    if "rule" in own:
        given = {name: engine[name] for name in _BESIDE if name in engine} | _named(own)
    else:
        rule = {"rule": engine["rule"]} if "rule" in engine else {}
        given = _named(engine) | _named(rule | dict(own))
    return settings_of(given)


def check_fits(settings: Settings, config: Any) -> None:
    """Refuse settings that the engine of a vLLM configuration cannot apply.

    Parameters
    ----------
    settings : Settings
    config : vllm.config.VllmConfig

    Raises
    ------
    ValueError
        If the engine has no speculative decoding; if its rejection sampling method is "synthetic"
        or "fly", or "block" with a rule that shifts a logit (which one depends on the draft, and
        block verification compares whole rows) or with the first runner, which ignores it; a
        watermark, which draws differently; elastic expert parallelism, whose new workers start
        differently; or if emitted log-probabilities are asked for and vLLM returns raw ones.
    """
    if config.speculative_config is None:
        raise ValueError("cactus needs speculative decoding: speculative_config is None")
    method = config.speculative_config.rejection_sample_method
    if method not in ("standard", "block"):
        raise ValueError(
            f"cactus needs rejection_sample_method='standard' or 'block', got {method!r}"
        )
    if method == "block" and settings.shifts and not settings.is_lossless:
        raise ValueError(
            f"rejection_sample_method='block' needs delta=0 or rule='clamp', got {settings.rule}"
        )
    if method == "block" and not getattr(config, "use_v2_model_runner", False):
        raise ValueError("rejection_sample_method='block' needs vLLM's second model runner")
    if getattr(config, "watermark_config", None) is not None:
        raise ValueError("cactus cannot be used with a watermark: set watermark_config=None")
    if getattr(config.parallel_config, "enable_elastic_ep", False):
        raise ValueError("cactus cannot be used with enable_elastic_ep=True")
    if settings.logprobs == "emitted":
        mode = config.model_config.logprobs_mode
        if mode != "processed_logprobs":
            raise ValueError(
                f"logprobs='emitted' needs logprobs_mode='processed_logprobs', got {mode!r}"
            )


def configured(config: Any) -> Settings | None:
    """The settings of a vLLM configuration; None if it has none.

    Parameters
    ----------
    config : vllm.config.VllmConfig

    Returns
    -------
    Settings or None

    Raises
    ------
    TypeError, ValueError
        If the settings are wrong, or `check_fits` says that this engine cannot apply them.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> configured(SimpleNamespace(additional_config={})) is None
    True
    """
    additional = config.additional_config
    if not isinstance(additional, Mapping) or KEY not in additional:
        return None
    settings = settings_of(additional[KEY])
    check_fits(settings, config)
    return settings
