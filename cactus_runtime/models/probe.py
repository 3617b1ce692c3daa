"""Reads a few tokens in several ways, to check that a model agrees with its cached, rewound self.

`supported` knows problems by names only. A forward may also ignore its cache, attention may look
ahead, or state may be kept elsewhere. So every model reads six tokens before it decodes: all at
once without a cache, then in blocks through a rewound cache.

Two correct readings differ by rounding, which depends on the type, the depth and the kernels. A
wrong one differs by as much as the context matters. Let eps be that of the coarsest type in use, s
the largest absolute logit, and d the largest change of a logit by one earlier token. Readings agree
if they differ by less than

    min(sqrt(eps) s, max(32 eps s, d / 4)),

half of the type's digits, and less than the effect of the context as far as rounding allows it to
be seen. In types of at most 16 bits only the median position has to agree: a mixture of experts may
route a token differently because of a last bit, which is not an error, and a real error shows at
most positions.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers import PreTrainedModel

from cactus_runtime.models.fingerprint import fingerprint
from cactus_runtime.models.kv_cache import Context, vocabulary_size
from cactus_runtime.models.positions import context_length, switches
from cactus_runtime.models.supported import raise_not_ragged

_COUNT, _CHANGED = 6, 2  # number of tokens, and the one that differs in the second text
_found: weakref.WeakKeyDictionary[PreTrainedModel, dict[str, Any]] = weakref.WeakKeyDictionary()


def probe(model: PreTrainedModel, role: str) -> None:
    """Raise ValueError unless cached and uncached blocks of `model` agree, and it is causal.

    A model is probed once, and again only after its weights were moved or replaced.

    Parameters
    ----------
    model : PreTrainedModel
        A model that passed `check_supported`.
    role : str
        "target" or "draft", for the message.

    Raises
    ------
    ValueError
        Saying what the model does wrong.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"vocab_size": 7, "hidden_size": 8, "num_attention_heads": 1}
    >>> config = LlamaConfig(**sizes, intermediate_size=8, num_hidden_layers=1, is_causal=False)
    >>> probe(LlamaForCausalLM(config).eval(), "target")
    Traceback (most recent call last):
    ValueError: target must be causal, but in LlamaForCausalLM a later token changes the logits \
