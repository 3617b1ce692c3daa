"""The public names of `cactus_runtime`; each is imported when it is first asked for."""

from .bench.pass_costs import measure_costs as measure_costs
from .decoder import Decoder as Decoder
from .decoder import Decoding as Decoding
from .decoder import decode as decode
from .draft_length import AdaptiveDraft as AdaptiveDraft
from .loading import ModelNotFoundError as ModelNotFoundError
from .loop.batch import BatchDecoding as BatchDecoding
from .models.kv_cache import NonFiniteLogitsError as NonFiniteLogitsError
from .pairs import Pair as Pair
from .pairs import load_pair as load_pair
from .proposal import Drafter as Drafter
from .proposal import PromptLookup as PromptLookup
from .proposal import Proposal as Proposal
from .request import Request as Request
from .result.result import DecodeResult as DecodeResult
from .result.trace import Block as Block
from .result.trace import Token as Token
from .result.trace import Verdict as Verdict
from .result.web_page import html_page as html_page
from .sampling import SamplingParams as SamplingParams
from .scoring import TextScore as TextScore
from .scoring import score as score
from .verification.judge import judge as judge
from .verification.judgement import Judgement as Judgement
