"""``kvstore meta``: what it shows of a catalog, also of one that can't be loaded."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
from pathlib import Path
from unittest import mock
from unittest.mock import patch

import pyarrow as pa
import pytest

import kvstore
from kvstore.checkpoint import health
from kvstore.checkpoint.controller import Controller
from kvstore.cli.meta import status as meta
from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files
from kvstore.errors import StoreError
from kvstore.meta import image
from logformat import paths
from tests.cli.commands import fine, run

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("é", pa.string())])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Edits 1 to 12 in segments of five; images of 8 and 12; the first segment is gone."""
    path = tmp_path_factory.mktemp("made") / "s"
    with patch.object(Controller, "appended"), kvstore.open(path, edits_per_journal=5) as store:
        store.create_table("t", SCHEMA, "k")
        for _ in range(7):
            store.new_writer_id()
        store.checkpoint()
        store.add_columns("t", [pa.field("v", pa.int8())])
        for _ in range(3):
            store.new_writer_id()
        store.checkpoint()
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of that store."""
    return shutil.copytree(made, tmp_path / "s")


def images_of(path: Path) -> list[Path]:
    directory = path / paths.IMAGES
    return [paths.image_file(directory, txid) for txid in image.txids(directory)]


def test_status(path: Path) -> None:
    (printed,) = fine("meta", "status", path, "--json").lines
    sizes = [{"txid": 12, "bytes": images_of(path)[0].stat().st_size}]
    assert [{name: each[name] for name in ("txid", "bytes")} for each in printed["images"]][:1] == sizes
    assert [each["txid"] for each in printed["images"]] == [12, 8]
    assert printed["images"][0]["created"].endswith("Z")
    assert (printed["txid"], printed["edits_behind_image"], printed["warnings"]) == (12, 0, [])
    assert (printed["journal_begins"], printed["journal_segments"]) == (6, 2)
    text = fine("meta", "status", path).out
    assert "edits_behind_image  0" in text
    assert "warning" not in text


def test_status_warns_of_what_is_wrong(path: Path) -> None:
    newest = images_of(path)[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    done = run("meta", "status", path, "--json")
    assert done.code == 1
    (printed,) = done.lines
    assert printed["edits_behind_image"] == 4
    assert [warning for warning in printed["warnings"] if str(newest) in warning]
    assert "warning: An image of the catalog is damaged" in run("meta", "status", path).out
    assert "damaged" in run("check", path).out
    fine("meta", "checkpoint", path)
    assert fine("meta", "status", path, "--json").lines[0]["edits_behind_image"] == 0
    fine("check", path)


def test_status_warns_of_an_old_image_and_says_why(path: Path) -> None:
    with kvstore.open(path) as store:
        store.new_writer_id()
    opened = functools.partial(kvstore.open, edits_per_journal=1)
    with mock.patch.object(meta, "opened_store", lambda path: opened(path, read_only=True)):
        fine("meta", "status", path)
        with mock.patch.object(health, "obstacle", return_value=StoreError("too little memory", needed_bytes=5)):
            done = run("meta", "status", path)
        assert done.code == 1
        assert "1 edits old" in done.out
        assert "the reason: too little memory needed_bytes=5" in done.out
        with kvstore.open(path) as store:
            store.new_writer_id()
        assert "run `kvstore meta checkpoint`" in run("meta", "status", path).out


def test_journals_edits_and_one_edit(path: Path) -> None:
    (journals,) = fine("meta", "ls", path, "--json").lines
    assert journals == [
        {"journal": 6, "last": 10, "edits": 5, "name": "00000000000000000006"},
        {"journal": 11, "last": 12, "edits": 2, "name": "00000000000000000011"},
    ]
    listed = fine("meta", "ls", path, 6, "--json").lines
    assert [(each["txid"], each["edit"]) for each in listed] == [
        *((txid, "AllocateWriter") for txid in (6, 7, 8)),
        (9, "AddSchema"),
        (10, "AllocateWriter"),
    ]
    assert listed[3]["about"] == "table_id=1 schema_id=2"
    (one,) = fine("meta", "show", path, 9, "--json").lines
    assert (one["txid"], one["op"], one["edit"], one["epoch"]) == (9, 4, "AddSchema", 0)
    assert [column["name"] for column in one["payload"]["columns"]] == ["k", "é", "v"]
    for command in (("ls", path, 6), ("show", path, 9)):
        assert "AddSchema" in fine("meta", *command).out
    assert run("meta", "ls", path, 7).code == 2
    assert run("meta", "show", path, 3).code == 2
    assert "does not have" in run("meta", "show", path, 13).err


def test_the_journal_is_shown_when_the_catalog_can_not_be_loaded(path: Path) -> None:
    for each in images_of(path):
        each.unlink()
    done = run("meta", "status", path)
    assert done.code == 1
    assert "missing=1 to 5" in done.err
    assert run("tables", path).code == 1
    assert [each["journal"] for each in fine("meta", "ls", path, "--json").lines[0]] == [6, 11]
    os.remove(path / "STORE")
    assert len(fine("meta", "ls", path, 11, "--json").lines) == 2


def test_damaged_and_newer_edits_are_shown_as_such(path: Path) -> None:
    environment = open_environment(path / paths.JOURNAL, Files(), map_bytes=1 << 30)
    with environment.begin_write() as transaction:
        database = environment.database_within(transaction, "00000000000000000011")
        key = (12).to_bytes(8, "big")
        whole = transaction.get(key, db=database)
        assert whole is not None
        transaction.put(key, whole[:-1] + b"!", db=database)
    environment.close()
    for each in images_of(path)[:1]:
        each.unlink()
    assert run("meta", "status", path).code == 1
    done = run("meta", "show", path, 12, "--json")
    assert (done.code, done.lines[0]["txid"], "checksum" in done.lines[0]["error"]) == (1, 12, True)
    listed = fine("meta", "ls", path, 11, "--json").lines
    assert [each["edit"] for each in listed] == ["AllocateWriter", None]
    assert "checksum" in listed[1]["about"]
    assert "checksum" in fine("meta", "ls", path, 11).out


def test_checkpoint(path: Path) -> None:
    (printed,) = fine("meta", "checkpoint", path, "--json").lines
    assert (printed["txid"], printed["previous"], printed["written"], printed["dropped_edits"]) == (12, 8, False, 0)
    with kvstore.open(path) as store:
        store.new_writer_id()
    assert "dropped_edits  5" in fine("meta", "checkpoint", path).out
    assert [found.name[-2:] for found in images_of(path)] == ["13", "12"]


def test_verify_an_image(path: Path) -> None:
    newest = images_of(path)[0]
    (printed,) = fine("meta", "image", "verify", newest, "--json").lines
    assert (printed["ok"], printed["txid"], printed["counts"]["table"], printed["counts"]["schema"]) == (True, 12, 1, 2)
    assert "1 table, 2 schema" in fine("meta", "image", "verify", newest).out
    newest.write_bytes(newest.read_bytes() + b"\0")
    done = run("meta", "image", "verify", newest, "--json")
    assert (done.code, done.lines[0]["ok"], done.lines[0]["error"]["class"]) == (1, False, "CorruptImage")
    assert run("meta", "image", "verify", path / "nothing").code == 2


def test_dump(path: Path, tmp_path: Path) -> None:
    with kvstore.open(path) as store:
        store.consumer("c").commit("t", {0: 0})
        records = fine("meta", "dump", path, "--json").lines
        assert [each["kind"] for each in records] == ["head", "table", "schema", "schema", "consumer"]
        assert (records[0]["txid"], records[1]["name"], records[4]["offsets"]) == (13, "t", [0])
        assert "consumer table_id=1 name=c offsets=[0] until_ms=null" in fine("meta", "dump", path).out
        fine("meta", "dump", path, "--to", tmp_path / "copy")
    assert fine("meta", "image", "verify", tmp_path / "copy", "--json").lines[0]["txid"] == 13
    copied = fine("meta", "dump", tmp_path / "copy", "--json").lines
    assert copied[1:] == records[1:]
    assert len(fine("meta", "dump", images_of(path)[1], "--json").lines) == 3
    assert run("meta", "dump", path, "--to", tmp_path / "copy").code == 2
    assert run("meta", "dump", path, "--to", tmp_path / "nowhere" / "copy").code == 2
    assert run("meta", "dump", tmp_path).code == 2
    assert json.loads(json.dumps(records)) == records


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_dump_that_the_disk_refuses_leaves_no_file(path: Path, tmp_path: Path, call: str) -> None:
    with patch.object(Files, call, side_effect=OSError(errno.ENOSPC, "No space left on device")):
        done = run("meta", "dump", path, "--to", tmp_path / "copy")
    assert (done.code, "No space on the disk" in done.err) == (1, True)
    assert not (tmp_path / "copy").exists()
    fine("meta", "dump", path, "--to", tmp_path / "copy")
    before = (tmp_path / "copy").read_bytes()
    assert run("meta", "dump", path, "--to", tmp_path / "copy").code == 2
    assert (tmp_path / "copy").read_bytes() == before


def test_recover(path: Path) -> None:
    with kvstore.open(path) as store:
        store.table("t").upsert({"k": 1, "é": "ü", "v": 2})
        store.create_table("u", SCHEMA, "k").upsert({"k": 1, "é": "ü"})
    (said,) = fine("meta", "recover", path, "--json").lines
    assert (said["txid"], said["tables"], said["gone"], said["written"]) == (14, ["t", "u"], [], False)
    (path / paths.JOURNAL / "data.mdb").unlink()
    assert run("tables", path).code == 1
    done = run("meta", "recover", path)
    assert done.code == 1
    assert "gone: edits after 13, if there were any" in done.out
    assert "restored: u" in done.out
    assert "Nothing was written" in done.out
    assert run("tables", path).code == 1
    (printed,) = fine("meta", "recover", path, "--metadata-failure-recovery", "--json").lines
    assert (printed["quarantined"], printed["restored"]) == ([], ["u"])
    assert (printed["image"], printed["txid"], printed["leader_epoch"], printed["tables"]) == (12, 14, 1, ["t", "u"])
    assert [json.loads(line)["k"] for line in fine("scan", path, "t", "--json").out.splitlines()] == [1]
    fine("check", path)
    fine("meta", "status", path)
    assert run("meta", "recover", path.parent).code == 2
