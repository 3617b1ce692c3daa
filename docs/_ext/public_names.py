"""Pages of the reference: one for each package, one for each public name.

Knows what is public: what a package's ``__init__`` imports as itself (``from m import x as x``),
and what the modules in `MODULES` define. Knows nothing of docstrings, which autodoc reads.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

PACKAGES = ("cactus_theory", "cactus_theory.testing", "cactus_runtime", "proofs_check")

# Public modules whose names their package does not import, and what in them is not public.
MODULES = {
    "cactus_theory": (
        "curves",
        "plots",
        "recording",
        "rules.parameters",
        "rules.parsing",
        "rules.registry",
        "specification",
    ),
    "cactus_runtime": ("recording", "integrations.transformers_generate"),
}
HELPERS = {
    "cactus_theory.rules.registry.budgeted_candidates",
    "cactus_theory.rules.registry.entry_named",
    "cactus_theory.rules.parsing.entries_from",
    "cactus_theory.rules.parsing.parameters_of",
    "cactus_theory.rules.parsing.split_rules",
    "cactus_theory.rules.parsing.takes",
    "cactus_theory.specification.inverse_cdf",
}
FOLDER = "reference/generated"


def public(package: str) -> dict[str, list[str]]:
    """Full names of what is public, by the module it comes from, in the order of the source."""
    names: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(_exports(package).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found = [alias.name for alias in node.names if _is_export(alias)]
            if found:
                module = "." * node.level + (node.module or "")
                members = names.setdefault(_public_module(_absolute(module, package)), [])
                members += [f"{package}.{name}" for name in found]
    for module in MODULES.get(package, ()):
        source = f"{package}.{module}"
        names[source] = [f"{source}.{name}" for name in _defined(import_module(source))]
    return names


def _exports(package: str) -> Path:
    """The file that names what the package exports: the stub of one that imports lazily."""
    folder = Path(inspect.getfile(import_module(package))).parent
    candidates = (folder / name for name in ("__init__.pyi", "__init__.py"))
    return next(path for path in candidates if path.exists())


def _is_export(alias: ast.alias) -> bool:
    return alias.asname == alias.name and not alias.name.startswith("_")


def _absolute(module: str, package: str) -> str:
    return f"{package}.{module[1:]}".rstrip(".") if module.startswith(".") else module


def _public_module(module: str) -> str:
    """The module, or the package around it where its name is private."""
    return module.partition("._")[0]


def _defined(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and f"{module.__name__}.{name}" not in HELPERS
    ]


def package_page(package: str) -> str:
    """The page of one package: its modules, each with a table of its public names."""
    names = public(package)
    lines = [package, "=" * len(package), "", f".. automodule:: {package}", "   :no-members:", ""]
    lines += _table(package, names.pop(package, []))
    imported_alone = {f"{package}.{module}" for module in MODULES.get(package, ())}
    for module, members in names.items():
        # Where names are imported from the package, modules only determine their order.
        title = module if module in imported_alone else module.removeprefix(f"{package}.")
        lines += [title, "-" * len(title), "", _summary(module), "", *_table(package, members)]
    return "\n".join(lines)


def _table(package: str, names: list[str]) -> list[str]:
    rows = [f"   ~{name.removeprefix(package)[1:]}" for name in names]
    return [".. autosummary::", f"   :toctree: {package}", "", *rows, ""] if rows else []


def _summary(module: str) -> str:
    return (inspect.getdoc(import_module(module)) or "").split("\n\n")[0]


def file_names(names: list[str]) -> dict[str, str]:
    """File names for those that differ in case only (`KL`, `kl`), which some disks confuse."""
    times = Counter(name.lower() for name in names)
    return {name: f"{name}-class" for name in names if times[name.lower()] > 1 and _capital(name)}


def _capital(name: str) -> bool:
    return name.rpartition(".")[2][0].isupper()


def write_pages(app: Sphinx, config: Any) -> None:
    """Write the pages of the packages, and remove those of names that no longer exist."""
    folder = Path(app.srcdir, FOLDER)
    names = {
        package: [n for found in public(package).values() for n in found] for package in PACKAGES
    }
    config.autosummary_filename_map = file_names(
        [name for found in names.values() for name in found]
    )
    pages = {folder / f"{package}.rst": package_page(package) for package in PACKAGES}
    kept = set(pages)
    for package, found in names.items():
        kept |= {
            folder / package / f"{config.autosummary_filename_map.get(n, n)}.rst" for n in found
        }
    for path in set(folder.rglob("*.rst")) - kept:
        path.unlink()
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def link_or_code(app: Sphinx, env: Any, node: Any, shown: nodes.Node) -> nodes.Node | None:
    """Text between single backticks in docstrings: a link to a public name, or code."""
    if node.get("reftype") != "obj" or node.get("refexplicit"):
        return None
    resolve = env.domains["py"].resolve_xref
    for package in PACKAGES:
        target = f"{package}.{node['reftarget']}"
        found = resolve(env, node["refdoc"], app.builder, "obj", target, node, shown)
        if found is not None:
            return found
    return shown


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("config-inited", write_pages)
    app.connect("missing-reference", link_or_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
