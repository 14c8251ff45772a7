"""What several tests use is in tests/support, or in a module of their room: no test imports from another test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_IMPORT = re.compile(r"^\s*(?:from|import)\s[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
"""What may be an import; it also finds such lines in a text."""


def imported_tests(program: str) -> list[str]:
    """Modules of tests that a program imports, or from which it does."""
    if not any("test_" in line for line in _IMPORT.findall(program)):
        return []  # most have none, and to parse them takes long
    found: list[str] = []
    for node in ast.walk(ast.parse(program)):
        match node:
            case ast.Import(names=names):
                found += [each.name for each in names]
            case ast.ImportFrom(module=module, names=names):
                found += [module or "", *(f"{module}.{each.name}" for each in names)]
    return [name for name in found if name.rpartition(".")[2].startswith("test_")]


def test_no_test_imports_from_another() -> None:
    programs = [path for room in ("tests", "benchmarks", "examples") for path in (ROOT / room).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): imported_tests(path.read_text()) for path in programs}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    ["from tests.room.test_it import rows", "from tests.room import test_it", "import tests.room.test_it as it"],
)
def test_an_import_from_a_test_is_found(line: str) -> None:
    assert imported_tests(line)
    assert imported_tests(f"def late():\n    {line}\n")
