"""Random models of eight tokens in folders, as vLLM's engine loads them: a target, and drafters."""

from __future__ import annotations

import json
from pathlib import Path

import torch

SIZE = 8  # tokens
WIDTH = 128
SHAPE = {
    "vocab_size": SIZE,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
}


def written_to(place: Path) -> Path:
    """Folders target, draft, eagle, eagle3 and medusa, and mimo: a target with a predictor."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **SHAPE)).save_pretrained(place / "target")
    draft = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **SHAPE))
    draft.save_pretrained(place / "draft")
    layer = {name.removeprefix("model."): x for name, x in draft.state_dict().items()}
    _eagle(place / "eagle", draft.config, layer)
    _eagle_3(place / "eagle3", draft.config, layer)
    _medusa(place / "medusa")
    _mimo(place / "mimo")
    return place


def _eagle(place: Path, config, layer: dict[str, torch.Tensor]) -> None:
    config.save_pretrained(place)
    missing = ("norm.weight", "layers.0.input_layernorm.weight", "lm_head.weight")
    weights = {name: x for name, x in layer.items() if name not in missing}
    _save(place, weights | {"fc.weight": torch.randn(WIDTH, 2 * WIDTH) * 0.1})


def _eagle_3(place: Path, config, layer: dict[str, torch.Tensor]) -> None:
    """It reads what the target's first layer returns, beside the embedding."""
    config.save_pretrained(place)
    changed = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(
        json.dumps(changed | {"eagle_aux_hidden_state_layer_ids": [1], "num_aux_hidden_states": 1})
    )
    weights = {name.replace("layers.0.", "midlayer."): x for name, x in layer.items()}
    for name in ("q_proj", "k_proj", "v_proj"):
        weights[f"midlayer.self_attn.{name}.weight"] = torch.randn(WIDTH, 2 * WIDTH) * 0.1
    weights["midlayer.hidden_norm.weight"] = torch.ones(WIDTH)
    _save(place, weights | {"fc.weight": torch.randn(WIDTH, WIDTH) * 0.1})


def _medusa(place: Path) -> None:
    place.mkdir()
    shape = {"hidden_size": WIDTH, "vocab_size": SIZE, "num_heads": 2, "num_hidden_layers": 1}
    named = {"model_type": "medusa", "architectures": ["MedusaModel"]}
    (place / "config.json").write_text(json.dumps(shape | named))
    weights = {}
    for head in range(2):
        weights[f"blocks.{head}.layers.0.weight"] = torch.randn(WIDTH, WIDTH) * 0.1
        weights[f"lm_heads.{head}.weight"] = torch.randn(SIZE, WIDTH) * 0.1
    _save(place, weights)


def _mimo(place: Path) -> None:
    """MiMo is Qwen2 with a layer that predicts one token more (multi-token prediction)."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=2, num_key_value_heads=4, **SHAPE))
    model.config.save_pretrained(place)
    config = json.loads((place / "config.json").read_text())
    changed = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (place / "config.json").write_text(json.dumps(config | changed))
    weights = dict(model.state_dict())
    old, new = "model.layers.0.", "model.mtp_layers.0."
    predictor = Qwen2ForCausalLM(model.config).state_dict()
    weights |= {new + name.removeprefix(old): x for name, x in predictor.items() if old in name}
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"{new}{name}.weight"] = torch.ones(WIDTH)
    weights[f"{new}input_proj.weight"] = torch.randn(WIDTH, 2 * WIDTH) * 0.1
    _save(place, weights)


def _save(place: Path, weights: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    whole = {name: x.contiguous() for name, x in weights.items()}
    save_file(whole, place / "model.safetensors", metadata={"format": "pt"})
