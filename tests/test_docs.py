"""The generated pages of the docs are current, complete and mean what the docstrings say."""

from __future__ import annotations

import dataclasses
import inspect
import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

DOCS = Path(__file__).parents[1] / "docs"
GENERATOR = runpy.run_path(str(DOCS / "generate.py"))
PAGES: dict[Path, str] = GENERATOR["pages"]()
PUBLIC = {package: GENERATOR["public"](package) for package in GENERATOR["PACKAGES"]}
NAMES = [(m, name) for names in PUBLIC.values() for m, found in names.items() for name in found]
MARKDOWN = MarkdownIt("commonmark").enable("table")

# numpydoc's checks that are held: a summary that ends in a full stop, known sections in their
# order, the parameters of the signature, returns and an example. Not held: an extended
# summary or See Also for all, and descriptions of what a type and a name already say.
HELD = {"GL06", "GL07", "GL08", "SS01", "SS03", "PR01", "PR02", "PR10", "RT01", "EX01"}


def documented(module: str, name: str):
    return pytest.param(module, name, id=f"{module}.{name}")


def headings(page: str) -> list[str]:
    """Anchors of a page, as the site that shows it makes them."""
    found: list[str] = []
    for title in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.M):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        times = sum(re.sub(r"-\d+$", "", other) == slug for other in found)
        found.append(f"{slug}-{times}" if times else slug)
    return found


def tokens(page: str):
    """Block and inline tokens of a page."""
    for token in MARKDOWN.parse(page):
        yield token
        yield from token.children or ()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path):
    assert path.read_text(encoding="utf-8") == PAGES[path], "run: make reference"


def test_the_folder_of_the_reference_holds_nothing_else():
    assert set((DOCS / "reference").iterdir()) == {p for p in PAGES if p.parent != DOCS}


@pytest.mark.parametrize("package", PUBLIC)
def test_a_page_has_a_heading_for_every_public_name(package):
    page = PAGES[DOCS / "reference" / f"{package}.md"]
    for found in PUBLIC[package].values():
        for name in found:
            assert f"\n### `{name}`\n" in page


@pytest.mark.parametrize("package", PUBLIC)
def test_what_a_package_shows_of_its_own_is_public(package):
    module = import_module(package)
    shown = {
        name
        for name in dir(module)
        if not name.startswith("_")
        and getattr(getattr(module, name), "__module__", "").startswith(package)
    }
    assert shown
    assert shown <= {name for found in PUBLIC[package].values() for name in found}


@pytest.mark.parametrize(("module", "name"), [documented(*item) for item in NAMES])
def test_a_public_name_is_documented_with_an_example(module, name):
    item = getattr(import_module(module), name)
    if not callable(item):
        return
    wrong = {code: said for code, said in validate(f"{module}.{name}")["errors"] if code in HELD}
    fields = getattr(item, "_fields", ())
    if dataclasses.is_dataclass(item):
        fields = [field.name for field in dataclasses.fields(item)]
    told = [entry.name for entry in NumpyDocString(inspect.getdoc(item) or "")["Attributes"]]
    if fields and ", ".join(told).split(", ") == list(fields):
        wrong.pop("PR01", None)  # what it is made of is said once, as what it holds
    if getattr(item, "_is_protocol", False):
        wrong.pop("PR01", None)  # it is not made at all
    assert not wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_formula_of_a_page_is_taken_for_markup(path):
    found = list(tokens(PAGES[path]))
    assert not {token.type for token in found} & {"html_inline", "html_block", "blockquote_open"}
    assert all(token.markup.startswith("#") for token in found if token.type == "heading_open")
    emphasised = [found[i + 1].content for i, token in enumerate(found) if token.type == "em_open"]
    assert all(text.isalpha() for text in emphasised), emphasised


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_of_a_page_leads_somewhere(path):
    links = [token.attrs["href"] for token in tokens(PAGES[path]) if token.type == "link_open"]
    assert links
    for link in links:
        file, _, anchor = link.partition("#")
        there = (path.parent / file).resolve() if file else path
        page = PAGES.get(there) or there.read_text(encoding="utf-8")
        assert anchor in headings(page)


def test_the_table_of_rules_has_a_row_for_every_rule_and_no_empty_cell():
    page = PAGES[DOCS / "rules.md"]
    rows = [row for row in page.splitlines() if row.startswith("| [")]
    assert len(rows) == 10
    for row in rows:
        cells = re.split(r"(?<!\\)\|", row)[1:-1]
        assert len(cells) == 7
        assert all(cell.strip() for cell in cells)
