"""Numbers in one option, separated by commas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class Numbers(click.ParamType):
    """Numbers separated by commas.

    Parameters
    ----------
    number : type
        int or float.
    accepts : callable
        Whether a number is allowed.
    wanted : str
        What they must be, for the error message.

    Examples
    --------
    >>> Numbers(float, lambda x: x >= 0, "numbers >= 0").convert("0.1,1", None, None)
    (0.1, 1.0)
    >>> Numbers(float, lambda x: x >= 0, "numbers >= 0").convert("0.1,-1", None, None)
    Traceback (most recent call last):
        ...
    click.exceptions.BadParameter: must be numbers >= 0 with commas, got '0.1,-1'
    """

    name = "numbers"

    def __init__(self, number: type, accepts: Callable[[Any], bool], wanted: str) -> None:
        self._number, self._accepts, self._wanted = number, accepts, wanted

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The numbers, all allowed and all different."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(map(self._number, value.split(",")))
        except ValueError:
            found = ()
        if not found or not all(map(self._accepts, found)):
            self.fail(f"must be {self._wanted} with commas, got {value!r}", param, ctx)
        if len({f"{x:g}" for x in found}) < len(found):
            self.fail(f"must differ in six digits, got {value!r}", param, ctx)
        return found


def budgets() -> Numbers:
    """Budgets in nats.

    Examples
    --------
    >>> budgets().convert("0,0.5", None, None)
    (0.0, 0.5)
    """
    return Numbers(float, lambda delta: 0 <= delta <= 1e100, "numbers in [0, 1e100]")
