"""The cache whose rows stand where they stand, against reading everything anew.

Models of many kinds, with random weights: every step's logits must be those of the whole sequence
read at once, whatever the rows did before. Float32 kernels of different shapes differ in the last
bits: up to 2e-6 of the largest logit on these models; one wrong slot, mask or position moves it
by percents. The bound between is 2e-5.
"""

import functools
import random

import pytest
import torch

from cactus_runtime import Decoder, Request
from cactus_runtime.models.kv_cache import Context
from cactus_runtime.models.supported import check_ragged
from tests.tiny_models import tiny_model

CLOSE = 2e-5
VOCABULARY, LIMIT = 11, 64
GROUPED = {"num_key_value_heads": 1, "head_dim": 8}
MIXED = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LATENT = {
    "num_key_value_heads": 2,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 1,
}
LONG = {
    "original_max_position_embeddings": 16,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
    },
}
RAGGED = {
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Llama eager": ("LlamaForCausalLM", GROUPED),
    "Mistral, all layers sliding": ("MistralForCausalLM", {"sliding_window": 6, **GROUPED}),
    "Mistral, sliding, eager": ("MistralForCausalLM", {"sliding_window": 6, **GROUPED}),
    "Qwen2": ("Qwen2ForCausalLM", {"num_key_value_heads": 1}),
    "Qwen3": ("Qwen3ForCausalLM", GROUPED),
    "Qwen3, mixed": (
        "Qwen3ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, **GROUPED},
    ),
    "Gemma 2 eager": ("Gemma2ForCausalLM", {**MIXED, **GROUPED}),
    "Gemma 3, mixed": ("Gemma3ForCausalLM", {**MIXED, **GROUPED}),
    "GPT-2": ("GPT2LMHeadModel", {"n_positions": LIMIT, "n_embd": 16, "n_layer": 2, "n_head": 2}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", {}),
    "Phi-3": ("Phi3ForCausalLM", {"num_key_value_heads": 1}),
    "GPT-OSS eager": ("GptOssForCausalLM", {**MIXED, **GROUPED, **EXPERTS}),
    "OPT": ("OPTForCausalLM", {"ffn_dim": 32, "word_embed_proj_dim": 16}),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", LATENT),
}
ONE_ROW = {
    "Bloom eager": ("BloomForCausalLM", {}, "takes no position_ids"),
    "MPT eager": (
        "MptForCausalLM",
        {"d_model": 16, "n_heads": 2, "n_layers": 2},
        "takes no position_ids",
    ),
    "GPT-Neo eager": (
        "GPTNeoForCausalLM",
        {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 6},
        "a window of their own",
    ),
    "Falcon, ALiBi": (
        "FalconForCausalLM",
        {"alibi": True, "new_decoder_architecture": False},
        "ALiBi",
    ),
    "RoBERTa": ("RobertaForCausalLM", {"is_decoder": True}, "do not count from 0"),
    "Llama 4": (
        "Llama4ForCausalLM",
        {**GROUPED, "attention_chunk_size": 6, "num_local_experts": 2, "intermediate_size_mlp": 16},
        "layers of kind .*chunked_attention",
    ),
}
COMMON = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 2,
    "max_position_embeddings": LIMIT,
    "pad_token_id": 0,
}


@functools.cache
def model(name):
    kind, options, *_ = {**RAGGED, **ONE_ROW}[name]
    attention = "eager" if name.endswith("eager") else "sdpa"
    return tiny_model(kind, std=0.4, attention=attention, **{**COMMON, **options})


class Walk:
    """Sequences, what a context holds of them, and the comparison with reading them anew."""

    def __init__(self, model, *, rows, seed, slots=LIMIT, least=3, most=20):
        self.model, self.rng = model, random.Random(seed)
        self.context = Context(model, rows=rows, slots=slots)
        self.ids = [self.random_ids(self.rng.randint(least, most)) for _ in range(rows)]
        self.worst = 0.0

    def random_ids(self, count):
        return [self.rng.randrange(3, VOCABULARY) for _ in range(count)]

    def block(self, k, *, first=0, rows=None):
        """Read the unread tokens of some rows and k drafts, compare, and commit some of them."""
        some = range(first, first + rows if rows else len(self.ids))
        drafts = [self.random_ids(k) for _ in some]
        news = [self.ids[i][self.context.lengths[i] :] for i in some]
        given = torch.tensor(drafts, dtype=torch.int64).reshape(len(some), k)
        got = self.context.read(news, given, first=first)
        for i, own, logits in zip(some, drafts, got, strict=True):
            self.compare(self.ids[i] + own, logits)
            accepted = self.rng.randint(0, k)
            self.ids[i] += [*own[:accepted], *self.random_ids(1)]
            self.context.lengths[i] = min(self.context.lengths[i], len(self.ids[i]) - 1)

    def compare(self, ids, logits):
        whole = self.model(torch.tensor([ids]), use_cache=False).logits[0, -len(logits) :]
        self.worst = max(self.worst, float((whole - logits).abs().max() / whole.abs().max()))


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_rows_read_and_rewound_give_the_logits_of_the_whole_sequence(name):
    check_ragged(model(name), "target")
    walk = Walk(model(name), rows=3, seed=1)
    for _ in range(8):
        walk.block(walk.rng.randrange(4))
    assert walk.worst < CLOSE


