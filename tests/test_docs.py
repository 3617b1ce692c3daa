"""Public docstrings are complete, and so is what the docs make of docstrings, rules and links."""

from __future__ import annotations

import dataclasses
import inspect
import runpy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

import cactus_theory
from cactus_theory import Rule

EXTENSIONS = Path(__file__).parents[1] / "docs" / "_ext"


def extension(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXTENSIONS / f"{name}.py"))


NAMES = extension("public_names")
PLAIN = extension("plain_docstrings")["plain"]
PUBLIC = {
    package: [name for found in NAMES["public"](package).values() for name in found]
    for package in NAMES["PACKAGES"]
}

# numpydoc's checks that are held: a summary that ends in a full stop, known sections in their
# order, the parameters of the signature, returns and an example. Not held: an extended
# summary or See Also for all, and descriptions of what a type and a name already say.
HELD = {"GL06", "GL07", "GL08", "SS01", "SS03", "PR01", "PR02", "PR10", "RT01", "EX01"}


def inherited_from_others(item: Any, field: str) -> bool:
    """Whether no class of this project declares the field, but one of another library."""
    ours = [base for base in item.__mro__ if base.__module__.startswith(tuple(NAMES["PACKAGES"]))]
    return not any(field in vars(base).get("__annotations__", {}) for base in ours)


# Docstrings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PUBLIC)
def test_what_a_package_shows_of_its_own_is_public(package):
    module = import_module(package)
    shown = {
        f"{package}.{name}"
        for name in dir(module)
        if not name.startswith("_")
        and getattr(getattr(module, name), "__module__", "").startswith(package)
    }
    assert shown
    assert shown <= set(PUBLIC[package])


@pytest.mark.parametrize("package", PUBLIC)
def test_a_page_of_the_reference_lists_every_public_name_once(package):
    lines = NAMES["package_page"](package).splitlines()
    listed = [f"{package}.{line[4:]}" for line in lines if line.startswith("   ~")]
    assert sorted(listed) == sorted(set(PUBLIC[package]))


def test_names_that_differ_in_case_only_have_different_files():
    names = ["cactus_theory.kl", "cactus_theory.KL", "cactus_theory.Rule"]
    assert NAMES["file_names"](names) == {"cactus_theory.KL": "cactus_theory.KL-class"}


@pytest.mark.parametrize("full_name", [name for found in PUBLIC.values() for name in found])
def test_a_public_name_is_documented_with_an_example(full_name):
    module, _, name = full_name.rpartition(".")
    item = getattr(import_module(module), name)
    if not callable(item):
        return
    wrong = {code: text for code, text in validate(full_name)["errors"] if code in HELD}
    fields = getattr(item, "_fields", ())
    if dataclasses.is_dataclass(item):
        fields = [field.name for field in dataclasses.fields(item)]
    parsed = NumpyDocString(inspect.getdoc(item) or "")
    attributes = ", ".join(entry.name for entry in parsed["Attributes"]).split(", ")
    fields = [
        name for name in fields if name in attributes or not inherited_from_others(item, name)
    ]
    if fields and attributes == fields:
        wrong.pop("PR01", None)  # what it is made of is documented once, as what it holds
    if getattr(item, "_is_protocol", False):
        wrong.pop("PR01", None)  # it is not constructed at all
    assert not wrong


# From docstrings to reStructuredText -----------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("TV = sum |p - q| / 2.", r"TV = sum \|p - q\| / 2."),
        ("draws from [h - p]_+ or a_", r"draws from [h - p]\_+ or a\_"),
        ("sum_x of `num_draft_tokens`", "sum_x of `num_draft_tokens`"),
        ("code ``|x|_`` and `|y|`", "code ``|x|_`` and `|y|`"),
        ("`binary_kl`(p, q)", r"`binary_kl`\ (p, q)"),
    ],
)
def test_no_formula_of_a_docstring_is_taken_for_markup(written, expected):
    assert PLAIN([written]) == [expected]


def test_doctests_are_left_alone():
    example = [">>> abs(x) | y_", "... | z_", "3 | 4_", ""]
    assert PLAIN([*example, "a_"]) == [*example, r"a\_"]


def test_an_indented_formula_is_shown_as_it_is_and_an_indented_description_is_not():
    formula = ["So", "", "    |a| <= b_,", "", "and a_"]
    assert PLAIN(formula) == ["So", "", "::", "", "    |a| <= b_,", "", r"and a\_"]
    section = ["Parameters", "----------", "a : int", "    First a_.", "", "    Then b."]
    assert PLAIN(section) == [*section[:3], r"    First a\_.", *section[4:]]


# Rules -----------------------------------------------------------------------------------------


def test_every_public_rule_is_in_exactly_one_of_the_tables_and_has_all_its_facts():
    table = extension("rules_table")
    public = [item for item in vars(cactus_theory).values() if inspect.isclass(item)]
    concrete = {x for x in public if issubclass(x, Rule) and not inspect.isabstract(x)}
    assert concrete == {entry.kind for entry in table["RULES"].values()}
    for rule in concrete:
        assert sum(belongs(rule) for belongs in table["KINDS"].values()) == 1
        assert all(getattr(rule.facts, column).strip() for column in table["COLUMNS"])


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("min(q + sqrt(2 delta q (1-q)), 1)", "min(q + √(2 δ q (1\N{MINUS SIGN}q)), 1)"),
        ("chi2(h||q) <= e^delta - 1", "χ²(h‖q) ≤ eᵟ \N{MINUS SIGN} 1"),
        ("[h - p]_+", "[h \N{MINUS SIGN} p]₊"),
        ("top-k, mentored decoding", "top-k, mentored decoding"),
    ],
)
def test_formulas_of_the_tables_are_set_in_the_signs_of_mathematics(plain, expected):
    assert extension("rules_table")["typeset"](plain) == expected


# Links of the built site -----------------------------------------------------------------------


def test_links_that_lead_nowhere_are_found(tmp_path):
    links = ["b.html", "b.html#here", "#top", "https://example.org/x", "c.html", "b.html#gone"]
    anchors = "".join(f'<a href="{link}">x</a>' for link in [*links, "#bottom"])
    (tmp_path / "a.html").write_text(f'<p id="top">{anchors}<img src="d.png"></p>')
    (tmp_path / "b.html").write_text('<p id="here"></p>')
    assert extension("built_links")["broken_links"](tmp_path) == [
        "a.html: #bottom",
        "a.html: b.html#gone",
        "a.html: c.html",
        "a.html: d.png",
    ]
