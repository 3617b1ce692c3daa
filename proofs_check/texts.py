"""What a text was drawn from: the weights of its paths, and its likelihood.

A path is a text with the positions that were verified; the others are bonus or plain tokens, drawn
from q. The recursion that is checked is the one shipped; the paths it must sum are followed draft
by draft.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import numpy as np

from cactus_theory._forward import EXACT, prefix_totals
from proofs_check.claims import Finding, Step, claim
from proofs_check.paths import LENGTH, VERIFIERS, Text, column, paths, some_chains, texts
from proofs_check.sequence import Chain
from proofs_check.symbolic import at_least, equal, sp

a, b = sp.symbols("a b", positive=True)


@claim(
    name="path-weights",
    source="ours, section 10",
    statement="w = prod q/out over the verified positions of a path has E[w f(text)] = "
    "E_q[f(text)] for every f, also given the past, wherever out covers q",
    tex=r"\mathbb E\Big[\prod_{\text{verified } t} \frac{q_t(x_t)}{\mathrm{out}_t(x_t)}\, f\Big] = "
    r"\mathbb E_q[f]",
    false=({"power": 2}, {"others": "out"}),
)
def path_weights(power: int = 1, others: str = "target") -> Iterator[Step]:
    out, q, w, f = sp.symbols("o q w F", positive=True)
    yield equal(
        "One verified position, given everything before it: the token x has the chance out(x), and "
        "the weight brings it to q(x). F is the target's mean of f given the text with x. Summed "
        "over x, it is w times the target's mean of f before x: w F is a martingale.",
        (
            r"\mathrm{out}(x) \cdot w\,\frac{q(x)}{\mathrm{out}(x)} F",
            out * w * (q / out) ** power * f,
        ),
        (r"w\,q(x) F", w * q * f),
        assumes="out(x) > 0 wherever q(x) > 0; the sum over the others is the target's probability "
        "of the texts that can be emitted",
    )

    def every_chain() -> Finding:
        several = 0
        for chain, verification in product(some_chains(), VERIFIERS):
            found = dict.fromkeys(texts(), Fraction(0))
            followed = paths(chain, verification)
            for (text, flags), chance in followed.items():
                rows = (column(chain, text, name) for name in ("out", "target"))
                ratios = [
                    v / u if known else (v / u if others == "out" else 1)
                    for u, v, known in zip(*rows, flags, strict=True)
                ]
                found[text] += chance * prod(ratios, start=Fraction(1)) ** power
            if any(found[text] != prod(column(chain, text, "target")) for text in texts()):
                return Finding("fails", f"{chain}, {verification}")
            several += len(followed) > len(found)
        return Finding(
            "holds" if several else "fails", f"{several} cases with several paths a text"
        )

    yield Step(
        "With f the indicator of a text, for all texts of 4 tokens on two-token chains: the "
        "weights of its paths average to the target's probability, token by token and by blocks.",
        r"\mathbb E\big[w\,1\{\text{text}\}\big] = \prod_t q_t(x_t)",
        every_chain,
        "exhaustive",
        uses=("block-emits-out",),
    )


@claim(
    name="text-likelihood",
    source="ours, section 10",
    statement="the recursion over phases of a block sums the probabilities of all paths to a text, "
    "the last blocks shortened",
    tex=r"A(i{+}1, j{+}1) \mathrel{+}= A(i,j)\,m(x),\quad A(i{+}1, 0) \mathrel{+}= A(i,j)\,"
    r"(\mathrm{out} - m)(x),\quad P(\text{text}) = \sum_j A(T, j)",
    false=({"shortened": 0}, {"bonus": "out"}, {"swapped": True}),
)
def text_likelihood(
    shortened: int = 1, bonus: str = "target", swapped: bool = False
) -> Iterator[Step]:
    accepted, out = sp.symbols("m o", positive=True)
    yield equal(
        "Given the text and the phase, a verified token came about in two ways, which lead to two "
        "phases: accepted, with the mass m(x), or recovered, with the rest of out(x). The phase "
        "determines what follows, so the chance of the first tokens splits by it.",
        (r"A\,m(x) + A\,(\mathrm{out} - m)(x)", a * accepted + a * (out - accepted)),
        (r"A\,\mathrm{out}(x)", a * out),
        assumes="the number of drafts of a block is known from the text before it; no budget",
    )

    def every_text() -> Finding:
        several = 0
        for chain, verification in product(some_chains(), VERIFIERS):
            chances = dict.fromkeys(texts(), Fraction(0))
            followed = paths(chain, verification)
            for (text, _), chance in followed.items():
                chances[text] += chance
            other = verification if not swapped else "block" if verification == "token" else "token"
            for text in texts():
                if shipped(chain, text, other, shortened, bonus) != chances[text]:
                    return Finding("fails", f"{chain}, {verification}, text {text}")
            several += len(followed) > len(chances)
        return Finding(
            "holds" if several else "fails", f"{several} cases with several paths a text"
        )

    yield Step(
        "The recursion as it is shipped, in fractions, for all texts of 4 tokens on two-token "
        "chains, against every path followed draft by draft, token by token and by blocks.",
        r"\sum_j A(4, j) = \sum_{\text{paths to the text}} P(\text{path})",
        every_text,
        "exhaustive",
        uses=("ordered-is-lossless", "block-emits-out"),
    )


def shipped(chain: Chain, text: Text, verification: str, shortened: int, bonus: str) -> Any:
    """The probability of a text by `cactus_theory`'s recursion, in fractions."""
    p, q, out = (np.array(column(chain, text, name)) for name in ("draft", "target", "out"))
    left = LENGTH - shortened - np.arange(LENGTH)
    totals = prefix_totals(
        draft=p,
        target=q if bonus == "target" else out,
        accepted=np.minimum(p, out),
        emitted=out,
        drafts=np.clip(left, 0, chain.drafted),
        block=verification == "block",
        numbers=EXACT,
    )
    return list(totals)[-1]


@claim(
    name="clamp-weights",
    source="ours, section 10",
    statement="under the clamp at levels b <= 1 <= a, the weight of a position lies in [1/a, 1/b]",
    tex=r"\mathrm{out} = \mathrm{clip}(p, bq, aq) \ \Rightarrow\ \frac1a \le "
    r"\frac{q}{\mathrm{out}} \le \frac1b",
    false=({"low": 2},),
)
def clamp_weights(low: int = 1) -> Iterator[Step]:
    q, out, u, v = sp.symbols("q o u v", positive=True)
    yield at_least(
        "The emitted probability is at least b q, so q is at most out / b.",
        (r"\frac{\mathrm{out}}{b}", out / b),
        (r"q", low * q),
        where={out: b * q + u},
    )
    yield at_least(
        "It is at most a q, so q is at least out / a.",
        (r"q", q),
        (r"\frac{\mathrm{out}}{a}", out / a),
        where={q: (out + v) / a},
        assumes="b > 0; where the draft itself is within the budget, nothing is clipped or bounded",
    )
