"""Entry point of group "hypothesis": lets hypothesis draw rules and divergences by type.

Hypothesis calls it when it is imported. It imports no strategies until one is needed, and an error
in it must not prevent importing hypothesis.
"""

from __future__ import annotations


def register() -> None:
    """Register a strategy for Rule, its two kinds, every rule of the package, and Divergence.

    Examples
    --------
    >>> register()
    >>> from hypothesis import strategies as st
    >>> from cactus_theory import Cactus
    >>> st.from_type(Cactus).validate()
    """
    try:
        from hypothesis import strategies as st

        from cactus_theory import Divergence, rules

        def drawn(kind):
            from cactus_theory.testing.strategies import rules_of

            return rules_of(kind)

        def drawn_divergence(_):
            from cactus_theory.testing.strategies import divergences

            return divergences()

        st.register_type_strategy(Divergence, drawn_divergence)
        for kind in vars(rules).values():
            if isinstance(kind, type) and issubclass(kind, rules.Rule):
                st.register_type_strategy(kind, drawn)
    except Exception:
        return
