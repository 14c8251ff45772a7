"""``kvstore demo``: a git history through the table and Spark, and back to what git says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import kvstore
from kvstore.cli.demo.command import batch_of
from kvstore.cli.demo.git_history import Repository
from kvstore.cli.demo.own_history import COMMITS, OwnHistory
from kvstore.cli.main import app
from kvstore.errors import InvalidRequest, UnsupportedOperation
from logformat.rows.keys import KeyCodec
from tests.cli.commands import run
from tests.cli.repositories import commit, eventful_repository, git, new_repository


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("kvstore"), *arguments], capture_output=True, text=True, check=False
    )


def test_every_commit_is_replayed_as_git_has_it(tmp_path: Path) -> None:
    """Applied one after the other, the changes of each commit lead to its tree."""
    repository = Repository(eventful_repository(tmp_path / "repo"))
    files: dict[str, tuple[str, str]] = {}
    sizes: dict[str, int | None] = {}
    seen = []
    for change in repository.changes():
        for path in change.deleted:
            del files[path], sizes[path]
        for file in change.written:
            files[file.path], sizes[file.path] = (file.mode, file.blob), file.size
        assert files == repository.tree(change.id)
        seen.append(change)
    assert [change.id for change in seen] == git(
        tmp_path / "repo", "rev-list", "--topo-order", "--reverse", "HEAD"
    ).split()
    assert sum(not (change.written or change.deleted) for change in seen) == 2
    assert sizes["d"] == len("two\nlines")
    assert {change.author for change in seen} == {"A. Author"}


def replayed(repository: Repository) -> dict[str, tuple[str, str]]:
    """The files there are after every commit's changes."""
    files: dict[str, tuple[str, str]] = {}
    for change in repository.changes():
        for path in change.deleted:
            del files[path]
        files |= {file.path: (file.mode, file.blob) for file in change.written}
    return files


def test_a_subdirectory_stands_for_its_repository(tmp_path: Path) -> None:
    eventful_repository(tmp_path / "repo")
    inner = Repository(tmp_path / "repo" / "deep" / "er")
    assert inner.tree("HEAD") == Repository(tmp_path / "repo").tree("HEAD") == replayed(inner)


def test_other_paths_are_other_keys_and_every_path_fits(tmp_path: Path) -> None:
    path = new_repository(tmp_path / "repo")
    long = "/".join(["d" * 200] * 3)
    names = [
        *(os.fsdecode(name) for name in (b"x\xe9", rb"x\xe9", rb"x\\xe9", rb"x\\", b"x")),
        *(f"{long}/{name}" for name in ("a", "b")),
        *("\1" * 200 + f"/{name}" + "\1" * 120 for name in "ab"),
        "n" * 200 + "/" + "n" * 200 + "/" + "n" * 107,  # the longest that fits
        "é" * 100 + "/" + "é" * 100 + "/" + "é" * 100,
    ]
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(ascii(name))
    commit(path, "add")
    repository = Repository(path)
    files = repository.tree("HEAD")
    assert len(files) == len(names)
    assert files == replayed(repository)
    assert names[-2] in files
    (change,) = repository.changes()
    rows = batch_of(change).rows
    assert len(KeyCodec([rows.schema.field("path")]).encode([rows.column("path")])) == len(names)


def test_the_environment_names_no_other_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = eventful_repository(tmp_path / "repo")
    other = new_repository(tmp_path / "other")
    commit(other, "another")
    expected = Repository(path).tree("HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert Repository(path).tree("HEAD") == expected == replayed(Repository(path))


def test_git_is_needed_and_its_reasons_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedOperation, match="needs git"):
        Repository(tmp_path)
    refusing = tmp_path / "git"
    refusing.write_text("#!/bin/sh\necho 'fatal: detected dubious ownership' >&2\nexit 128\n")
    refusing.chmod(0o755)
    with pytest.raises(InvalidRequest, match="detected dubious ownership"):
        Repository(tmp_path)


