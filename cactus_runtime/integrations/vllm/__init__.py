"""Cactus in vLLM: a plugin that shifts one logit per drafted token before vLLM's own sampler.

Needs torch, and vLLM where it is used. No module imports vLLM at its top, and nothing here imports
transformers. vLLM calls `register` in each of its processes, through the entry point
``vllm.general_plugins``; without ``additional_config={"cactus": ...}`` nothing changes.
"""

from cactus_runtime.integrations.vllm.plugin import CactusExtension as CactusExtension
from cactus_runtime.integrations.vllm.plugin import register as register
