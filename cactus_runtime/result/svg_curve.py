"""A running sum drawn as SVG: one line and two labelled axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from cactus_runtime.rendering import render

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 464, 24, 172  # edges of the frame


def running_sum(charges: Sequence[float], *, label: str, colour: str) -> str:
    """Draw the running sum of the tokens' charges.

    The i-th of n points is (i, charges_1 + ... + charges_i); the axes start at (0, 0).

    Parameters
    ----------
    charges : sequence of n >= 1 floats
        Charges of the tokens, in order. A sum that is not finite is drawn at the upper edge.
    label : str
        Label of the vertical axis, with its unit.
    colour : str
        CSS colour of the line.

    Returns
    -------
    str
        An svg element for use in HTML. Its text has the colour of the surrounding text.

    Raises
    ------
    ValueError
        If there is nothing to draw.

    Examples
    --------
    >>> drawing = running_sum([0.0, 0.5, 0.25], label="nats", colour="#0072B2")
    >>> drawing[drawing.index("points") :].split('"')[1].split()
    ['197.3,172.0', '330.7,73.3', '464.0,24.0']
    """
    if not charges:
        raise ValueError("charges must hold the charge of at least one token, got none")
    sums = list(accumulate(charges))
    top = max((value for value in sums if math.isfinite(value)), default=0.0) or 1.0
    return render(
        "running_sum.svg",
        **{"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT},
        **{"top": TOP, "bottom": BOTTOM, "label": label, "colour": colour},
        points=[_place((i + 1) / len(sums), value / top) for i, value in enumerate(sums)],
        total=sums[-1],
        largest=top,
    )


def _place(along: float, up: float) -> str:
    """A point of the frame, from its fractions of the two axes."""
    up = up if math.isfinite(up) else 1.0
    return f"{LEFT + along * (RIGHT - LEFT):.1f},{BOTTOM - up * (BOTTOM - TOP):.1f}"