@pytest.mark.parametrize("kind", ["store", "foreign", "file", "nowhere/new"])
def test_only_a_new_directory_becomes_the_store(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = new_repository(tmp_path / "repo")
    commit(repository, "one")
    kvstore.open(tmp_path / "store").close()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    (tmp_path / "file").touch()
    monkeypatch.setattr("kvstore.cli.demo.spark_reader.session", lambda _: pytest.fail("Spark was started"))
    result = CliRunner().invoke(app, ["demo", "--repo", str(repository), "--store", str(tmp_path / kind)])
    assert isinstance(result.exception, InvalidRequest)
    assert "new or empty" in str(result.exception)


def test_make_passes_a_path_on_whole() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(["make", "-n", "demo", "REPO=a b"], cwd=root, capture_output=True, text=True, check=True)
    assert 'demo --repo "a b"' in done.stdout


def in_this_process(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    return done.exit_code, done.output


def in_a_process_of_its_own(*arguments: str | Path) -> tuple[int, str]:
    done = command(*arguments)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("run", [in_this_process, in_a_process_of_its_own])
def test_the_demo_compares_equal(tmp_path: Path, spark: SparkSession, run: Callable[..., tuple[int, str]]) -> None:
    status, output = run("demo", "--repo", eventful_repository(tmp_path / "repo"), "--store", tmp_path / "store")
    assert status == 0, output
    numbers = {name.strip(): value.strip() for name, value in re.findall(r"^(.+?)  +(.+)$", output, re.MULTILINE)}
    commits = int(numbers["commits"])
    assert commits == 8
    assert int(numbers["empty batches"]) == 2
    assert int(numbers["duplicates answered"]) == (commits + 2) // 3
    assert len(numbers["compared after commit"].split(",")) == 4
    assert numbers["differences"] == "0"
    with kvstore.open(tmp_path / "store", read_only=True) as store:
        assert store.table("files").count() == len(Repository(tmp_path / "repo").tree("HEAD"))


@pytest.mark.spark
def test_a_difference_is_shown_and_is_exit_code_1(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Repository.tree
    monkeypatch.setattr(
        Repository, "tree", lambda self, commit: right(self, commit) | {"[/red] never there": ("100644", "0")}
    )
    result = CliRunner().invoke(app, ["demo", "--repo", str(eventful_repository(tmp_path / "repo"))])
    assert result.exit_code == 1
    assert "differs from the history in 1 files" in result.output
    assert "'[/red] never there'" in result.output


def test_where_there_is_no_repository_a_history_of_its_own_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "kvstore.cli.demo.spark_reader", None)  # as without Spark
    status, output = in_this_process("demo", "--store", tmp_path / "store")
    assert status == 0, output
    assert "No git repository here" in output
    assert "Spark is not installed" in output
    numbers = {name.strip(): value.strip() for name, value in re.findall(r"^(.+?)  +(.+)$", output, re.MULTILINE)}
    assert numbers["commits"] == str(COMMITS)
    assert int(numbers["empty batches"]) == COMMITS // 10
    assert int(numbers["changes: delete"]) > 10
    assert numbers["differences"] == "0"
    with kvstore.open(tmp_path / "store", read_only=True) as store:
        assert store.table("files").count() == len(OwnHistory().tree(OwnHistory().commits()[-1].id))


def test_repositories_that_can_not_be_replayed_get_a_word(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    unborn = new_repository(tmp_path / "unborn")
    whole = new_repository(tmp_path / "whole")
    for message in ("one", "two"):
        commit(whole, message)
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{whole}", "shallow")
    words = {"plain": "fatal: not a git repository", unborn.name: "no commits yet", "shallow": "--unshallow"}
    for name, word in words.items():
        done = run("demo", "--repo", tmp_path / name)
        assert done.code == 2
        assert word in done.err
        assert "Traceback" not in done.err
