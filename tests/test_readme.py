"""The README's examples run, character by character."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=["theory", "runtime", "batch", "generate"])
def test_an_example_of_the_readme_runs_and_prints(example, capsys):
    exec(compile(example, str(README), "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_theory_example_prints_the_numbers_its_comment_states(capsys):
    exec(compile(EXAMPLES[0], str(README), "exec"), {})
    exact, second_order = map(float, capsys.readouterr().out.splitlines()[-1].split())
    assert f"{exact:.3f}" == "0.155"
    assert f"{second_order:.4f}" == "0.0142"