after earlier ones; if these are the weights of an encoder, load a model made to decode
    """
    _once(model, role, "blocks", _read_blocks)


def probe_ragged(model: PreTrainedModel, role: str) -> None:
    """Raise ValueError unless rows of different lengths give the same together as alone."""
    _once(model, role, "rows", _read_rows)


def _once(model: PreTrainedModel, role: str, what: str, read: Any) -> None:
    state = fingerprint(model)
    known = _found.get(model)
    if known is None or known["state"] != state:
        known = _found[model] = {"state": state}
    if what not in known:
        known[what] = read(model, known)
    if known[what] is None:
        return
    if what == "rows":
        raise_not_ragged(role, known[what])
    raise ValueError(f"{role} must be {known[what]}")


def _read_blocks(model: PreTrainedModel, known: dict[str, Any]) -> str | None:
    """What is wrong with a model, or None."""
    name = type(model).__name__
    try:
        texts = _texts(model, known)
        if not texts.comparable:
            return None
        if not texts.agree(texts.logits[1][:_CHANGED], texts.logits[0][:_CHANGED]):
            return (
                f"causal, but in {name} a later token changes the logits after earlier ones; if "
                "these are the weights of an encoder, load a model made to decode"
            )
        context = Context(model, rows=1, slots=_COUNT)
        context.read([texts.ids[0][:1]])
        for ids, wanted in zip(texts.ids, texts.logits, strict=True):
            context.lengths[0] = 1
            block = torch.tensor([ids[2:]], device=model.device)
            if not texts.agree(context.read([ids[1:2]], block)[0], wanted[1:]):
                return (
                    f"a model whose cache can be rewound, but {name} gives other logits for a few "
                    "tokens read in a block after a rewind than for all of them read at once; use "
                    "a model of another class"
                )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return (
            f"a model that reads tokens through a key-value cache, but {name} raised "
            f"{type(error).__name__} at it ({_first_line(error)}); use a model of another class"
        )
    return None


def _read_rows(model: PreTrainedModel, known: dict[str, Any]) -> str | None:
    """Why rows of different lengths cannot be read together, or None."""
    name = type(model).__name__
    try:
        texts = _texts(model, known)
        if not texts.comparable:
            return None
        context = Context(model, rows=2, slots=_COUNT)
        held = (3, 1)
        for row, (ids, count) in enumerate(zip(texts.ids, held, strict=True)):
            context.read([ids[:count]], first=row)
        blocks = [ids[count : count + 3] for ids, count in zip(texts.ids, held, strict=True)]
        drafts = torch.tensor([block[1:] for block in blocks], device=model.device)
        logits = context.read([block[:1] for block in blocks], drafts)
        for found, wanted, count in zip(logits, texts.logits, held, strict=True):
            if not texts.agree(found, wanted[count : count + 3]):
                return f"{name} gives different logits for rows read together than for each alone"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return f"{name} raised {type(error).__name__} at it ({_first_line(error)})"
    return None


def _texts(model: PreTrainedModel, known: dict[str, Any]) -> _Texts:
    if "texts" not in known:
        known["texts"] = _Texts(model)
    return known["texts"]


class _Texts:
    """Two texts that differ in one token, each with its uncached logits."""

    def __init__(self, model: PreTrainedModel) -> None:
        plain = _plain_ids(model)
        count = min(_COUNT, context_length(model) or _COUNT, *switches(model)[:1])
        text = (plain * _COUNT)[:count]
        other = next((token for token in plain if token != text[_CHANGED % count]), text[0])
        self.ids = [text, [other if i == _CHANGED else token for i, token in enumerate(text)]]
        self.logits = [_uncached(model, ids) for ids in self.ids]
        self._eps = _coarsest(model, self.logits[0])
        self.comparable = count > _CHANGED + 1 and not any(x.isnan().any() for x in self.logits)

    def agree(self, found: torch.Tensor, wanted: torch.Tensor) -> bool:
        """Whether logits of some positions, shape (n, V), differ only by rounding."""
        real = wanted.abs() < -torch.finfo(wanted.dtype).min / 2  # others are masks, or not finite
        size = float(wanted[real].abs().max())
        first, second = (logits[_CHANGED + 1 :] for logits in self.logits)
        both = first.isfinite() & second.isfinite()  # others are masks
        context = float(torch.where(both, first - second, 0).abs().max())
        rounding = 32 * self._eps * size
        limit = min(self._eps**0.5 * size, max(rounding, context / 4))
        apart = torch.where(real, found.float() - wanted, 0).abs().amax(-1)
        worst = apart.max() if self._eps < 1e-4 else apart.median()
        return bool(worst <= limit)


@torch.no_grad()
def _uncached(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    tokens = torch.tensor([ids], device=model.device)
    return model(input_ids=tokens, use_cache=False).logits[0].float()


def _plain_ids(model: PreTrainedModel) -> list[int]:
    """A few ordinary ids from all parts of the vocabulary, none of them special."""
    size = vocabulary_size(model)
    special: set[Any] = set()
    for config in (model.config, model.config.get_text_config()):
        for name, value in config.to_dict().items():
            if "token" in name:
                special.update(value if isinstance(value, list) else [value])
    plain = [token for token in range(size) if token not in special] or [0]
    return plain[:: -(-len(plain) // _COUNT)]


def _coarsest(model: PreTrainedModel, logits: torch.Tensor) -> float:
    """The largest eps among the types that a model computes in."""
    types = {tensor.dtype for tensor in (*model.parameters(), logits) if tensor.is_floating_point()}
    eps = max(torch.finfo(dtype).eps for dtype in types)
    if logits.is_cuda and torch.get_float32_matmul_precision() != "highest":
        return max(eps, torch.finfo(torch.float16).eps)  # TF32 has as many digits
    return eps


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0]
