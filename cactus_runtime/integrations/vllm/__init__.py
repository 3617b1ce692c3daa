"""Cactus in vLLM: a plugin that shifts one logit per drafted token before vLLM's own sampler.

Needs torch, and vLLM where it is used: vLLM is imported in no module's head, and nothing here
imports transformers. vLLM calls `register` in each of its processes, through the entry point
``vllm.general_plugins``; without ``additional_config={"cactus": ...}`` nothing changes.
"""

from cactus_runtime.integrations.vllm.plugin import CactusExtension as CactusExtension
from cactus_runtime.integrations.vllm.plugin import register as register
