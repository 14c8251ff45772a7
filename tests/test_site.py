"""The docs site: `make docs` builds it from docs/. Every page is in it, and the front page leads to all of them."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from kvstore import errors
from kvstore.cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FRONT = DOCS / "index.md"
NO_PAGE = {"decisions/0000-template.md"}


def pages() -> Iterator[Path]:
    yield from (path for path in sorted(DOCS.rglob("*.md")) if str(path.relative_to(DOCS)) not in NO_PAGE)


def in_contents(page: Path) -> Iterator[Path]:
    """The pages in a page's tables of contents, which is how Sphinx finds them."""
    for lines in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
        for name in lines.splitlines():
            if name and not name.startswith(":"):
                yield from (page.parent / f"{name}.md",) if "*" not in name else page.parent.glob(f"{name}.md")


def test_every_page_is_in_the_contents_of_the_site() -> None:
    found, waiting = {FRONT}, [FRONT]
    while waiting:
        new = {*in_contents(waiting.pop())} - found
        found |= new
        waiting += new
    assert found - {*DOCS.glob("decisions/0000*")} == {*pages()}


@pytest.mark.parametrize(
    "module", ["kvstore", "kvstore.errors", "kvstore.shared", "kvstore.spark", "kvstore.testing", "logformat", "writer"]
)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    """Those of `kvstore.errors` come from the module."""
    if module == "kvstore.spark":
        pytest.importorskip("pyspark")
    page = (DOCS / "api.md").read_text()
    named = {*re.findall(r"^\.\. (?:autoclass|autofunction|py:data):: ([\w.]+)$", page, re.MULTILINE)}
    others = {*re.findall(r"^`([\w.]+)` and `([\w.]+)` are those of `kvstore`", page, re.MULTILINE)}
    named |= {name for pair in others for name in pair}
    whole = re.findall(r"^\.\. automodule:: ([\w.]+)\n +:members:$", page, re.MULTILINE)
    public = {f"{module}.{name}" for name in importlib.import_module(module).__all__} - {"kvstore.__version__"}
    assert module in whole or public <= named, public - named


@pytest.mark.long  # `make test-long` installs the extra `docs` that it needs
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    built = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        tmp_path / "trees",
        DOCS,
        tmp_path / "site",
    ]
    done = subprocess.run(built, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").exists()


SOUGHT = (
    *("load a csv", "pandas", "polars", "duckdb", "add, rename, drop a column", "drop a table", "many keys", "prefix"),
    *("merge engines", "retention", "durability", "logging", "backup", "platforms", "replicas", "spark"),
)


@pytest.mark.parametrize("topic", SOUGHT)
def test_what_is_sought_is_named_on_the_front_page(topic: str) -> None:
    """So one click leads to its page, and one more to what that links to."""
    links = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", FRONT.read_text())
    [target, *_] = [target for text, target in links if topic in text.lower()]
    words = {"merge engines": "first_row", "platforms": "linux", "add, rename, drop a column": "rename"}
    assert words.get(topic, topic) in (DOCS / target.partition("#")[0]).read_text().lower()


def test_links_lead_to_pages_and_headings_of_the_site() -> None:
    there = {*pages()}
    for page in there:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            path, _, heading = target.partition("#")
            to = (page.parent / path).resolve() if path else page
            if target.startswith("http") or to.suffix != ".md":
                continue
            assert to in there, (page, target)
            headings = re.findall(r"^#+ (.+)$", to.read_text(), re.MULTILINE)
            assert heading in ["", *(re.sub(r"\W+", "-", each.lower()) for each in headings)], (page, target)


BASES = ("InvalidRequest", "WriterRejected", "Unavailable", "CorruptData")


def test_every_error_has_its_cause_and_cure_below_its_base() -> None:
    page = (DOCS / "errors.md").read_text()
    named: dict[str, str] = {}
    for part in page.split("\n## ")[1:]:
        for name in re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE):
            assert name not in named
            named[name] = re.split(r"\W+", part.strip("`"), maxsplit=1)[0]
    expected = {}
    for name in errors.__all__:
        over = [each.__name__ for each in getattr(errors, name).__mro__]
        expected[name] = next((base for base in BASES if base in over), "Others")
    assert named == expected


def test_errors_say_what_to_do() -> None:
    rows = re.findall(r"^\| `\w+` \|(.*)\|$", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert len(rows) == len(errors.__all__)
    for row in rows:
        cause, cure = (cell.strip() for cell in row.split(" | "))
        assert cause
        assert cure or cause.startswith("Base of"), row


def commands_named(text: str) -> Iterator[str]:
    """What begins with `kvstore` in backticks, or after `$`."""
    yield from (" ".join(each.split()) for each in re.findall(r"`(kvstore [a-z-][^`]*)`", text))
    yield from re.findall(r"^\$ (kvstore [^\n#]*)", text.replace("\\\n", ""), re.MULTILINE)


def test_commands_and_options_that_pages_name_are_there() -> None:
    named = [(page, command) for page in pages() for command in commands_named(page.read_text())]
    assert len(named) > 100
    root = typer.main.get_command(app)
    for page, line in named:
        command, words = root, line.split()[1:]
        while isinstance(command, TyperGroup) and words and re.fullmatch(r"[a-z]+", words[0]):
            assert words[0] in command.commands, (page, line)
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word)} <= options, (page, line)
