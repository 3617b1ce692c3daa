"""A model whose logits are a function of the token ids before them and of nothing else.

It reads the ids out of the cache it is given, through the mask and the positions it is given, in
integers: what it answers depends neither on the shape of the batch nor on the order of a sum, and
a wrong slot, mask or position changes it entirely.
"""

import torch
from transformers import GenerationMixin, LlamaConfig, PreTrainedModel

_PRIME = 1_000_003
_STEP = 7919
_ROWS = 101


def configuration(vocabulary: int, *, positions: int = 256) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=2,
        intermediate_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=None,
    )


class PrefixModel(PreTrainedModel, GenerationMixin):
    """Logits from a table of random rows, picked by a hash of the ids so far.

    Parameters
    ----------
    vocabulary : int
    seed : int
        Of the table.
    scale : float
        Standard deviation of the logits.
    shared : tensor, optional
        Added to the table: two models with one `shared` resemble each other.
    positions : int
        Longest context.
    rows : int
        Different laws there are.
    """

    config_class = LlamaConfig
    _supports_sdpa = True

    def __init__(
        self,
        vocabulary: int,
        *,
        seed: int,
        scale: float = 1.5,
        shared: torch.Tensor | None = None,
        positions: int = 256,
        rows: int = _ROWS,
    ) -> None:
        super().__init__(configuration(vocabulary, positions=positions))
        rng = torch.Generator().manual_seed(seed)
        table = scale * torch.randn(rows, vocabulary, generator=rng)
        table = table if shared is None else table + shared
        self.table = torch.nn.Parameter(table, requires_grad=False)
        self.generation_config = None
        self.eval()

    def forward(
        self,
        input_ids,
        *,
        position_ids=None,
        attention_mask=None,
        cache=None,
        use_cache=None,
        logits_to_keep=0,
    ):
        count = input_ids.shape[1]
        states = (input_ids + 1).double()[:, None, :, None]
        start = 0
        if cache is not None:
            start = cache.get_seq_length()
            states, _ = cache.update(states, states, 0)
        positions = torch.arange(start, start + count).expand(input_ids.shape)
        if position_ids is not None:
            positions = position_ids
        slots = torch.arange(states.shape[2])
        causal = slots <= positions.unsqueeze(-1)
        seen = causal if attention_mask is None else attention_mask[:, 0]
        marks = states[:, 0, :, 0].long() * ((slots + 1) * _STEP % _PRIME)
        sums = (marks.unsqueeze(1) * seen).sum(-1) + positions * 31
        logits = self.table[sums % _PRIME % len(self.table)]
        return Output(logits[:, -logits_to_keep:])

    def after(self, ids) -> torch.Tensor:
        """Logits after the last of these ids."""
        return self(torch.tensor([list(ids)])).logits[0, -1]


class Output:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


def alike(vocabulary: int = 7, *, seed: int = 0, positions: int = 256):
    """A target and a draft whose laws overlap by about two thirds."""
    shared = 1.2 * torch.randn(_ROWS, vocabulary, generator=torch.Generator().manual_seed(seed))
    options = {"shared": shared, "scale": 0.8, "positions": positions}
    return (
        PrefixModel(vocabulary, seed=2 * seed + 1, **options),
        PrefixModel(vocabulary, seed=2 * seed + 2, **options),
    )
