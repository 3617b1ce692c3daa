"""A sample of `make sweep-models`: classes that are quick and unlike each other, and what it finds.

The whole of it is docs/models.md.
"""

import runpy
import sys
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts"
SAMPLE = {
    "BloomForCausalLM": "one row",  # ALiBi
    "DeepseekV3ForCausalLM": "right",  # latent attention, experts
    "Gemma3nForCausalLM": "right",  # layers that share keys and values
    "GPT2LMHeadModel": "right",  # learned positions
    "GptOssForCausalLM": "right",  # sinks, windows, experts
    "Lfm2ForCausalLM": "refused",  # convolutions
    "MambaForCausalLM": "refused",  # recurrence
    "MoshiForCausalLM": "one row",  # a window in the configuration alone
    "OpenAIGPTLMHeadModel": "refused",  # no cache
    "RobertaForCausalLM": "one row",  # positions that count from the padding index
    "XLMWithLMHeadModel": "refused",  # attention that looks ahead
}


@pytest.fixture(scope="module")
def sweep():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        patch.delitem(sys.modules, "tiny_models", raising=False)
        yield runpy.run_path(str(SCRIPTS / "sweep_models.py"))


@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_is_decoded_as_it_reads_or_refused(sweep, name):
    finding = sweep["examine"](name)
    assert finding.outcome == SAMPLE[name], finding
    assert ("; use" in finding.words or "load a model" in finding.words) == (
        finding.outcome in ("refused", "one row")
    )


def test_a_wrong_token_is_found(sweep):
    model = sweep["build"]("GPT2LMHeadModel")
    prompt = [5, 6, 7]
    right = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=6)[0, 3:]
    tokens = right.tolist()
    assert sweep["first_wrong"](model, prompt, tokens) is None
    tokens[4] = (tokens[4] + 1) % 48
    assert sweep["first_wrong"](model, prompt, tokens) == 4


def test_the_page_says_what_was_found(sweep):
    finding = sweep["Finding"]
    page = sweep["page"]([finding("A", "right"), finding("B", "refused", "no | cache; use A")])
    assert "| decoded correctly, in batches too | 1 |" in page
    assert "| `B` | no \\| cache; use A |" in page
    assert "## Decoded wrongly" not in page


def test_the_committed_page_has_no_class_decoded_wrong():
    page = (SCRIPTS.parent / "docs" / "models.md").read_text(encoding="utf-8")
    assert "| decoded wrongly | 0 |" in page
    assert "| raised an error other than a refusal | 0 |" in page
