"""The notebooks as they are kept: no outputs, no plotting code, and a last cell that asserts.

`make docs` runs them.
"""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def cells(path, kind):
    book = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == kind]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_runs_in_any_python(path):
    assert json.loads(path.read_text(encoding="utf-8"))["metadata"]["kernelspec"]["name"] == (
        "python3"
    )
    for cell in cells(path, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_ends_with_assertions_and_draws_with_the_plots_module_only(path):
    sources = ["".join(cell["source"]) for cell in cells(path, "code")]
    assert "assert " in sources[-1]
    assert not any("matplotlib" in source or "plt." in source for source in sources)
    assert any("from cactus_theory.plots import" in source for source in sources)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_what_it_shows(path):
    assert "".join(cells(path, "markdown")[0]["source"]).startswith("# ")
    assert len(cells(path, "markdown")) >= 4
