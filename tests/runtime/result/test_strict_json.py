"""What is written as JSON is JSON: no reader meets Infinity or NaN."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_runtime import SamplingParams, decode
from cactus_runtime.cli import main
from cactus_runtime.result.strict_json import strict_json
from cactus_theory import Mixture

# The draft's two most probable tokens are not always the target's two.
LEAVES_THE_SUPPORT = {"rule": Mixture(0.5), "sampling": SamplingParams(top_k=2)}

trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def strictly(text):
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def nulled(tree):
    if isinstance(tree, dict):
        return {key: nulled(part) for key, part in tree.items()}
    if isinstance(tree, list):
        return [nulled(part) for part in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


@given(trees)
def test_every_tree_is_read_back_with_null_for_what_is_not_finite(tree):
    assert strictly(strict_json(tree)) == nulled(tree)


def test_an_infinite_bound_is_none_in_the_sums_and_null_in_json():
    result = decode("tiny", "dog:", max_new_tokens=30, seed=1, **LEAVES_THE_SUPPORT)
    assert result.kl_bound == math.inf
    assert result.sums()["kl_bound"] is None
    assert json.loads(json.dumps(result.sums(), allow_nan=False)) == result.sums()


@pytest.mark.parametrize("drafts", ["0", "3"])
def test_decode_prints_strict_json_whatever_it_did(drafts, capsys):
    options = ["--pair", "tiny", "--tokens", "3", "--drafts", drafts, "--json", "--seed", "1"]
    assert main(["decode", "dog:", *options]) == 0
    assert len(strictly(capsys.readouterr().out)["tokens"]) == 3
