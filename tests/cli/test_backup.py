"""``kvstore backup``."""

from __future__ import annotations

from pathlib import Path

import kvstore
from tests.cli.commands import fine, run


def test_a_backup_is_made_beside_a_writer(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", {"k": "int64"}, "k").upsert([{"k": 1}, {"k": 2}])
        (done,) = fine("backup", tmp_path / "s", tmp_path / "b", "--json").lines
        assert (done["ends"], done["txid"]) == ({"t": {"0": 2}}, store.txid)
        assert fine("backup", tmp_path / "s", tmp_path / "c").out.split()[-3:] == ["t", "0", "2"]
    assert fine("get", tmp_path / "b", "t", "2", "--json").lines == [{"k": 2}]
    fine("check", tmp_path / "c")
    done = run("backup", tmp_path / "s", tmp_path / "b")
    assert done.code == 2
    assert "new or empty" in done.err
    assert run("backup", tmp_path / "nothing", tmp_path / "d").code == 2
    assert not (tmp_path / "d").exists()
