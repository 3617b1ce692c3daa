"""The house rules of docs/architecture.md: arrows, floors, a test for every module, short files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS_OF = {
    "cactus_theory": "tests/theory",
    "proofs_check": "tests/proofs",
    "cactus_runtime": "tests/runtime",
}
MAY_IMPORT = {
    "cactus_theory": {"cactus_theory"},
    "proofs_check": {"proofs_check", "cactus_theory"},
    "cactus_runtime": {"cactus_runtime", "cactus_theory"},
}
OF_THE_RUNTIME = {"torch", "transformers", "triton"}
MOST_LINES, MOST_FLOORS = 400, 10
LONG = {
    "cactus_runtime/integrations/transformers_generate.py": "one function, and what it refuses",
}

Graph = dict[str, set[str]]


def package_files() -> list[Path]:
    return [
        path.relative_to(ROOT)
        for package in TESTS_OF
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in package_files()}
# Names that a package loads when they are asked for, and where from: what its stub says.
LAZY = {
    f"{module}.{alias.name}": f"{module}.{node.module}" if node.level else node.module
    for module, path in MODULES.items()
    for stub in (ROOT / path.parent).glob(f"{path.stem}.pyi")
    for node in ast.parse(stub.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}


def imported(path: Path, source: str) -> set[str]:
    """All that a file imports anywhere, but for type checkers alone."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in running(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = parents[: len(parents) + 1 - node.level] if node.level else []
            start = ".".join([*above, *filter(None, [node.module])])
            members = [f"{start}.{alias.name}" for alias in node.names]
            found |= {
                member if member in MODULES else LAZY.get(member, start) for member in members
            }
    return found - {name}


def running(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node but the bodies of `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from running(other)
        else:
            yield child
            yield from running(child)


def import_graph() -> Graph:
    return {
        name: imported(path, (ROOT / path).read_text(encoding="utf-8"))
        for name, path in MODULES.items()
    }


def circle(graph: Graph) -> list[str]:
    """Nodes of one circle, if there is any."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def wrong_arrows(graph: Graph) -> list[str]:
    """Imports of a package, or of a library, that the diagram does not show."""
    return [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in sorted(others)
        for package, target in [(module.partition(".")[0], other.partition(".")[0])]
        if (target in TESTS_OF and target not in MAY_IMPORT[package])
        or (target in OF_THE_RUNTIME and package != "cactus_runtime")
    ]


def folder(module: str) -> str:
    """A folder of the runtime, or a module beside its folders."""
    return ".".join(module.split(".")[:2])


def folders_of_the_runtime(graph: Graph) -> Graph:
    found: Graph = {}
    for module, others in graph.items():
        if module.startswith("cactus_runtime"):
            within = {folder(other) for other in others if other.startswith("cactus_runtime")}
            found.setdefault(folder(module), set()).update(within - {folder(module)})
    return found


def floors(graph: Graph) -> list[set[str]]:
    """Each node as low as what it imports lets it be."""
    sorter, found = TopologicalSorter(graph), []
    sorter.prepare()
    while sorter.is_active():
        found.append(set(sorter.get_ready()))
        sorter.done(*found[-1])
    return found


def table(page: str) -> dict[str, list[str]]:
    """Modules, or patterns of modules, to the files that test them."""
    section = page.split("## Where things are tested")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1]] for line in lines]
    return {module: tests for modules, tests in cells for module in modules}


def expected_test(path: Path) -> str:
    package, *folders = path.parts[:-1]
    return "/".join([TESTS_OF[package], *folders, f"test_{path.stem.strip('_')}.py"])


def faults_of_the_table(rows: dict[str, list[str]]) -> list[str]:
    paths = [path.as_posix() for path in package_files()]
    faults = [
        f"the table names {pattern}, which is no module"
        for pattern in rows
        if not any(fnmatch(path, pattern) for path in paths)
    ]
    faults += [
        f"the table says that {test} tests {pattern}; there is no such file"
        for pattern, tests in rows.items()
        for test in tests or ["nothing"]
        if not (ROOT / test).is_file()
    ]
    return faults


def untested(rows: dict[str, list[str]]) -> list[str]:
    return [
        f"{path} has neither {expected_test(path)} nor a line in the table"
        for path in package_files()
        if defines_something(path)
        and not (ROOT / expected_test(path)).is_file()
        and not any(fnmatch(path.as_posix(), pattern) for pattern in rows)
    ]


def defines_something(path: Path) -> bool:
    """Whether it is more than a list of the names that a package exports."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    defined = any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in tree.body)
    return defined or path.name != "__init__.py"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return import_graph()


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    return table((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def test_every_module_has_a_test_file_of_its_name_or_a_line_in_the_table(rows):
    assert untested(rows) == []


def test_the_table_names_modules_and_test_files_that_exist(rows):
    assert faults_of_the_table(rows) == []


def test_no_module_imports_itself_through_others(graph):
    assert circle(graph) == []


def test_packages_import_each_other_as_the_diagram_shows(graph):
    assert wrong_arrows(graph) == []


def test_the_folders_of_the_runtime_form_no_circle_and_few_floors(graph):
    folders = folders_of_the_runtime(graph)
    assert circle(folders) == []
    assert len(floors(folders)) <= MOST_FLOORS


def test_files_are_short():
    paths = [*package_files(), *(p.relative_to(ROOT) for p in (ROOT / "tests").rglob("*.py"))]
    lengths = {
        path.as_posix(): len((ROOT / path).read_text(encoding="utf-8").splitlines())
        for path in paths
    }
    assert {path for path, lines in lengths.items() if lines > MOST_LINES} <= LONG.keys()
