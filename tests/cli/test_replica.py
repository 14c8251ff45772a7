"""``kvstore replica`` and ``kvstore replicate``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from tests.cli.commands import fine, run
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k", buckets=2).upsert([{"k": k, "v": k} for k in range(20)])
    return tmp_path / "s"


def test_from_add_to_restore(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    fine("replica", "add", path, copy, "--name", "r")
    (listed,) = fine("replica", "ls", path, "--json").lines[0]
    assert (listed["name"], listed["url"], listed["behind"], listed["checked"]) == ("r", copy.as_uri(), 20, None)
    assert "was 20 offsets behind" in fine("replicate", path, "--once").out
    assert fine("replicate", path, "r", "--once").out == ""
    (checked,) = fine("replica", "check", path, "r", "--json").lines
    assert (checked["findings"], checked["behind"]) == ([], 0)
    (lost,) = (copy / "tables/1/0").iterdir()
    lost.unlink()
    done = run("replica", "check", path, "r")
    assert done.code == 1
    assert "MISSING_VERSION table 1 bucket 0 offsets 0 to" in done.out
    assert run("replica", "ls", path).code == 1
    assert run("replica", "restore", copy, tmp_path / "no").code == 1
    fine("replica", "repair", path, "r")
    fine("replica", "ls", path)
    (restored,) = fine("replica", "restore", copy, tmp_path / "back", "--json").lines
    assert sum(restored["ends"]["t"].values()) == 20
    with kvstore.open(tmp_path / "back", read_only=True) as back, kvstore.open(path, read_only=True) as store:
        assert rows_of(back.table("t")) == rows_of(store.table("t"))
    fine("replica", "restore", copy, tmp_path / "then", "--to", '{"t": {"0": 0, "1": 0}}')
    assert fine("scan", tmp_path / "then", "t", "--json").out == ""
    fine("replica", "remove", path, "r")
    assert fine("replica", "ls", path, "--json").lines == [[]]


def test_a_store_is_no_replica_and_a_replica_no_store(path: Path, tmp_path: Path) -> None:
    place, new = tmp_path / "place", tmp_path / "new"
    fine("replica", "add", path, place, "--name", "r")
    fine("replicate", path, "--once")
    for command in (["restore", path, new], ["restore", path.as_uri(), new], ["follow", path, new, "--once"]):
        done = run("replica", *command)
        assert (done.code, "This is a store, no replica" in done.err, str(path) in done.err) == (2, True, True)
    for command in (["meta", "dump"], ["meta", "status"], ["ui", "--no-browser"]):
        for given in (place, place.as_uri()):
            done = run(*command, given)
            assert (done.code, "takes the directory of a store" in done.err) == (2, True), done.err
            assert place.as_uri() in done.err
    assert not new.exists()


def test_bad_calls(path: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for arguments, said in (
        (["replicate", path, "--once"], "The store has no replica"),
        (["replica", "check", path, "r"], "There is no such replica"),
        (["replica", "add", path, "nonsense://x"], "can't be at this URL"),
        (["replica", "add", path, tmp_path / "file"], "This is a file; a replica is a directory"),
        (["replica", "restore", tmp_path / "empty", tmp_path / "back"], "There is no replica here"),
        (["replica", "restore", tmp_path / "empty", tmp_path / "back"], f"url={tmp_path / 'empty'}"),
        (["replica", "follow", tmp_path / "empty", tmp_path / "back"], f"url={(tmp_path / 'empty').as_uri()}"),
        (["scan", (tmp_path / "empty").as_uri(), "t"], f"url={(tmp_path / 'empty').as_uri()}"),
        (["replica", "restore", tmp_path / "nothing", tmp_path / "back", "--to", "soon"], "BOUND is offsets"),
    ):
        done = run(*arguments)
        assert done.code == 2, done.err
        assert said in done.err
    assert run("replica", "restore", tmp_path / "nothing", tmp_path / "back").code == 1
    assert not (tmp_path / "nothing").exists()
    assert not (tmp_path / "back").exists()


def test_a_replica_that_fails_does_not_hold_up_the_others(path: Path, tmp_path: Path) -> None:
    for name in "abc":
        fine("replica", "add", path, tmp_path / name, "--name", name)
    for name in "ab":
        shutil.rmtree(tmp_path / name)
        (tmp_path / name).write_text("no directory")
    done = run("replicate", path, "--once")
    assert (done.code, [line.split(":")[0] for line in done.err.splitlines()]) == (1, ["a", "b"])
    assert "c: " in done.out
    assert "was 20 offsets behind" in done.out
    fine("replica", "check", path, "c")


def test_from_follow_to_promote(path: Path, tmp_path: Path) -> None:
    place, copy = tmp_path / "place", tmp_path / "copy"
    fine("replica", "add", path, place, "--name", "r")
    assert "There is no replica here" in run("replica", "follow", place, copy, "--once").err
    fine("replicate", path, "--once")
    fine("replica", "follow", place, copy, "--once")
    with kvstore.open(path) as store:
        store.table("t").upsert([{"k": 77, "v": 7}])
    fine("replicate", path, "--once")
    (pulled,) = fine("replica", "follow", place, copy, "--once", "--json").lines
    assert (pulled["changes"], pulled["rebuilt"]) == (1, False)
    assert "77" in fine("get", copy, "t", "77").out
    (followers,) = fine("replica", "ls", path, "--followers", "r", "--json").lines
    assert [each["leader_epoch"] for each in followers] == [0]
    assert "pushed to r" in fine("meta", "status", path).out
    (tmp_path / "rows.csv").write_text("k,v\n1,1\n")
    refused = run("load", copy, "t", tmp_path / "rows.csv")
    assert refused.code == 2
    assert "This copy follows a replica" in refused.err
    (done,) = fine("replica", "promote", copy, "--json").lines
    assert (done["leader_epoch"], sum(done["ends"]["t"].values())) == (1, 21)
    late = run("replicate", path, "--once")
    assert late.code == 1
    assert "Another leader has taken this store's place" in late.err
    again = run("replica", "promote", copy)
    assert again.code == 2
    assert "not a copy that follows" in again.err
    fine("replicate", copy, "--once")
    fine("replica", "check", copy, "r")
