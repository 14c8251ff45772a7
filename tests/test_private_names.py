"""Tests, benchmarks and examples use the packages as other programs do: by public names alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from logformat.rows.schema import RESERVED_NAMES
from tests.support.package import PACKAGES, ROOT

OUTSIDE = ("tests", "benchmarks", "examples")
NAMES_LOCKS = "tests/test_lock_order.py"
"""Holds docs/concurrency.md against the locks of the running code, which are all private."""
OF_OTHERS = {"_asdict", "_call", "_condition", "_get_fragments", "_replace", "_repr_html_"}
"""Methods of named tuples, the condition of a future, and what notebooks show."""


def programs(directories: Iterable[str]) -> Iterator[tuple[str, str]]:
    for path in sorted(path for each in directories for path in (ROOT / each).rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def defined(tree: ast.Module) -> Iterator[str]:
    """Names of functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=value, attr=name, ctx=ast.Store()) if is_own(value):
                yield name


@cache
def private() -> frozenset[str]:
    """Private names of the packages."""
    names = {name for _, program in programs(PACKAGES) for name in defined(ast.parse(program))}
    return frozenset(name for name in names if name.strip("_") and name[0] == "_" != name[1]) - OF_OTHERS


def used(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names of attributes of other objects, imported names, and names in text, such as patches have."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if not is_own(value):
                yield node.lineno, name
            case ast.ImportFrom(names=names):
                yield from ((node.lineno, each.name) for each in names)
            case ast.Call(args=values) | ast.Tuple(elts=values):
                texts = (each.value for each in values if isinstance(each, ast.Constant) and type(each.value) is str)
                yield from ((node.lineno, text.rpartition(".")[2]) for text in texts if text not in RESERVED_NAMES)


def private_uses(program: str) -> list[tuple[int, str]]:
    """Uses of private names of the packages, but for names that the file defines itself."""
    if private().isdisjoint(re.findall(r"\b_\w+", program)):
        return []  # most have none, and to parse them takes long
    tree = ast.parse(program)
    found = [(line, name) for line, name in used(tree) if name in private()]
    own = set(defined(tree)) if found else set()
    return [(line, name) for line, name in found if name not in own]


def test_no_private_name_is_used_from_outside() -> None:
    found = [(path, *use) for path, text in programs(OUTSIDE) if path != NAMES_LOCKS for use in private_uses(text)]
    assert [f"{path}:{line} {name}" for path, line, name in found] == []


@pytest.mark.parametrize(
    "line",
    [
        "table._handles.clear()",
        "committer.memtable.index._transaction.get(b'')",
        "from kvstore.table.open_table import _run",
        "monkeypatch.setattr(WritePath, '_merge', None)",
        "mock.patch('kvstore.bucket.write_path.WritePath._merge')",
        "SEAMS = [(WritePath, '_merge')]",
    ],
)
def test_a_private_name_is_found(line: str) -> None:
    assert private_uses(line)


@pytest.mark.parametrize(
    "line", ["self._handles", "class T(WritePath):\n    def _merge(self): super()._merge()", "entry._replace(next=1)"]
)
def test_own_names_and_those_of_python_are_not_found(line: str) -> None:
    assert not private_uses(line)
