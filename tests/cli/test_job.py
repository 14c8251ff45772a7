"""``kvstore job``: what each command says and how it ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.commands import Done, fine, process, run
from tests.ingest.worlds import BAD, write


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    (tmp_path / "in").mkdir()
    fine("init", path)
    fine("create", path, "t", "--column", "k:int64", "--column", "v:string", "--key", "k")
    fine("job", "create", path, "j", "--source", tmp_path / "in", "--format", "csv", "--table", "t", "--max-files", 1)
    return path


def shown(store: Path) -> dict[str, object]:
    (printed,) = fine("job", "show", store, "j", "--json").lines
    return dict(printed)


def test_a_job_from_beginning_to_end(store: Path, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.csv", 0)
    write(tmp_path / "in", "b.csv", 6)
    done = fine("job", "run", store, "j")
    assert done.out == "task 1: 12 rows of a.csv\ntask 2: 12 rows of b.csv\n"
    assert done.err == ""
    printed = shown(store)
    assert (printed["job"], printed["table"], printed["offset"], printed["state"]) == ("j", "t", "b.csv", "waiting")
    assert printed["statistics"]["loaded_rows"] == 24  # type: ignore[index]
    assert fine("job", "ls", store, "--json").lines == [[printed]]
    text = fine("job", "show", store, "j").out
    assert [line.partition(" ")[0] for line in text.splitlines()].count("max_files") == 1
    assert [line.split()[0] for line in text.splitlines()[-2:]] == ["1", "2"]
    assert "b.csv" in fine("job", "ls", store).out
    assert fine("job", "run", store, "j").out == ""
    write(tmp_path / "in", "c.csv", 6)
    (task,) = fine("job", "run", store, "j", "--once", "--json").lines
    assert (task["number"], task["counts"]["loaded_rows"], task["begun"][-1]) == (3, 12, "Z")
    assert fine("job", "pause", store, "j", "--json").lines[0]["state"] == "paused"
    assert fine("job", "alter", store, "j", "--offset", "a.csv", "--json").lines[0]["offset"] == "a.csv"
    (printed,) = fine("job", "resume", store, "j", "--json").lines
    assert (printed["state"], printed["version"]) == ("waiting", 1)
    assert fine("job", "drop", store, "j", "--json").lines == [printed]
    assert fine("job", "ls", store, "--json").lines == [[]]


def test_a_task_that_fails_ends_with_1_and_pauses_the_job(store: Path, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.csv", 0, more=BAD)
    failed = run("job", "run", store, "j")
    assert (failed.code, failed.out) == (1, "")
    assert "A task failed, and nothing of it was applied: More rows do not fit" in failed.err
    assert "a.csv, row 13" in failed.err
    again = run("job", "run", store, "j")
    assert (again.code, "the time to try it again" in again.err) == (1, True)
    fine("job", "pause", store, "j")
    fine("job", "alter", store, "j", "--max-filter-ratio", 0.5)
    refused = run("job", "run", store, "j")
    assert (refused.code, "resume it first" in refused.err) == (2, True)
    fine("job", "resume", store, "j")
    (printed,) = (fine("job", "run", store, "j").out).splitlines()
    words, _, rejected = printed.rpartition(": ")
    assert words == "task 1: 12 rows of a.csv, 3 left out"
    assert len(Path(rejected).read_text().splitlines()) == 3
    assert shown(store)["rejected"] == str(Path(rejected).parent)
    assert "max_filter_ratio allows" in fine("job", "show", store, "j").out


def test_files_that_came_late_end_with_1(store: Path, tmp_path: Path) -> None:
    write(tmp_path / "in", "b.csv", 0)
    fine("job", "run", store, "j")
    write(tmp_path / "in", "a.csv", 0)
    late = run("job", "run", store, "j")
    assert late.code == 1
    fine("job", "pause", store, "j", "--reason", "late files")
    assert shown(store)["reason"] == "late files"
    fine("job", "alter", store, "j", "--from-start")
    fine("job", "resume", store, "j")
    assert len(fine("job", "run", store, "j", "--json").lines) == 2


def bad_call(*arguments: object) -> Done:
    done = run("job", *arguments)
    assert done.code == 2, done.err
    return done


def test_bad_calls(store: Path, tmp_path: Path) -> None:
    bad_call("create", store, "k", "--source", tmp_path / "nowhere", "--format", "csv", "--table", "t")
    bad_call("create", store, "j", "--source", tmp_path / "in", "--format", "csv", "--table", "t")
    bad_call("create", store, "k", "--source", tmp_path / "in", "--format", "xls", "--table", "t")
    bad_call("show", store, "unknown")
    bad_call("alter", store, "j", "--offset", "a")
    bad_call("resume", store, "j")
    fine("job", "pause", store, "j")
    bad_call("alter", store, "j")
    bad_call("alter", store, "j", "--offset", "a", "--from-start")


def test_followed_until_it_is_interrupted(store: Path, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.csv", 0)
    following = process("job", "run", store, "j", "--follow")
    assert following.stdout is not None
    assert following.stdout.readline() == "task 1: 12 rows of a.csv\n"
    write(tmp_path / "in", "b.csv", 0)
    assert following.stdout.readline() == "task 2: 12 rows of b.csv\n"
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=600)
    assert following.returncode == 130
    assert shown(store)["offset"] == "b.csv"
