"""The public names of `cactus_runtime`, which imports them when the first is asked for."""

from cactus_runtime import _requires as _requires
from cactus_runtime.decoder import Decoder as Decoder
from cactus_runtime.decoder import Decoding as Decoding
from cactus_runtime.decoder import decode as decode
from cactus_runtime.draft_length import AdaptiveDraft as AdaptiveDraft
from cactus_runtime.draft_length import measure_costs as measure_costs
from cactus_runtime.loop.batch import BatchDecoding as BatchDecoding
from cactus_runtime.models.kv_cache import NonFiniteLogitsError as NonFiniteLogitsError
from cactus_runtime.models.loading import ModelNotFoundError as ModelNotFoundError
from cactus_runtime.pairs import Pair as Pair
from cactus_runtime.pairs import load_pair as load_pair
from cactus_runtime.proposal import Drafter as Drafter
from cactus_runtime.proposal import PromptLookup as PromptLookup
from cactus_runtime.proposal import Proposal as Proposal
from cactus_runtime.request import Request as Request
from cactus_runtime.result.result import DecodeResult as DecodeResult
from cactus_runtime.result.trace import Block as Block
from cactus_runtime.result.trace import Token as Token
from cactus_runtime.result.trace import Verdict as Verdict
from cactus_runtime.result.web_page import html_page as html_page
from cactus_runtime.sampling import SamplingParams as SamplingParams
from cactus_runtime.verification.judge import judge as judge
from cactus_runtime.verification.judgement import Judgement as Judgement
