"""How Sphinx builds the site: ``make docs``."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from nbclient.output_widget import OutputWidget

os.environ["CACTUS_DTYPE"] = "float32"  # notebooks show the same numbers on every machine
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

# MathJax comes with a package and is copied into the site, which shows mathematics offline.
MATHJAX = find_spec("sphinx-mathjax-offline")
UNUSED_MATHJAX = [
    "mathjax/[!to]*",
    "mathjax/tex-[!c]*",
    "mathjax/tex-chtml-*",
    "mathjax/output/svg",
]

project = "cactus"
author = "the cactus authors"
html_title = "cactus"
html_theme = "furo"
html_static_path = [
    "_static",
    *(f"{folder}/static" for folder in MATHJAX.submodule_search_locations),
]
html_css_files = ["width.css"]
html_show_copyright = False
html_copy_source = False
templates_path = ["_templates"]
exclude_patterns = ["_*", "**/.ipynb_checkpoints", *UNUSED_MATHJAX]
mathjax_path = "mathjax/tex-chtml.js"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_nb",
    "plain_docstrings",
    "public_names",
    "rules_table",
    "claims_page",
    "built_links",
]

# Strict: `make docs` turns warnings into errors.
nitpicky = True
default_role = "py:obj"
highlight_language = "none"  # for blocks without a language: formulas, outputs

# Reference. Types are in the docstrings, which say more about them than annotations can.
autosummary_generate = True
autosummary_generate_overwrite = True
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
toc_object_entries_show_parents = "hide"

# Pages and notebooks.
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_timeout = 120  # seconds for a cell, on a machine that is busy
nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # pages show pictures, not sliders


def _ignore(widget: OutputWidget, state: dict[str, object]) -> None:
    """Leave the outputs of an output widget to the cell.

    `interact` shows what it draws within such a widget. Here the cell keeps the picture that its
    sliders' first values give, which needs neither a kernel nor JavaScript to be seen. And a widget
    without outputs reports none to the kernel: nbclient sends such reports on the very socket on
    which it awaits the reply to the cell, and may so lose the wake-up and hang
    (https://github.com/jupyter/nbclient/issues/312).
    """


OutputWidget.set_state = _ignore
