"""SymPy as a number system for the equations, and the two ways an algebraic step is decided.

Trusted here: SymPy's polynomial arithmetic, differentiation and logarithm rules. `equal` and
`at_least` make steps whose printed formula is the one that is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import sympy

from proofs_check.claims import Step

sp: Any = sympy  # its own type hints are narrower than what it returns


def _exact(bound: Any) -> Any:
    return sp.nsimplify(bound)


def _root(x: Any) -> Any:
    return sp.sqrt(sp.factor(x))


SYMPY = SimpleNamespace(
    log=sp.log, sqrt=_root, clip=lambda x, lo, hi: sp.Min(sp.Max(x, _exact(lo)), _exact(hi))
)
UNCAPPED = SimpleNamespace(log=sp.log, sqrt=_root, clip=lambda x, lo, hi: x)


def vanishes(expression: Any) -> bool:
    """Whether an expression is identically zero where the arguments of its logarithms are > 0.

    Two opinions must agree: SymPy's simplification, with the logarithms of products split, and
    the value at a point to 30 digits, which no wrong branch of a logarithm or root survives.

    Examples
    --------
    >>> x = sp.Symbol("x", positive=True)
    >>> vanishes(sp.log(x * (1 + x)) - sp.log(x) - sp.log(1 + x)), vanishes(x - 1)
    (True, False)
    """
    expression = sp.sympify(expression)
    if not expression.atoms(sp.Function).difference(expression.atoms(sp.log)):
        places = sorted(expression.free_symbols, key=str)
        point = {symbol: sp.Rational(1, 7 + 2 * i) for i, symbol in enumerate(places)}
        value = sp.N(expression.subs(point), 30, maxn=400)
        if not abs(value) < sp.Float("1e-20"):
            return False
    if expression.has(sp.log):
        expression = sp.expand_log(expression.replace(sp.log, _log_of_factors), force=True)
    return sp.simplify(expression) == 0


def _log_of_factors(x: Any) -> Any:
    return sp.expand_log(sp.log(sp.factor(x)), force=True)


def nonnegative(expression: Any) -> bool:
    """Whether a rational function is >= 0 wherever all its symbols are, by its coefficients alone.

    Brought to one fraction, every coefficient above and below the bar must be >= 0. Sufficient,
    not necessary: inequalities are written in slack variables (q = p + s, s >= 0) to meet it.

    Examples
    --------
    >>> a, b = sp.symbols("a b")
    >>> nonnegative((a + b) ** 2 / (1 + a) - a * b / (1 + a)), nonnegative(a - b)
    (True, False)
    """
    above, below = sp.fraction(sp.cancel(sp.together(sp.sympify(expression))))
    return _coefficients_nonnegative(above) and below != 0 and _coefficients_nonnegative(below)


def _coefficients_nonnegative(polynomial: Any) -> bool:
    symbols = sorted(polynomial.free_symbols, key=str)
    if not symbols:
        return bool(polynomial >= 0)
    return all(coefficient >= 0 for coefficient in sp.Poly(polynomial, *symbols).coeffs())


def equal(
    says: str, left: Any, right: Any, *, where: Mapping[Any, Any] | None = None, **more: Any
) -> Step:
    """A step that checks left = right by `vanishes`, and prints the equation it checks.

    A side is an expression, or a pair of its name in TeX and the expression. `where` writes
    variables through parameters that are >= 0, and is printed as well. `more` goes to `Step`; a
    `tex` there replaces the printed equation.

    Examples
    --------
    >>> x = sp.Symbol("x", positive=True)
    >>> step = equal("A square.", (1 + x) ** 2, 1 + 2 * x + x**2)
    >>> step.tex, step.run().outcome
    ('\\\\left(x + 1\\\\right)^{2} = x^{2} + 2 x + 1', 'holds')
    """
    return _relation("=", lambda difference: vanishes(difference), says, left, right, where, more)


def at_least(
    says: str, left: Any, right: Any, *, where: Mapping[Any, Any] | None = None, **more: Any
) -> Step:
    """A step that checks left >= right by `nonnegative`; arguments as for `equal`."""
    return _relation(
        r"\ge", lambda difference: nonnegative(difference), says, left, right, where, more
    )


def _relation(
    sign: str,
    decide: Callable[[Any], bool],
    says: str,
    left: Any,
    right: Any,
    where: Mapping[Any, Any] | None,
    more: dict[str, Any],
) -> Step:
    (left_tex, left), (right_tex, right) = map(_side, (left, right))
    tex = more.pop("tex", f"{left_tex} {sign} {right_tex}")
    domain = r",\ ".join(f"{tex_of(old)} = {tex_of(new)}" for old, new in (where or {}).items())
    tex += rf" \qquad \left({domain}\right)" if domain else ""
    difference = sp.sympify(left) - sp.sympify(right)
    return Step(says, tex, lambda: decide(difference.subs(where or {})), **more)


def _side(side: Any) -> tuple[str, Any]:
    return side if isinstance(side, tuple) else (tex_of(side), side)


def tex_of(expression: Any) -> str:
    """The TeX of an expression, with no brackets around a logarithm's single symbol."""
    return re.sub(r"\\log\{\\left\((\\?\w+) \\right\)\}", r"\\log \1", sp.latex(expression))


def shown(name: str, expression: Any) -> tuple[str, Any]:
    """A side that is printed as its name and its value."""
    return f"{name} = {tex_of(expression)}", expression
