"""Adapters of weights are decoded with; learned prompts are refused before any work."""

from __future__ import annotations

import pytest
import torch

from cactus_runtime import Decoder, Request, SamplingParams
from cactus_runtime.integrations.transformers_generate import cactus_generate
from tests.tiny_models import tiny_llama

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
IDS = torch.tensor([[1, 2, 3]])
OPTIONS = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
GREEDY = Request((1, 2, 3), max_new_tokens=12, sampling=SamplingParams(temperature=0), seed=0)


def lora(model, *, name="default", seed=0):
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config, adapter_name=name)
    randomise(adapted)
    return adapted.eval()


def randomise(adapted):
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=1.0)


def prompted(model):
    torch.manual_seed(0)
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    return peft.get_peft_model(model, config).eval()


def test_generate_with_lora_gives_what_generate_gives():
    adapted = lora(tiny_llama(0, layers=2))
    wanted = adapted.generate(IDS, **OPTIONS)
    plain = tiny_llama(0, layers=2).generate(IDS, **OPTIONS)
    assert wanted.tolist() != plain.tolist()
    for k in (0, 3):
        found = adapted.generate(
            IDS,
            **OPTIONS,
            custom_generate=cactus_generate,
            draft_model=tiny_llama(1),
            num_draft_tokens=k,
        )
        assert found.tolist() == wanted.tolist()


def test_a_decoder_takes_a_model_with_lora_and_follows_its_switches():
    adapted = lora(tiny_llama(0, layers=2))
    wanted = adapted.generate(IDS, **OPTIONS)[0, 3:].tolist()
    decoder = Decoder(adapted, draft=tiny_llama(1))
    assert list(decoder.stream(GREEDY).finish().tokens) == wanted
    with adapted.disable_adapter():
        plain = tiny_llama(0, layers=2).generate(IDS, **OPTIONS)[0, 3:].tolist()
        assert list(decoder.stream(GREEDY).finish().tokens) == plain
    assert list(decoder.stream(GREEDY).finish().tokens) == wanted


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_decoder_refuses_a_learned_prompt_and_says_what_to_use(role):
    models = {"target": tiny_llama(0), "draft": None, role: prompted(tiny_llama(0))}
    with pytest.raises(TypeError, match=f"{role} must compute .* learned prompt .*such as LoRA"):
        Decoder(models["target"], draft=models["draft"])


def test_generate_refuses_a_learned_prompt_and_still_serves_the_model_after():
    model = tiny_llama(0)
    adapted = prompted(model)
    with pytest.raises(ValueError, match="prepare_inputs_for_generation was replaced by a Peft"):
        adapted.generate(input_ids=IDS, **OPTIONS, custom_generate=cactus_generate)
    wanted = model.generate(IDS, **OPTIONS)
    assert model.generate(IDS, **OPTIONS, custom_generate=cactus_generate).tolist() == (
        wanted.tolist()
    )
