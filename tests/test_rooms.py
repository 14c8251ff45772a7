"""Rooms stay small, and no imports go in a circle; the contracts in pyproject.toml say which room may import which."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("kvstore", "logformat", "merge_engines", "writer")
MODULES_MAX = 16
LOOSE_MODULES_MAX = 8
LINES_MAX = 240
"""A longer module opens with its invariants, not only with what it is."""


def test_no_folder_has_too_many_modules() -> None:
    modules = Counter(path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    assert {str(folder): count for folder, count in modules.items() if count > MODULES_MAX} == {}
    assert modules[ROOT / "kvstore"] <= LOOSE_MODULES_MAX


def test_long_modules_open_with_their_invariants() -> None:
    texts = {str(path): path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    heads = {path: ast.get_docstring(ast.parse(text)) for path, text in texts.items() if text.count("\n") > LINES_MAX}
    assert [path for path, head in heads.items() if "\n\n" not in (head or "")] == []


def test_docstrings_name_the_parameters_that_there_are() -> None:
    wrong = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                text = (ast.get_docstring(node) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
                named = {
                    name for names in re.findall(r"^    ([a-z_, ]+):", text, re.MULTILINE) for name in names.split(", ")
                }
                given = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
                wrong += [(path.name, node.name, name) for name in named - given if name.isidentifier()]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_imports_go_in_a_circle(package: str) -> None:
    """Imports within functions count, but for those that the contract declares."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [rooms] = [each for each in contracts if each["name"] == "rooms of kvstore"]
    declared = {tuple(line.split(" -> ")) for line in rooms["ignore_imports"]}
    graph = grimp.build_graph(package, cache_dir=None)
    imports = {
        module: {each for each in graph.find_modules_directly_imported_by(module) if (module, each) not in declared}
        for module in graph.modules
    }
    TopologicalSorter(imports).prepare()  # raises CycleError, which has the circle
