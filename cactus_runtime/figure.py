"""``python -m cactus_runtime.figure``: the README's picture, on laws of the tiny pair."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from cactus_runtime.decoder import Decoder
from cactus_runtime.pairs import Pair, load_pair
from cactus_runtime.request import Request
from cactus_theory.plots import delta_curves

PROMPTS = ("dog:", "kindness:", "river:", "to run:", "music:", "bright:", "teacher:", "winter:")


def record_laws(
    pair: Pair, prompts: tuple[str, ...] = PROMPTS, *, tokens: int = 48, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Laws of draft and target, shape (N, V), at the positions of texts the target wrote itself.

    Examples
    --------
    >>> draft, target = record_laws(load_pair("tiny"), ("dog:",), tokens=5)
    >>> draft.shape == target.shape == (5, 1024)
    True
    """
    draft_laws, target_laws = [], []
    decoder = Decoder(pair)
    for prompt in track(prompts, description="decoding", transient=True, disable=len(prompts) < 2):
        request = Request(
            prompt, num_draft_tokens=0, max_new_tokens=tokens, seed=seed, eos_token_id=()
        )
        text = decoder.stream(request).finish()
        start = text.prompt_tokens
        ids = torch.tensor([[*pair.tokenizer(prompt)["input_ids"], *text.tokens]])
        for model, laws in ((pair.draft, draft_laws), (pair.target, target_laws)):
            with torch.no_grad():
                logits = model(ids).logits[0, start - 1 : -1]
            laws.append(logits.double().softmax(-1).numpy())
    return np.concatenate(draft_laws), np.concatenate(target_laws)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cactus_runtime.figure", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/delta.png"))
    options = parser.parse_args(arguments)
    import matplotlib

    matplotlib.use("agg")
    draft, target = record_laws(load_pair("tiny"))
    left, _ = delta_curves(draft, target, np.geomspace(1e-3, 10, 41))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    left.figure.savefig(options.output, dpi=150)
    print(f"{options.output}: mean over {len(draft)} positions of the tiny pair")
    return 0


if __name__ == "__main__":
    sys.exit(main())
