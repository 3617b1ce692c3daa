"""Records the distributions of a model pair along texts that its target writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

import cactus_theory.recording
from cactus_runtime.decoder import Decoder
from cactus_runtime.pairs import Pair
from cactus_runtime.request import Request
from cactus_runtime.sampling import SamplingParams
from cactus_theory.recording import Recording

PROMPTS = ("dog:", "kindness:", "river:", "to run:", "music:", "bright:", "teacher:", "winter:")


def record_distributions(
    pair: Pair,
    prompts: Sequence[str | Sequence[int]] = PROMPTS,
    *,
    tokens: int = 12,
    sampling: SamplingParams = SamplingParams(temperature=0.7),
    seed: int = 0,
    tolerance: float = 1e-5,
    name: str = "",
) -> Recording:
    """Let the target continue prompts, and record both models' distributions at every token.

    Parameters
    ----------
    pair : Pair
    prompts : sequence of str, or of token ids
        Used without a chat template.
    tokens : int
        Length of each text; an end-of-text token does not stop it.
    sampling : SamplingParams
        Temperature and filters of both distributions. Penalties and processors are not supported.
    seed : int
    tolerance : float
        See `cactus_theory.recording.compress_distributions`.
    name : str
        Name of the pair, stored with the distributions.

    Returns
    -------
    Recording
        Of ``len(prompts) * tokens`` positions, prompt by prompt.

    Raises
    ------
    ValueError, TypeError
        If there is no prompt, or an argument is out of range.

    Examples
    --------
    >>> from cactus_runtime.pairs import load_pair
    >>> laws = record_distributions(load_pair("tiny"), ["dog:"], tokens=5)
    >>> len(laws), laws.about["temperature"]
    (5, '0.7')
    """
    if not prompts:
        raise ValueError("prompts must hold at least one prompt, got none")
    if sampling.processors_for(0, ()):
        raise ValueError(f"sampling must hold temperature and filters only, got {sampling!r}")
    decoder = Decoder(pair)
    laws = [
        _along(pair, decoder, prompt, tokens=tokens, sampling=sampling, seed=seed)
        for prompt in prompts
    ]
    draft, target = (np.concatenate(side) for side in zip(*laws, strict=True))
    about = {
        "pair": name,
        "prompts": "\n".join(
            prompt if isinstance(prompt, str) else str(prompt) for prompt in prompts
        ),
        "tokens": f"{tokens}",
        "temperature": f"{sampling.temperature:g}",
        "top_k": f"{sampling.top_k}",
        "top_p": f"{sampling.top_p:g}",
        "min_p": f"{sampling.min_p:g}",
        "seed": f"{seed}",
        "vocabulary": f"{draft.shape[1]}",
        "tolerance": f"{tolerance:g}",
    }
    return cactus_theory.recording.compress_distributions(
        draft=draft, target=target, tolerance=tolerance, about=about
    )


def _along(
    pair: Pair,
    decoder: Decoder,
    prompt: str | Sequence[int],
    *,
    tokens: int,
    sampling: SamplingParams,
    seed: int,
) -> list[np.ndarray]:
    """Distributions of draft and target, shape (tokens, V), at the tokens of one text."""
    text = decoder.stream(
        Request(
            prompt,
            num_draft_tokens=0,
            max_new_tokens=tokens,
            sampling=sampling,
            seed=seed,
            eos_token_id=(),
        )
    ).finish()
    if text.finish_reason == "interrupted":
        raise KeyboardInterrupt
    read = pair.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
    ids = torch.tensor([[*read, *text.tokens]])
    found = []
    for model in (pair.draft, pair.target):
        with torch.no_grad():
            logits = model(ids.to(model.device)).logits[0, text.prompt_tokens - 1 : -1]
        found.append(sampling.warp(logits.double()).softmax(-1).cpu().numpy())
    return found
