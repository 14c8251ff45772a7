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
    told = json.loads(run("check", path, "--json").out)
    assert told["ok"]
    assert told["buckets"][0]["rows"] == 10
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
    told = json.loads(done.out)
    assert not told["ok"]
    assert told["error"]["class"] == "CorruptImage"
    assert told["error"]["message"] in done.err


def test_names_are_printed_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "[red]"
    with kvstore.open(path) as store:
        table = store.create_table("[/red]:cat:", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k")
        table.upsert({"k": 1})
    log = path / "tables/1/0/log/00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\x01")
    done = run("check", path)
    assert done.code == 1
    assert "│ [/red]:cat: │" in done.out
    (wrong,) = re.findall("^wrong: .*$", done.out, re.MULTILINE)
    assert wrong.startswith("wrong: [/red]:cat:/0: ")
    assert f"{tmp_path}/[red]/" in wrong
