"""Checks for samplers, a catalogue of their mistakes, and hypothesis strategies to try them on.

`import cactus_theory` does not import this package. The strategies need hypothesis, an extra, and
are imported when first asked for; the checks and the catalogue do not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cactus_theory.testing._block_edges import check_block_edges as check_block_edges
from cactus_theory.testing._block_mistakes import BLOCK_CATALOGUE as BLOCK_CATALOGUE
from cactus_theory.testing._block_mistakes import BlockMistake as BlockMistake
from cactus_theory.testing.blocks import BlockEnumeration as BlockEnumeration
from cactus_theory.testing.blocks import block_law as block_law
from cactus_theory.testing.blocks import check_blocks_by_enumeration as check_blocks_by_enumeration
from cactus_theory.testing.blocks import check_blocks_by_sampling as check_blocks_by_sampling
from cactus_theory.testing.blocks import (
    specification_block_verifier as specification_block_verifier,
)
from cactus_theory.testing.catalogue import CATALOGUE as CATALOGUE
from cactus_theory.testing.catalogue import Mistake as Mistake
from cactus_theory.testing.catalogue import diagnose as diagnose
from cactus_theory.testing.catalogue import tempered as tempered
from cactus_theory.testing.catalogue import wrong_laws as wrong_laws
from cactus_theory.testing.checks import ConformanceError as ConformanceError
from cactus_theory.testing.checks import Enumeration as Enumeration
from cactus_theory.testing.checks import SamplingReport as SamplingReport
from cactus_theory.testing.checks import check_by_enumeration as check_by_enumeration
from cactus_theory.testing.checks import check_by_sampling as check_by_sampling
from cactus_theory.testing.checks import check_edges as check_edges
from cactus_theory.testing.checks import samples_needed as samples_needed
from cactus_theory.testing.checks import specification_verifier as specification_verifier

if TYPE_CHECKING:
    from cactus_theory.testing.strategies import Pair as Pair
    from cactus_theory.testing.strategies import RaggedBatch as RaggedBatch
    from cactus_theory.testing.strategies import all_rules as all_rules
    from cactus_theory.testing.strategies import budgets as budgets
    from cactus_theory.testing.strategies import divergences as divergences
    from cactus_theory.testing.strategies import laws as laws
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
        "laws",
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
