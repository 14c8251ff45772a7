"""Examples run, and are right: each checks what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.repositories import eventful_repository

ROOT = Path(__file__).parents[1]
PLAIN = ["streaming_aggregation.py", "replication.py"]
OF_A_PAGE = ["cache.py", "second_table.py", "live_page.py"]
"""Those that docs/tutorials/react-to-changes.md shows; ``test_pages.py`` runs it."""
EVERYDAY = "everyday.py"
OF_GIT = "git_files.py"
CONNECT = ["connect.py", "pipeline/run.py", "pipeline_merge/run.py"]
"""Those that need a package more."""


def run(name: str, *arguments: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return done.stdout


def test_every_example_is_known() -> None:
    found = {str(path.relative_to(ROOT / "examples")) for path in (ROOT / "examples").rglob("*.py")}
    flows = {"pipeline/transformations/changes.py", "pipeline_merge/transformations/merge.py"}
    assert found == {*PLAIN, *OF_A_PAGE, *CONNECT, EVERYDAY, OF_GIT} | flows


@pytest.mark.parametrize("name", OF_A_PAGE)
def test_the_page_shows_an_example(name: str) -> None:
    _, code = (ROOT / "examples" / name).read_text().split('"""\n\n', 1)
    assert f"```python\n{code}```" in (ROOT / "docs" / "tutorials" / "react-to-changes.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize("name", [*PLAIN, *OF_A_PAGE])
def test_an_example(name: str) -> None:
    run(name)


@pytest.mark.long
def test_a_job_that_is_killed_ends_equal_to_git(tmp_path: Path) -> None:
    run(OF_GIT, eventful_repository(tmp_path / "repository"))


@pytest.mark.long
@pytest.mark.skipif(find_spec("grpc") is None, reason="needs pyspark[connect]")
@pytest.mark.parametrize("name", CONNECT)
def test_an_example_of_spark_connect(name: str) -> None:
    run(name)
