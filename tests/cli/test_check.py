"""``kvstore check``: what it prints, and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa

import kvstore
from tests.cli.commands import run


def test_check_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with kvstore.open(path) as store:
        table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k")
        table.upsert([{"k": k} for k in range(10)])
    assert run("check", path).code == 0
    found = json.loads(run("check", path, "--json").out)
    assert found["ok"]
    assert found["buckets"][0]["rows"] == 10
    log = path / "tables/1/0/log/00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\x01")
    done = run("check", path)
    assert done.code == 1
    assert "wrong:" in done.out
    assert not json.loads(run("check", path, "--json").out)["ok"]
    assert run("check", tmp_path / "nothing").code == 2
    done = run("check", tmp_path / "nothing", "--json")
    assert done.code == 2
    assert json.loads(done.out)["error"]["class"] == "NotAStore"
    assert run("chekc").code == 2


def test_a_damaged_catalog_is_a_problem_found(tmp_path: Path) -> None:
    path = tmp_path / "store"
    kvstore.open(path).close()
    (path / "STORE").write_bytes(b"damaged")
    done = run("check", path, "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert not found["ok"]
    assert found["error"]["class"] == "CorruptImage"
    assert found["error"]["message"] in done.err


def test_names_are_printed_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "[red]"
    with kvstore.open(path) as store:
        table = store.create_table("[/red]:cat:", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k")
        table.upsert({"k": 1})
    log = path / "tables/1/0/log/00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\x01")
    done = run("check", path)
    assert done.code == 1
    assert "\n[/red]:cat:       0  " in done.out
    (wrong,) = re.findall("^wrong: .*$", done.out, re.MULTILINE)
    assert wrong.startswith("wrong: [/red]:cat:/0: ")
    assert f"{tmp_path}/[red]/" in wrong


def test_a_repair_restores_a_damaged_log_from_a_replica(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with kvstore.open(path) as store:
        table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k")
        table.upsert([{"k": k} for k in range(10)])
        store.flush()
        store.add_replica(str(copy), "r").ship()
    log = path / "tables/1/0/log/00000000000000000000.log"
    right = log.read_bytes()
    log.write_bytes(right[:-1] + b"\x01")
    done = run("check", path, "--repair")
    assert done.code == 1
    assert "wrong: t/0: the end of the log lacks offsets 0 to 9 at least: give a replica by --from" in done.out
    done = run("check", path, "--repair", "--from", copy, "--json")
    assert done.code == 0, done.err
    printed = json.loads(done.out)
    assert (printed["ok"], printed["gone"], printed["left"]) == (True, [], [])
    assert "t/0: 00000000000000000000.log" in printed["repaired"][0]
    assert "1 of its batches from the" in printed["repaired"][0]
    assert printed["buckets"][0]["rows"] == 10
    assert (Path(printed["quarantine"]) / log.relative_to(path)).read_bytes() == right[:-1] + b"\x01"
    assert log.read_bytes() == right
    done = run("check", path, "--repair", "--from", copy)
    assert done.code == 0
    assert "repaired" not in done.out
    assert run("check", path).code == 0


def test_lost_changes_are_given_up_only_with_accept_loss(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with kvstore.open(path) as store:
        store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k").upsert({"k": 1})
    log = path / "tables/1/0/log/00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\x01")
    done = run("check", path, "--repair", "--accept-loss")
    assert done.code == 0
    assert re.findall("^gone: .*$", done.out, re.MULTILINE) == [
        "gone: t/0: offsets 0 to 0 at least",
        "gone: t/0: the changelog before offset 1, where it begins now",
    ]
    assert f"Replaced files are in {path / 'lost'}" in done.out
    with kvstore.open(path) as store:
        assert store.table("t").get(1) == {"k": 1}


def test_options_of_a_repair_are_for_a_repair(tmp_path: Path) -> None:
    kvstore.open(tmp_path / "store").close()
    for arguments in (["--from", tmp_path / "copy"], ["--accept-loss"]):
        done = run("check", tmp_path / "store", *arguments)
        assert done.code == 2
        assert "--repair" in done.err
