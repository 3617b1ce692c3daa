"""How families of rules are named and drawn, in pictures and on pages."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple


class Look(NamedTuple):
    """Name, colour (Okabe and Ito's, told apart by colour-blind readers) and dashes of a line."""

    name: str
    colour: str
    dash: tuple[int, ...] = ()


LOOKS = MappingProxyType(
    {
        "cactus": Look("Cactus (second order)", "#0072B2"),
        "exact": Look("exact KL optimum", "#D55E00"),
        "safe": Look("safe closed form", "#009E73", (6, 2)),
        "one-level": Look("Cactus, one-level recovery", "#56B4E9", (2, 2)),
        "clamp": Look("clamp", "#CC79A7", (8, 2, 2, 2)),
        "lenience": Look("lenience exp(-delta)", "#E69F00", (6, 2)),
        "mixture": Look("mixture exp(-delta)", "#767676", (6, 2)),
        "speculative": Look("speculative sampling", "#000000", (1, 2)),
        "typical": Look("typical acceptance 0.09", "#767676", (1, 2)),
        "top-k": Look("top-10 acceptance", "#E69F00", (1, 2)),
    }
)
