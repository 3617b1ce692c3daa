"""Acceptance rules, each defined once and evaluated by numpy in theory and torch in the decoder."""

from cactus_theory.rules._base import Rule as Rule
from cactus_theory.rules.cactus import Cactus as Cactus
from cactus_theory.rules.cactus import CactusExact as CactusExact
from cactus_theory.rules.cactus import CactusSafe as CactusSafe
from cactus_theory.rules.speculative import SpeculativeSampling as SpeculativeSampling
