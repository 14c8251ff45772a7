"""The docs site: `make docs` builds it from docs/. Every page is in it, and the front page leads to all of them."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("module", ["kvstore", "kvstore.errors", "kvstore.spark", "logformat", "writer"])
def test_every_public_name_is_in_the_reference(module: str) -> None:
    """Those of `kvstore.errors` come from the module."""
    if module == "kvstore.spark":
        pytest.importorskip("pyspark")
    page = (DOCS / "api.md").read_text()
    named = {*re.findall(r"^\.\. auto(?:class|function):: ([\w.]+)$", page, re.MULTILINE)}
    others = {*re.findall(r"^`([\w.]+)` and `([\w.]+)` are those of `kvstore`", page, re.MULTILINE)}
    named |= {name for pair in others for name in pair}
    whole = re.findall(r"^\.\. automodule:: ([\w.]+)\n +:members:$", page, re.MULTILINE)
    public = {f"{module}.{name}" for name in importlib.import_module(module).__all__} - {"kvstore.__version__"}
    assert module in whole or public <= named, public - named


@pytest.mark.long
@pytest.mark.skipif(find_spec("sphinx") is None, reason="needs the extra `docs`")
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
