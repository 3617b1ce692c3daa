"""Tiny models with random weights of every causal language model class in transformers.

Knows the names of size parameters in configurations. Does not know what the models are for.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 48
POSITIONS = 64
_STD = 0.4  # of weights; with the default of .02 models hardly depend on their context

_SIZES = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "n_layer"), 2),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "dff"), 64),
    **dict.fromkeys(("ffn_hidden_size", "dim_ff", "d_inner", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), POSITIONS),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts", "n_shared_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("shared_expert_intermediate_size", "intermediate_size_mlp"), 16),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "window_size"), 6),
    "num_key_value_heads": 2,
    "head_dim": 8,
    "word_embed_proj_dim": 32,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
}
_HYBRID = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_expand": 2, "mamba_d_state": 8}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_LOCAL_AND_FULL = ["sliding_attention", "full_attention"]
_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
}
_OWN: dict[str, dict[str, Any]] = {
    "BambaForCausalLM": {**_HYBRID, "attn_layer_indices": [1]},
    "CodeGenForCausalLM": {"rotary_dim": 8},
    "CohereCompassForCausalLM": {
        "layer_types": _LOCAL_AND_FULL,
        "rope_parameters": dict.fromkeys(_LOCAL_AND_FULL, _ROPE),
    },
    "CwmForCausalLM": _ENDS,
    "DbrxForCausalLM": {
        "attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "Emu3ForCausalLM": _ENDS,
    "Gemma3nForCausalLM": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 1,
        "layer_types": 2 * _LOCAL_AND_FULL,
    },
    "GitForCausalLM": {"vision_config": _TOWER},
    "GPTJForCausalLM": {"rotary_dim": 8},
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 1]]},
    "GraniteMoeHybridForCausalLM": {**_HYBRID, "layer_types": ["mamba", "attention"]},
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"]},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"]},
    "LongcatFlashForCausalLM": {"head_dim": 8, "num_layers": 1},
    "Mamba2ForCausalLM": {"head_dim": 16, "num_heads": 4, "n_groups": 1, "state_size": 8},
    "MllamaForCausalLM": {**_ENDS, "rope_parameters": _ROPE},
    "ModernBertDecoderForCausalLM": _ENDS,
    "MusicgenForCausalLM": {"num_codebooks": 1},
    "MusicgenMelodyForCausalLM": {"num_codebooks": 1},
    "ReformerModelWithLMHead": {
        "axial_pos_embds_dim": (16, 16),
        "axial_pos_shape": (8, 8),
        "attn_layers": ["local", "local"],
    },
    "XmodForCausalLM": {"default_language": "en_XX"},
    "ZambaForCausalLM": {
        "num_hidden_layers": 4,
        "layer_types": 2 * ["linear_attention", "hybrid"],
    },
    "ZayaForCausalLM": {"num_experts_per_tok": 1},
}
_MOST = 20_000_000  # parameters


def names() -> list[str]:
    """Classes of the causal language model mapping, each once."""
    return list(dict.fromkeys(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()))


def configuration(name: str) -> Any:
    """A small configuration for a class, by its name."""
    made = getattr(transformers, name).config_class
    known = _fields(made)
    given = {key: value for key, value in _SIZES.items() if key in known}
    given |= dict.fromkeys({"bos_token_id", "eos_token_id"} & known)
    if "is_decoder" in known:  # makes an encoder's class a decoder
        given["is_decoder"] = True
    if "kv_lora_rank" in known:
        given["num_key_value_heads"] = _SIZES["num_attention_heads"]
        given.pop("head_dim", None)
    return made(**{**given, **_OWN.get(name, {})})


def build(name: str) -> PreTrainedModel:
    """The model of that class, in evaluation mode, with normal weights from seed 0.

    Raises
    ------
    ValueError
        If the model would not be small.
    """
    config = configuration(name)
    made = getattr(transformers, name)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in made(copy.deepcopy(config)).parameters())
    if size > _MOST:
        raise ValueError(
            f"its configuration has parts that remain large, {size:,} parameters in all"
        )
    torch.manual_seed(0)
    model = made(config)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=_STD)
    return model.eval().requires_grad_(False)


def _fields(made: Any) -> set[str]:
    found = set(inspect.signature(made.__init__).parameters) | set(made.attribute_map)
    return found | set(getattr(made, "__dataclass_fields__", ()))
