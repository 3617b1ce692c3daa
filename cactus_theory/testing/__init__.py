"""Checks for samplers, a catalogue of their mistakes, and hypothesis strategies for their inputs.

`import cactus_theory` does not import this package. The strategies need hypothesis, an extra, and
are imported on first use; the checks and the catalogue do not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cactus_theory.testing._block import block_distribution as block_distribution
from cactus_theory.testing._calls import ConformanceError as ConformanceError
from cactus_theory.testing._calls import OnePosition as OnePosition
from cactus_theory.testing._calls import as_sampler as as_sampler
from cactus_theory.testing._calls import specification_verifier as specification_verifier
from cactus_theory.testing._catalogue import CATALOGUE as CATALOGUE
from cactus_theory.testing._edges import check_edges as check_edges
from cactus_theory.testing._enumeration import Enumeration as Enumeration
from cactus_theory.testing._enumeration import check_by_enumeration as check_by_enumeration
from cactus_theory.testing._mistakes import Mistake as Mistake
from cactus_theory.testing._mistakes import tempered as tempered
from cactus_theory.testing._naming import diagnose as diagnose
from cactus_theory.testing._naming import wrong_distributions as wrong_distributions
from cactus_theory.testing._sampling import SamplingReport as SamplingReport
from cactus_theory.testing._sampling import check_by_sampling as check_by_sampling
from cactus_theory.testing._sampling import check_counts as check_counts
from cactus_theory.testing._sampling import samples_needed as samples_needed

if TYPE_CHECKING:
    from cactus_theory.testing.strategies import Pair as Pair
    from cactus_theory.testing.strategies import RaggedBatch as RaggedBatch
    from cactus_theory.testing.strategies import all_rules as all_rules
    from cactus_theory.testing.strategies import budgets as budgets
    from cactus_theory.testing.strategies import distributions as distributions
    from cactus_theory.testing.strategies import divergences as divergences
    from cactus_theory.testing.strategies import logits as logits
    from cactus_theory.testing.strategies import pairs as pairs
    from cactus_theory.testing.strategies import pairs_with_acceptance as pairs_with_acceptance
    from cactus_theory.testing.strategies import ragged_batches as ragged_batches
    from cactus_theory.testing.strategies import rules as rules
    from cactus_theory.testing.strategies import target_probabilities as target_probabilities

_STRATEGIES = frozenset(
    {
        "Pair",
        "RaggedBatch",
        "all_rules",
        "budgets",
        "divergences",
        "distributions",
        "logits",
        "pairs",
        "pairs_with_acceptance",
        "ragged_batches",
        "rules",
        "target_probabilities",
    }
)


def __getattr__(name: str) -> Any:
    if name in _STRATEGIES:
        return getattr(import_module("cactus_theory.testing.strategies"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
