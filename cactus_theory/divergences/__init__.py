"""The divergences that a candidate's budget may use, each with its generator, forms and optimum.

Knows nothing of rules or samplers. ``kl(p, q)`` is KL(p || q): the first distribution is the one
that is drawn from, the second the one it is measured against. KL-like divergences are in nats; the
others have no unit. No budget in any of them bounds the distribution that is emitted.
"""

from cactus_theory.divergences._alpha import Alpha as Alpha
from cactus_theory.divergences._base import Divergence as Divergence
from cactus_theory.divergences._closed import ChiSquare as ChiSquare
from cactus_theory.divergences._closed import ClosedForm as ClosedForm
from cactus_theory.divergences._closed import SquaredHellinger as SquaredHellinger
from cactus_theory.divergences._closed import TotalVariation as TotalVariation
from cactus_theory.divergences._functions import binary_kl as binary_kl
from cactus_theory.divergences._functions import kl as kl
from cactus_theory.divergences._functions import total_variation as total_variation
from cactus_theory.divergences._kl_root import kl_root as kl_root
from cactus_theory.divergences._kl_terms import binary_kl_of_gain as binary_kl_of_gain
from cactus_theory.divergences._kl_terms import kl_term as kl_term
from cactus_theory.divergences._kl_terms import kl_term_of as kl_term_of
from cactus_theory.divergences._kl_terms import log_growth as log_growth
from cactus_theory.divergences._logarithmic import KL as KL
from cactus_theory.divergences._logarithmic import JensenShannon as JensenShannon
from cactus_theory.divergences._logarithmic import ReverseKL as ReverseKL
from cactus_theory.divergences._optimum import Optimum as Optimum
from cactus_theory.divergences._optimum import Status as Status
from cactus_theory.divergences._optimum import second_order_boost as second_order_boost
