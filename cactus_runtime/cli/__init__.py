"""The command ``cactus``. Importing it imports no model code, and most commands need none."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``cactus`` and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of the process.

    Returns
    -------
    int
        0: success. 1: a claim has an unexpected verdict, a sampler fails its audit, or the reader
        of a pipe has closed it. 2: bad usage, bad input, or a package is not installed. 3: an audit
        had too few tokens for what it should detect. 130: interrupted.

    Examples
    --------
    >>> main(["optimum", "0.5", "0.125"])
    q = 0.5, delta = 0.125 nats
    <BLANKLINE>
                               g      KL spent
    cactus                  0.75      0.130812
    exact                0.74464         0.125
    safe                0.682448     0.0681364
    gap              -0.00535974
    0
    """
    try:
        from cactus_runtime.cli.commands import run
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as missing:
        if missing.name != "click":
            raise
        print("cactus needs click: pip install 'cactus-speculative[cli]'", file=sys.stderr)
        return 2
    return run(arguments)
