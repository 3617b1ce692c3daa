"""Pictures of `cactus_theory.plots` in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


def draw(path: Path, picture: str, *arguments: Any) -> None:
    """Write a picture in the format of its suffix, and report it on stderr.

    Parameters
    ----------
    path : Path
    picture : str
        A function of `cactus_theory.plots` that returns a pair of axes.
    *arguments
        Its arguments.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw(Path(folder) / "granted.png", "granted", 0.5)
    ...     (Path(folder) / "granted.png").stat().st_size > 0
    True
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    from cactus_theory import plots

    left, _ = getattr(plots, picture)(*arguments)
    left.figure.savefig(path, dpi=150)
    plt.close(left.figure)
    click.echo(f"wrote {path}", err=True)
