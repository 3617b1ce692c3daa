"""IFEval's checks, those of lm_eval, told in our form; run by `make test-lm-eval`."""

import pytest

pytest.importorskip("langdetect")
pytest.importorskip("lm_eval")

from benchmarks.quality.ifeval import ifeval_checks

PROMPT = {
    "key": 1,
    "prompt": "Write of dogs, without commas, and end with Woof.",
    "instruction_id_list": ["punctuation:no_comma", "startend:end_checker"],
    "kwargs": [{}, {"end_phrase": "Woof."}],
}


@pytest.fixture(scope="module")
def checks():
    return ifeval_checks()


@pytest.mark.parametrize(
    ("answer", "strict", "loose"),
    [
        ("Dogs bark. Woof.", [True, True], [True, True]),
        ("Dogs, cats. Woof.", [False, True], [False, True]),
        ("Yes, of dogs:\nDogs bark. Woof.", [False, True], [True, True]),
        ("", [False, False], [False, False]),
    ],
)
def test_instructions_are_checked_one_by_one_strictly_and_loosely(checks, answer, strict, loose):
    found = checks(PROMPT, answer)
    assert found == {
        "prompt_level_strict_acc": [all(strict)],
        "inst_level_strict_acc": strict,
        "prompt_level_loose_acc": [all(loose)],
        "inst_level_loose_acc": loose,
    }
