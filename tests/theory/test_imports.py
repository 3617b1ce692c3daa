"""cactus_theory runs on numpy and scipy alone, and its test strategies stay out of the way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cactus_theory

PACKAGE = Path(cactus_theory.__file__).parent
EXTRAS = ["torch", "hypothesis", "matplotlib", "sympy", "transformers", "mpmath", "flint", "pytest"]
# A finder, not `sys.modules[name] = None`: scipy asks whether torch is there and has a Tensor.
BLOCK = (
    "import sys\n"
    "class Block:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    f"        if name.split('.')[0] in {EXTRAS!r}: raise ImportError(name)\n"
    "sys.meta_path.insert(0, Block())\n"
)
MODULES = sorted(PACKAGE.rglob("*.py"))


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def imported_by(path: Path, *, when_loaded: bool = False) -> set[str]:
    """First names of the modules a file imports; only those at its top level if `when_loaded`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in tree.body if when_loaded else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def test_the_theory_imports_and_computes_without_any_extra():
    run(
        f"{BLOCK}"
        "import cactus_theory as ct, cactus_theory.specification\n"
        "rule = ct.CactusExact(0.5)\n"
        "assert ct.output_distribution(rule, draft=[0.9, 0.1], target=[0.5, 0.5]).shape == (2,)\n"
        "assert ct.exact_optimum([0.1], 1.0).value[0] > 0.1\n"
    )


def test_the_block_on_extras_works():
    with pytest.raises(AssertionError, match="torch"):
        run(f"{BLOCK}import torch")


def test_importing_the_theory_imports_no_extra_and_not_its_testing():
    run(
        "import sys, cactus_theory, cactus_theory.specification\n"
        f"loaded = set({EXTRAS!r} + ['cactus_theory.testing']) & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )


def test_every_public_name_is_exported_from_the_package():
    assert len(MODULES) > 5
    for name in ("kl", "emission", "exact_optimum", "Cactus", "CactusExact", "output_distribution"):
        assert hasattr(cactus_theory, name)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_module_imports_numpy_and_the_standard_library_only(path):
    allowed = {"numpy", "scipy", "cactus_theory"} | set(sys.stdlib_module_names)
    if path.parent.name == "testing":
        allowed |= {"hypothesis", "lazy_loader"}
    assert imported_by(path, when_loaded=True) <= allowed
    if path.name == "plots.py":  # asked for inside the functions that draw
        allowed |= {"matplotlib"}
    assert imported_by(path) <= allowed