@pytest.mark.parametrize("name", ONE_ROW)
def test_a_model_that_cannot_read_ragged_rows_is_refused_by_name_and_reads_one(name):
    kind, _, reason = ONE_ROW[name]
    with pytest.raises(ValueError, match=f"the draft cannot decode several .*{reason}.*batch_size"):
        check_ragged(model(name), "draft")
    decoder = Decoder(model(name))
    with pytest.raises(ValueError, match=f"the target .*{kind}"):
        decoder.batch([Request([3], max_new_tokens=2)] * 2)
    walk = Walk(model(name), rows=1, seed=1)
    for _ in range(8):
        walk.block(walk.rng.randrange(4))
    assert walk.worst < CLOSE


@pytest.mark.parametrize("implementation", ["flash_attention_2", "flex_attention"])
def test_an_attention_without_masks_per_row_is_refused(random_model, implementation):
    llama = random_model(0)
    llama.config._attn_implementation_internal = implementation
    with pytest.raises(ValueError, match=f"{implementation}.*attn_implementation='sdpa'"):
        check_ragged(llama, "target")


@pytest.mark.parametrize(
    "name", ["Llama", "Mistral, all layers sliding", "Gemma 3, mixed", "GPT-2"]
)
@pytest.mark.parametrize("seed", range(4))
def test_rows_may_move_catch_up_rewind_and_be_read_in_part(name, seed):
    walk = Walk(model(name), rows=4, seed=seed, slots=60)
    rng, context = walk.rng, walk.context
    for _ in range(10):
        step = rng.randrange(5)
        if step == 0:
            source, target = rng.randrange(4), rng.randrange(4)
            context.move(source, target)
            walk.ids[target] = list(walk.ids[source])
        elif step == 1:  # another sequence takes the row
            row = rng.randrange(4)
            context.lengths[row], walk.ids[row] = 0, walk.random_ids(rng.randint(1, 25))
        elif step == 2:  # rewound below what was committed, and another token there
            row = rng.randrange(4)
            kept = rng.randint(0, context.lengths[row])
            walk.ids[row] = [*walk.ids[row][:kept], *walk.random_ids(1)]
            context.lengths[row] = kept
        else:
            first = rng.randrange(4)
            walk.block(rng.randrange(4), first=first, rows=rng.randint(1, 4 - first))
    walk.block(2)
    assert walk.worst < CLOSE


def test_tokens_read_one_by_one_give_the_logits_of_the_whole_sequence():
    walk = Walk(model("Qwen3, mixed"), rows=3, seed=0)
    walk.block(0)
    for _ in range(12):
        walk.context.read([ids[walk.context.lengths[i] :] for i, ids in enumerate(walk.ids)])
        drafted = torch.tensor([walk.random_ids(1)[0] for _ in walk.ids])
        logits = walk.context.extend(drafted)
        for i, token in enumerate(drafted.tolist()):
            walk.ids[i].append(token)
            walk.compare(walk.ids[i], logits[i])
            walk.ids[i] += walk.random_ids(1)
    assert walk.worst < CLOSE


@pytest.mark.parametrize("unread", [1, 2, 9, 10, 25])
@pytest.mark.parametrize("name", ["Llama", "Mistral, sliding, eager", "GPT-2", "Gemma 3, mixed"])
def test_a_row_at_the_edge_of_the_context_is_right_beside_one_that_reads_much(name, unread):
    """Where IndexError was raised: a short row was padded beyond the slots there were."""
    walk = Walk(model(name), rows=2, seed=0, least=LIMIT - 6, most=LIMIT - 6)
    walk.block(1)
    walk.ids[0] += walk.random_ids(LIMIT - 1 - len(walk.ids[0]))
    walk.context.lengths[1], walk.ids[1] = 0, walk.random_ids(unread)
    walk.context.lengths[0] = min(walk.context.lengths[0], len(walk.ids[0]) - 1)
    walk.block(1)  # row 0 now holds all LIMIT positions
    assert len(walk.ids[0]) >= LIMIT
    assert walk.worst < CLOSE


def test_requests_that_come_and_go_beside_one_at_its_end_have_room(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    long = Request([1, 2, 3] * 5, max_new_tokens=10, seed=0, num_draft_tokens=0)
    short = [Request([1] * 9, max_new_tokens=n, seed=n) for n in (5, 4, 3, 2, 1, 6, 1, 2, 3)]
    results = decoder.batch([long, *short], batch_size=2).finish()
    assert [len(result.tokens) for result in results] == [10, 5, 4, 3, 2, 1, 6, 1, 2, 3]


def test_the_cache_is_allocated_once_and_never_grows():
    walk = Walk(model("Gemma 3, mixed"), rows=3, seed=2)
    walk.block(2)

    def storage():
        held = [t for layer in walk.context._cache.layers for t in (layer.keys, layer.values)]
        return [(tensor.data_ptr(), tuple(tensor.shape)) for tensor in held]

    before = storage()
    assert {shape[:2] for _, shape in before} == {(3, 1)}
    for step in range(10):
        walk.block(step % 4)
        walk.context.move(step % 3, (step + 1) % 3)
        walk.ids[(step + 1) % 3] = list(walk.ids[step % 3])
    assert storage() == before


def test_frequencies_that_follow_the_longest_row_are_refused_beyond_their_change():
    decoder = Decoder(tiny_model("Phi3ForCausalLM", **COMMON, **LONG))
    few, many = Request([3], max_new_tokens=2), Request([3], max_new_tokens=40)
    assert len(decoder.batch([few, few]).finish()) == 2
    with pytest.raises(ValueError, match=r"Phi3ForCausalLM .* beyond 16 tokens.*batch_size=1"):
        decoder.batch([few, many])
    assert len(decoder.stream(many).finish().tokens) == 40
