"""What speculative decoding with a divergence budget accepts, emits and costs, exactly.

Needs numpy and scipy only. Divergences are in nats unless they say otherwise.
"""

from cactus_theory.divergences import KL as KL
from cactus_theory.divergences import Alpha as Alpha
from cactus_theory.divergences import ChiSquare as ChiSquare
from cactus_theory.divergences import Divergence as Divergence
from cactus_theory.divergences import JensenShannon as JensenShannon
from cactus_theory.divergences import ReverseKL as ReverseKL
from cactus_theory.divergences import SquaredHellinger as SquaredHellinger
from cactus_theory.divergences import TotalVariation as TotalVariation
from cactus_theory.divergences import binary_kl as binary_kl
from cactus_theory.divergences import kl as kl
from cactus_theory.divergences import total_variation as total_variation
from cactus_theory.emitted import Emission as Emission
from cactus_theory.emitted import acceptance_rate as acceptance_rate
from cactus_theory.emitted import block_efficiency as block_efficiency
from cactus_theory.emitted import emission as emission
from cactus_theory.emitted import output_distribution as output_distribution
from cactus_theory.emitted import residual_distribution as residual_distribution
from cactus_theory.inverse import delta_for_acceptance_rate as delta_for_acceptance_rate
from cactus_theory.inverse import delta_for_kl as delta_for_kl
from cactus_theory.inverse import delta_for_sure_acceptance as delta_for_sure_acceptance
from cactus_theory.inverse import delta_for_total_variation as delta_for_total_variation
from cactus_theory.ledger import Ledger as Ledger
from cactus_theory.ledger import budget_stop as budget_stop
from cactus_theory.optimum import Optimum as Optimum
from cactus_theory.optimum import exact_optimum as exact_optimum
from cactus_theory.optimum import optimum_gap as optimum_gap
from cactus_theory.optimum import second_order_optimum as second_order_optimum
from cactus_theory.planning import best_num_draft_tokens as best_num_draft_tokens
from cactus_theory.planning import block_cost as block_cost
from cactus_theory.planning import block_law as block_law
from cactus_theory.planning import break_even_acceptance as break_even_acceptance
from cactus_theory.planning import speedup as speedup
from cactus_theory.rules import Cactus as Cactus
from cactus_theory.rules import CactusExact as CactusExact
from cactus_theory.rules import CactusSafe as CactusSafe
from cactus_theory.rules import CandidateRule as CandidateRule
from cactus_theory.rules import Clamp as Clamp
from cactus_theory.rules import Lenience as Lenience
from cactus_theory.rules import Mixture as Mixture
from cactus_theory.rules import OneLevelRecovery as OneLevelRecovery
from cactus_theory.rules import Rule as Rule
from cactus_theory.rules import SharedRecoveryRule as SharedRecoveryRule
from cactus_theory.rules import SpeculativeSampling as SpeculativeSampling
from cactus_theory.rules import TopKAcceptance as TopKAcceptance
from cactus_theory.rules import TypicalAcceptance as TypicalAcceptance
