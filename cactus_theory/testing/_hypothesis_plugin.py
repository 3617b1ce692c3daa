"""Entry point of group "hypothesis": `st.from_type(Rule)` draws a rule, wherever it is asked for.

Called by hypothesis when it is imported. It imports no strategies until one is needed, and a
failure in it must not keep anyone from importing hypothesis.
"""

from __future__ import annotations


def register() -> None:
    """Register a strategy for Rule, its two kinds, and every rule of the package.

    Examples
    --------
    >>> register()
    >>> from hypothesis import strategies as st
    >>> from cactus_theory import Cactus
    >>> st.from_type(Cactus).validate()
    """
    try:
        from hypothesis import strategies as st

        from cactus_theory import rules

        def drawn(kind):
            from cactus_theory.testing.strategies import rules_of

            return rules_of(kind)

        for kind in vars(rules).values():
            if isinstance(kind, type) and issubclass(kind, rules.Rule):
                st.register_type_strategy(kind, drawn)
    except Exception:
        return
