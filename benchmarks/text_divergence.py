"""How far decoded texts are from the target's, beside what the ledger was charged for them.

``python -m benchmarks.text_divergence PAIR`` decodes texts, finds the likelihood of each under the
decoder and the target, and prints estimates with 95 % intervals, in nats a text.
"""

from __future__ import annotations

import argparse

import numpy as np
from tqdm import tqdm

from cactus_runtime import Decoder, Request, SamplingParams, load_pair, score
from cactus_theory import Cactus, CactusExact, Clamp, Rule, estimate_divergence
from cactus_theory.divergence_of_texts import Interval

PROMPTS = ("dog:", "kindness:", "river:", "to run:", "music:", "bright:", "teacher:", "winter:")
SAMPLING = SamplingParams(temperature=0.7)
RULES = (*map(Cactus, (0.003, 0.01, 0.1, 1.0)), CactusExact(0.1), Clamp(0.1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair", choices=["tiny", "smollm2"])
    parser.add_argument("--texts", type=int, default=600, help="for each rule")
    parser.add_argument("--tokens", type=int, default=24, help="longest text")
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--rules", type=int, default=len(RULES), help="only the first")
    options = parser.parse_args()
    print("| rule | ledger's bound | KL of positions | KL of texts | bound less KL | TV of texts |")
    print("|---|--:|--:|---|---|---|")
    for rule in RULES[: options.rules]:
        print(row(rule, options), flush=True)


def row(rule: Rule, options: argparse.Namespace) -> str:
    """The rule's line of the table.

    "KL of positions" is the mean of sum KL(out || q) over the verified positions of each path, so
    it lies between the bound and the KL of texts: the former adds to it what the ledger's closed
    form is too large, and the latter lacks what paths tell and texts do not.
    """
    pair = load_pair(options.pair)
    settings = {"rule": rule, "num_draft_tokens": options.drafts, "sampling": SAMPLING}
    settings |= {"max_new_tokens": options.tokens}
    requests = [
        Request(prompt, seed=1, number=number, **settings)
        for number in range(-(-options.texts // len(PROMPTS)))
        for prompt in PROMPTS
    ][: options.texts]
    decoder = Decoder(pair.target, draft=pair.draft, tokenizer=pair.tokenizer)
    results = decoder.batch(requests, batch_size=16).finish()
    logs, targets, positions = [], [], []
    for request, result in tqdm(
        zip(requests, results, strict=True),
        total=len(results),
        desc=str(rule),
        leave=False,
        mininterval=5,
    ):
        found = score(
            pair.target, result.tokens, prompt=request.prompt, draft=pair.draft,
            tokenizer=pair.tokenizer, **settings,
        )  # fmt: skip
        logs.append(found.log_likelihood)
        targets.append(found.target_log_likelihood)
        verified = [token.verdict is not None for token in result.trace]
        positions.append(found.probabilities.kl[verified].sum())
    divergence = estimate_divergence(
        logs, target_log_likelihood=targets, ledger=[result.kl_bound for result in results]
    )
    assert divergence.ledger is not None
    assert divergence.ledger_excess is not None
    return (
        f"| `{rule}` | {divergence.ledger.estimate:.3f} | {np.mean(positions):.3f} "
        f"| {_text(divergence.kl)} | {_text(divergence.ledger_excess)} "
        f"| {_text(divergence.total_variation)} |"
    )


def _text(found: Interval) -> str:
    return f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"


if __name__ == "__main__":
    main()
