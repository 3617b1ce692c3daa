"""The examples of the README and of the guide run, character by character."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/decoding.md"]


def examples(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "example"),
    [(page, example) for page in PAGES for example in examples(page)],
    ids=[f"{page}-{i}" for page in PAGES for i in range(len(examples(page)))],
)
def test_an_example_runs_and_prints(page, example, capsys):
    exec(compile(example, page, "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_theory_example_prints_the_numbers_its_comment_states(capsys):
    exec(compile(examples("README.md")[0], "README.md", "exec"), {})
    exact, second_order = map(float, capsys.readouterr().out.splitlines()[-1].split())
    assert f"{exact:.3f}" == "0.155"
    assert f"{second_order:.4f}" == "0.0142"


def test_the_readme_fits_a_few_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
