"""``history``, ``undo`` and ``apply``: a mistake is found, reviewed and undone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kvstore
from tests.cli.commands import fine, run


@pytest.fixture
def path(store_path: Path) -> Path:
    with kvstore.open(store_path) as store:
        table = store.create_table("files", {"path": "string", "size": "int64"}, "path")
        table.upsert([{"path": path, "size": 1} for path in "abc"])
        mistake = kvstore.Changes.of([("upsert", {"path": "a", "size": 9}), ("delete", {"path": "b"})], table.schema)
        table.apply_epoch(mistake, writer="nightly", epoch=7)
        table.upsert({"path": "c", "size": 2})
    return store_path


def test_a_history_shows_what_changed_and_who_wrote_it(path: Path) -> None:
    first, second = fine("history", str(path), "files", "a").out.splitlines()[2:]
    assert first.split()[0] == "0"
    assert first.endswith("size=1")
    assert second.split()[2:5] == ["update", "nightly", "7"]
    assert second.endswith("size: 1 -> 9")
    lines = [json.loads(line) for line in fine("history", str(path), "files", "b", "--json").out.splitlines()]
    assert [(line["before"], line["after"], line["epoch"]) for line in lines] == [
        (None, {"path": "b", "size": 1}, None), ({"path": "b", "size": 1}, None, 7)
    ]  # fmt: skip


def test_a_key_without_history_is_no_success(path: Path) -> None:
    done = run("history", str(path), "files", "zz")
    assert (done.code, done.out) == (1, "")
    assert "no change of this key" in done.err


def test_a_history_says_where_the_log_begins(path: Path) -> None:
    with kvstore.open(path, segment_bytes_max=1_000, log_bytes_max=3_000) as store:
        table = store.table("files")
        for size in range(60):
            table.upsert({"path": "a", "size": size})
        table.bucket(0).handle.retain()
        begins = table.offsets()[0][0]
    assert begins > 0
    assert f"begins at offset {begins}" in run("history", str(path), "files", "a").err


def test_a_patch_is_shown_saved_checked_and_applied_once(path: Path, tmp_path: Path) -> None:
    patch = str(tmp_path / "undo.patch")
    undo = ("undo", str(path), "files", "--start", "earliest", "--writer", "nightly", "--epoch", "7")
    shown = fine(*undo).out
    assert shown.splitlines()[-2:] == ['~ path="a"  size: 9 -> 1', '+ path="b"  size=1']
    assert fine("get", str(path), "files", "a", "--json").out == '{"path":"a","size":9}\n'  # only shown
    assert fine(*undo, "--to", patch).out.startswith(shown[: shown.index("made at")])
    assert fine("apply", str(path), patch, "--check").out == "files: the patch can be applied\n"
    assert fine("get", str(path), "files", "a", "--json").out == '{"path":"a","size":9}\n'
    assert fine("apply", str(path), patch).out.startswith("files: 2 rows changed, as patch ")
    assert fine("get", str(path), "files", "a", "--json").out == '{"path":"a","size":1}\n'
    assert "applied before" in fine("apply", str(path), patch).out
    assert "applied before" in fine("apply", str(path), patch, "--check").out
    assert json.loads(fine("apply", str(path), patch, "--json").out)["applied_before"]


def test_a_conflict_names_the_keys(path: Path, tmp_path: Path) -> None:
    patch = tmp_path / "undo.patch"
    fine("undo", str(path), "files", "--start", "3", "--end", "6", "--to", str(patch))
    with kvstore.open(path) as store:
        store.rename_table("files", "paths")
        store["paths"].upsert({"path": "b", "size": 4})
    for words in (["--check"], []):
        done = run("apply", str(path), str(patch), *words)
        assert done.code == 1
        assert "{'path': 'b'}" in done.err
    assert '"size":9' in fine("get", str(path), "paths", "a", "--json").out


def test_wrong_calls(path: Path, tmp_path: Path) -> None:
    (tmp_path / "no patch").write_text("hello")
    for words, code in [
        (("undo", str(path), "files", "--start", "full"), 2),
        (("undo", str(path), "files", "--start", "0", "--writer", "nobody"), 2),
        (("undo", str(path), "files", "--start", "0", "--task", "1"), 2),
        (("apply", str(path), str(tmp_path / "nothing")), 2),
        (("apply", str(path), str(tmp_path / "no patch")), 1),
    ]:
        done = run(*words)
        assert done.code == code, words
        assert done.err.startswith("kvstore: ")
    with kvstore.open(tmp_path / "other") as store:
        store.create_table("files", {"path": "string"}, "path")
    fine("undo", str(path), "files", "--start", "0", "--to", str(tmp_path / "patch"))
    done = run("apply", str(tmp_path / "other"), str(tmp_path / "patch"))
    assert done.code == 2
    assert "does not have the table" in done.err
