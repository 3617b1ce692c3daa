"""Every theorem behind the acceptance rules: proved, refuted, or left as evidence, by machine.

``python -m proofs_check`` prints the table. Importing this package needs nothing beyond the
standard library; the claims themselves need SymPy and python-flint, and import them when loaded.
"""

from proofs_check.claims import Claim as Claim
from proofs_check.claims import Finding as Finding
from proofs_check.claims import Run as Run
from proofs_check.claims import Step as Step
from proofs_check.claims import load as load
from proofs_check.claims import run as run
