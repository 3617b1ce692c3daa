"""Hypothesis strategies for laws, pairs, budgets and rules. Needs hypothesis, an extra.

`import cactus_theory` does not import this package.
"""

from cactus_theory.testing.strategies import Pair as Pair
from cactus_theory.testing.strategies import budgets as budgets
from cactus_theory.testing.strategies import laws as laws
from cactus_theory.testing.strategies import pairs as pairs
from cactus_theory.testing.strategies import rules as rules
from cactus_theory.testing.strategies import target_probabilities as target_probabilities
