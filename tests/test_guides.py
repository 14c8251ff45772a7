"""The guides name what is there: files, symbols, rooms, suites, commands, options, terms and fragments.

A name in backticks that looks like a path of the repository is one. "`symbol` in `path`" means that the file has it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from hypothesis import settings
from typer.core import TyperCommand, TyperGroup

import kvstore
from kvstore.cli.main import app
from kvstore.spark.options import NAMES

ROOT = Path(__file__).parents[1]
GUIDES = [
    ROOT / name
    for name in (
        *("CONTRIBUTING.md", "SECURITY.md", "NOTICE", "CHANGELOG.md", "changes/README.md"),
        *("docs/architecture.md", "docs/concurrency.md", "docs/glossary.md", "tests/README.md"),
    )
]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOP = (
    *("kvstore", "kvstore_command", "logformat", "merge_engines", "pyspark_kvstore", "writer"),
    *("tests", "docs", "benchmarks", "examples"),
)
guides = pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)


def cells(page: Path, heading: str) -> list[list[str]]:
    """Cells of the tables below a heading, without their heads."""
    text = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for each in tables for line in each.splitlines()[2:]
    ]


def in_backticks(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


# Paths, symbols and links


@guides
def test_paths_are_there(guide: Path) -> None:
    for name in in_backticks(guide.read_text()):
        for path in re.findall(rf"(?<!\S)(?:{'|'.join(TOP)})/[\w./-]*", name):
            assert (ROOT / path).exists(), (guide.name, path)
        test = re.fullmatch(r"(tests/[\w/]+\.py)::(\w+)", name)
        assert test is None or f"def {test[2]}(" in (ROOT / test[1]).read_text(), name


@guides
def test_symbols_are_in_the_file_that_is_named(guide: Path) -> None:
    text = re.sub(r"\s+", " ", guide.read_text())
    for names, path in re.findall(r"((?:`\w[\w.]*`(?:, | and | or )?)+) in `([\w/]+\.py)`", text):
        source = (ROOT / path).read_text()
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
            assert re.search(rf"\b{name}\b", source), (guide.name, name, path)


@guides
def test_links_lead_somewhere(guide: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", guide.read_text()):
        assert (guide.parent / target).exists(), (guide.name, target)


@guides
def test_lines_are_not_too_long(guide: Path) -> None:
    lines = guide.read_text().splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


# Rooms and suites


def packages() -> Iterator[str]:
    for top in ("kvstore", "logformat"):
        yield from (f"{top}/{path.parent.name}/" for path in (ROOT / top).glob("*/__init__.py"))
    yield from ("kvstore_command/", "merge_engines/", "writer/", "pyspark_kvstore/")


def test_every_room_has_its_line_and_its_tests() -> None:
    lines = cells(ROOT / "CONTRIBUTING.md", "The rooms")
    named = {name for room, *_ in lines for name in in_backticks(room)}
    assert {*packages()} <= named
    for room, _, tests, _ in lines:
        assert in_backticks(tests), room


def test_the_suite_of_a_room_stands_in_its_row() -> None:
    rows = cells(ROOT / "CONTRIBUTING.md", "The rooms")
    tests_of = {name: in_backticks(tests) for room, _, tests, _ in rows for name in in_backticks(room)}
    for room in packages():
        suite = f"tests/{Path(room).name}"
        # Those of logformat have the names of rooms of kvstore, and share `tests/logformat`.
        if (ROOT / suite).exists() and not room.startswith("logformat/"):
            assert suite in tests_of[room], room


TIERS = ["core", "supported", "experimental"]


def test_every_room_and_every_extra_is_in_one_tier() -> None:
    rooms = cells(ROOT / "CONTRIBUTING.md", "The rooms")
    named = [name for room, *_, tier in rooms if tier in TIERS for name in in_backticks(room)]
    assert sorted(named) == sorted({name for room, *_ in rooms for name in in_backticks(room)})
    assert {*packages()} <= {*named}
    rows = cells(ROOT / "CONTRIBUTING.md", "Tiers")
    assert [tier for tier, _ in rows[:3]] == TIERS
    extras = [name for _, listed in rows for name in in_backticks(listed)]
    assert sorted(extras) == sorted(PYPROJECT["project"]["optional-dependencies"])


def test_users_are_told_what_each_tier_promises() -> None:
    page = (ROOT / "docs" / "index.md").read_text().partition("\n## Tiers\n")[2]
    assert re.findall(r"\w+", page.partition("\n| |")[2].partition("\n")[0]) == [each.capitalize() for each in TIERS]
    promises = {first for first, *_ in cells(ROOT / "docs" / "index.md", "Tiers")}
    assert {"Parts", "Formats", "Tests"} < promises
    assert all(f"*{tier}*" in (ROOT / "README.md").read_text() for tier in TIERS)


def test_layers_are_those_of_the_import_contract() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().partition("\n## The rooms\n")[2]
    drawn = page.split("```")[1].split("\n")[1:-1]
    [contract] = [each for each in PYPROJECT["tool"]["importlinter"]["contracts"] if each["name"] == "rooms of kvstore"]
    assert [line.strip() for line in drawn] == contract["layers"]


def test_every_suite_is_on_the_map() -> None:
    page = ROOT / "tests" / "README.md"
    named = {name for first, *_ in cells(page, "The suites") for name in in_backticks(first)}
    tests = ROOT / "tests"
    there = {f"tests/{path.parent.name}/" for path in tests.glob("*/__init__.py")}
    assert named == there | {f"tests/{path.name}" for path in tests.glob("test_*.py")}


def test_every_shared_module_is_on_the_map() -> None:
    page = ROOT / "tests" / "README.md"
    named = {name for first, *_ in cells(page, "What tests share") for name in in_backticks(first)}
    support = ROOT / "tests" / "support"
    assert {f"tests/support/{path.name}" for path in support.glob("*.py") if path.stem != "__init__"} <= named


def test_figures_of_a_run_are_those_in_force() -> None:
    page = re.sub(r"\s+", " ", (ROOT / "tests" / "README.md").read_text())
    timeout = PYPROJECT["tool"]["pytest"]["ini_options"]["faulthandler_timeout"]
    assert f"a test that hangs for {timeout} s dumps" in page
    for profile in ("quick", "long"):
        assert f"`{profile}` with {settings.get_profile(profile).max_examples:,} examples" in page


# The glossary

GLOSSARY = ROOT / "docs" / "glossary.md"


def terms() -> list[str]:
    return [term for term, *_ in cells(GLOSSARY, "Terms")]


def test_every_term_is_there_once_and_in_order() -> None:
    assert len(terms()) > 100
    assert terms() == sorted(set(terms()), key=str.lower)


def test_the_terms_of_the_format_are_in_the_glossary() -> None:
    assert {term for term, *_ in cells(ROOT / "docs" / "format.md", "Terms")} <= {*terms()}


def test_words_that_replace_former_names_are_terms_or_modules() -> None:
    modules = {path.stem.replace("_", " ") for path in (ROOT / "kvstore").rglob("*.py")}
    for _, now in [*cells(GLOSSARY, "Former names"), *cells(GLOSSARY, "Former names that mean something else now")]:
        for word in now.split(", "):
            assert word in terms() or word in modules or word == "row indices by bucket", word


def names_in_code() -> Iterator[str]:
    """Names of modules, and all that is defined or assigned in them."""
    for package in ("kvstore", "logformat", "merge_engines", "writer", "pyspark_kvstore_python"):
        for path in (ROOT / package).rglob("*.py"):
            yield path.stem
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                        yield name
                    case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                        yield name
                    case ast.arg(arg=name):
                        yield name


def test_former_names_are_in_the_code_no_more() -> None:
    former = {former.split(" (")[0].replace(" ", "_") for former, _ in cells(GLOSSARY, "Former names")}
    assert len(former) > 10
    words = re.compile(rf"_(?:{'|'.join(sorted(former))})_")
    found = {name: "_" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() + "_" for name in names_in_code()}
    assert sorted(name for name, text in found.items() if words.search(text)) == []


FOUR_PACKAGES = ("kvstore", "logformat", "merge_engines", "writer")


def test_the_names_that_are_assigned_most_often_are_terms() -> None:
    """But for ``each``, which stands for one of several."""
    trees = (ast.parse(path.read_text()) for package in FOUR_PACKAGES for path in (ROOT / package).rglob("*.py"))
    stored = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name))
    counts = Counter(node.id for node in stored if isinstance(node.ctx, ast.Store) and node.id not in ("_", "each"))
    most = [name for name, _ in counts.most_common(10)]
    assert [name for name in most if name not in terms() and name.removesuffix("s") not in terms()] == []


# Commands and options


def commands(group: TyperGroup, *words: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *words, name)
        else:
            assert isinstance(command, TyperCommand)
            yield " ".join(("kvstore", *words, name))


def test_the_page_of_the_command_line_has_every_command() -> None:
    page = (ROOT / "docs" / "cli.md").read_text().partition("\n\n**")[0]
    named = re.findall(r"^\| `(kvstore(?: [a-z]+)+)", page, re.MULTILINE)
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    assert sorted(named) == sorted(commands(group))


def test_the_page_of_spark_has_every_option() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    assert {*NAMES} <= {*re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)}


# The changelog


def test_fragments_have_a_number_of_their_own_and_are_lists() -> None:
    fragments = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    numbers = [path.name[:4] for path in fragments]
    assert len({*numbers}) == len(numbers)
    for path in fragments:
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name), path.name
        assert path.read_text().startswith("* "), path.name


def test_the_changelog_has_this_version_after_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", kvstore.__version__]
