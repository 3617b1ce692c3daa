"""A running sum drawn as SVG, by hand: one line, two labelled axes, no dependency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 464, 24, 172  # of the frame


def running_sum(charges: Sequence[float], *, label: str, colour: str) -> str:
    """Draw the running sum of what the tokens were charged.

    The i-th of n points is (i, charges_1 + ... + charges_i); the axes start at (0, 0).

    Parameters
    ----------
    charges : sequence of n >= 1 floats
        Of the tokens, in their order. A sum that is not finite is drawn at the upper edge.
    label : str
        Of the vertical axis, with its unit; plain text without markup.
    colour : str
        Of the line, as CSS writes it.

    Returns
    -------
    str
        An svg element to be set into HTML. Its text has the colour of the text around it.

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
    points = [_place((i + 1) / len(sums), value / top) for i, value in enumerate(sums)]
    x, y = points[-1].split(",")
    middle = (LEFT + RIGHT) // 2, (TOP + BOTTOM) // 2
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img"'
            f' aria-label="{label} against the token index: {sums[-1]:.4g} in the end">',
            f'<path d="M{LEFT},{TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="currentColor"/>',
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}"'
            ' stroke-width="2"/>',
            f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>',
            '<g fill="currentColor" font-size="12">',
            f'<text x="{LEFT - 6}" y="{BOTTOM}" text-anchor="end">0</text>',
            f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{top:.3g}</text>',
            f'<text x="{LEFT}" y="{BOTTOM + 18}" text-anchor="middle">0</text>',
            f'<text x="{RIGHT}" y="{BOTTOM + 18}" text-anchor="middle">{len(sums)}</text>',
            f'<text x="{middle[0]}" y="{BOTTOM + 38}" text-anchor="middle">token index</text>',
            f'<text transform="translate(16,{middle[1]}) rotate(-90)" text-anchor="middle">'
            f"{label}</text>",
            "</g>",
            "</svg>",
        ]
    )


def _place(along: float, up: float) -> str:
    """A point of the frame, from its fractions of the two axes."""
    up = up if math.isfinite(up) else 1.0
    return f"{LEFT + along * (RIGHT - LEFT):.1f},{BOTTOM - up * (BOTTOM - TOP):.1f}"
