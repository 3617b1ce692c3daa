"""Several drafts for one position: what they accept at best, and a verifier that reaches it.

Knows k tokens drawn independently from one distribution. Drafts without replacement, trees and
decoding are not here.
"""

from cactus_theory.multidraft.frontier import MultiDraftClamp as MultiDraftClamp
from cactus_theory.multidraft.frontier import equivalent_draft as equivalent_draft
from cactus_theory.multidraft.frontier import multidraft_acceptance as multidraft_acceptance
from cactus_theory.multidraft.selection import selection_chances as selection_chances
from cactus_theory.multidraft.selection import verify_drafts as verify_drafts
