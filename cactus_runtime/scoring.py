"""`score`: how probable a given text is under the decoder, by one pass of each model over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cactus_runtime.decoder import Decoder
from cactus_runtime.draft_length import AdaptiveDraft
from cactus_runtime.loading import eos_token_ids
from cactus_runtime.models.kv_cache import vocabulary_size
from cactus_runtime.pairs import Pair
from cactus_runtime.request import Prompt
from cactus_runtime.sampling import SamplingParams
from cactus_runtime.teacher_forcing import CHUNK, logits_of_text
from cactus_runtime.verification.method import Method, Verification
from cactus_theory import TokenProbabilities, prefix_log_likelihood, token_probabilities
from cactus_theory._validate import integer
from cactus_theory.rules import Rule, SpeculativeSampling


@dataclass(frozen=True)
class TextScore:
    """Likelihood of a text under a decoder, and the probabilities of its tokens.

    Attributes
    ----------
    tokens : tuple of int
        Those of the text, without the prompt.
    prompt_tokens : int
    probabilities : TokenProbabilities
        For each token p, q, the chance that it is drafted and accepted, out, and the cost of its
        position.
    log_likelihoods : float64 array, shape (T,)
        Log-probability (nats) that the decoder's text begins with the first 1, 2, ..., T tokens.

    Examples
    --------
    >>> from cactus_runtime import score
    >>> found = score("tiny", "a small animal", prompt="dog:")
    >>> len(found.tokens) == len(found.log_likelihoods)
    True
    """

    tokens: tuple[int, ...]
    prompt_tokens: int
    probabilities: TokenProbabilities = field(repr=False)
    log_likelihoods: np.ndarray = field(repr=False)

    @property
    def log_likelihood(self) -> float:
        """Log-probability of the text under the decoder, in nats."""
        return float(self.log_likelihoods[-1])

    @property
    def target_log_likelihood(self) -> float:
        """Log-probability of the text under the target itself, in nats."""
        with np.errstate(divide="ignore"):
            return float(np.log(self.probabilities.target).sum())

    @property
    def log_probabilities(self) -> np.ndarray:
        """Log-probability of each token under the decoder, given those before it, shape (T,)."""
        with np.errstate(invalid="ignore"):
            return np.diff(self.log_likelihoods, prepend=0.0)


def score(
    target: str | Path | Pair | PreTrainedModel,
    text: str | Sequence[int],
    *,
    prompt: Prompt,
    draft: str | Path | PreTrainedModel | None = None,
    rule: Rule = SpeculativeSampling(),
    num_draft_tokens: int = 4,
    sampling: SamplingParams = SamplingParams(),
    max_new_tokens: int | None = None,
    verification: Verification = "token",
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    chunk: int = CHUNK,
    on_progress: Callable[[int, int], object] | None = None,
) -> TextScore:
    """Exact log-probability that the decoder writes a given text after a prompt.

    Both models read the text once, in chunks. The probability sums over all ways in which each
    token may have been accepted, recovered or drawn after a block; see
    `cactus_theory.text_log_likelihood`. It does not exist for adaptive numbers of drafts and for
    budgets, which make the rule depend on the path: there each decoded path has
    `DecodeResult.log_weight`.

    Parameters
    ----------
    target, draft, tokenizer, device, dtype
        As for `Decoder`; the draft must be a model.
    text : str or sequence of int
        Tokenized by itself, so a text that continues a word is better given as ids.
    prompt, rule, num_draft_tokens, sampling, verification
        As for `Request`.
    max_new_tokens : int, optional
        The decoder's limit, which shortens its last blocks. None: none is shortened, and the result
        is the probability that a long text begins so.
    chunk : int
        Tokens read at once.
    on_progress : callable, optional
        Called with the number of tokens read and that of all tokens, after each chunk.

    Returns
    -------
    TextScore

    Raises
    ------
    ModelNotFoundError, NonFiniteLogitsError, TypeError, ValueError
        Naming the argument and its value.

    Examples
    --------
    >>> from cactus_theory import Cactus
    >>> found = score("tiny", "a small animal", prompt="dog:", rule=Cactus(0.1))
    >>> bool(found.log_likelihood < 0), found.probabilities.emitted.shape == (len(found.tokens),)
    (True, True)
    >>> plain = score("tiny", "a small animal", prompt="dog:")
    >>> abs(plain.log_likelihood - plain.target_log_likelihood) < 1e-9
    True
    """
    if isinstance(num_draft_tokens, AdaptiveDraft):
        raise TypeError(
            "num_draft_tokens must be an integer, because with an adaptive number only paths have "
            f"probabilities (DecodeResult.log_weight), got {num_draft_tokens!r}"
        )
    integer("num_draft_tokens", num_draft_tokens, 0)
    integer("chunk", chunk, 1)
    Method(rule, verification).check()
    decoder = Decoder(target, draft=draft, tokenizer=tokenizer, device=device, dtype=dtype)
    if not isinstance(decoder.draft, PreTrainedModel):
        raise TypeError(
            "draft must be a model, because a text has a likelihood only where every token has a "
            f"draft probability, got {decoder.draft!r}"
        )
    before, tokens = decoder.encode(prompt), decoder.encode(text, name="text")
    width = vocabulary_size(decoder.target)
    ends = eos_token_ids(decoder.target, decoder.tokenizer, None)
    processors = sampling.processors_for(len(before), ends)
    draft_rows, target_rows = (
        logits_of_text(model, before, tokens, width=width, chunk=chunk)
        for model in (decoder.draft, decoder.target)
    )
    ids = torch.tensor([[*before, *tokens]], device=decoder.target.device)

    def laws(rows: Iterator[torch.Tensor]) -> Iterator[np.ndarray]:
        for i, row in enumerate(rows):
            if processors:
                earlier: torch.LongTensor = ids[:, : len(before) + i]  # type: ignore[assignment]
                row = processors(earlier, row.clone())  # type: ignore[arg-type]
            yield sampling.warp(row).softmax(-1, dtype=torch.float64)[0].cpu().numpy()

    def with_progress(rows: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for i, row in enumerate(rows, start=1):
            if on_progress is not None and (i % chunk == 0 or i == len(tokens)):
                on_progress(i, len(tokens))
            yield row

    found = token_probabilities(
        list(tokens),
        draft=laws(draft_rows),
        target=with_progress(laws(target_rows)),
        rule=rule,
    )
    logs = prefix_log_likelihood(
        found,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=max_new_tokens,
        verification=verification,
    )
    return TextScore(tokens, len(before), found, logs)
