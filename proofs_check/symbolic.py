"""SymPy as a number system for the equations, and the two ways an algebraic step is decided.

Trusted here: SymPy's polynomial arithmetic, differentiation and logarithm rules.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import sympy

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
