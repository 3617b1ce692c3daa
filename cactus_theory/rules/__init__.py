"""Acceptance rules, each defined once and evaluated by numpy in theory and torch in the decoder."""

from cactus_theory.rules._base import CandidateRule as CandidateRule
from cactus_theory.rules._base import Rule as Rule
from cactus_theory.rules._base import SharedRecoveryRule as SharedRecoveryRule
from cactus_theory.rules.baselines import Lenience as Lenience
from cactus_theory.rules.baselines import Mixture as Mixture
from cactus_theory.rules.baselines import TopKAcceptance as TopKAcceptance
from cactus_theory.rules.baselines import TypicalAcceptance as TypicalAcceptance
from cactus_theory.rules.between import BetweenMarkers as BetweenMarkers
from cactus_theory.rules.cactus import Cactus as Cactus
from cactus_theory.rules.cactus import CactusExact as CactusExact
from cactus_theory.rules.cactus import CactusSafe as CactusSafe
from cactus_theory.rules.clamp import Clamp as Clamp
from cactus_theory.rules.clamp import OneLevelRecovery as OneLevelRecovery
from cactus_theory.rules.engines import RelaxedAcceptance as RelaxedAcceptance
from cactus_theory.rules.engines import RolloutReuse as RolloutReuse
from cactus_theory.rules.engines import SamplerMatch as SamplerMatch
from cactus_theory.rules.engines import ThresholdAcceptance as ThresholdAcceptance
from cactus_theory.rules.engines import TokenCascade as TokenCascade
from cactus_theory.rules.papers import AdaptiveTolerance as AdaptiveTolerance
from cactus_theory.rules.papers import FuzzyAcceptance as FuzzyAcceptance
from cactus_theory.rules.speculative import SpeculativeSampling as SpeculativeSampling
