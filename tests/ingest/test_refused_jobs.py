"""Calls and files that a job refuses."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.errors import InvalidRequest, NoSuchTable, TaskFailed, Unavailable, UnsupportedOperation
from kvstore.ingest import formats, sources
from tests.conftest import OpenStore
from tests.ingest.worlds import SCHEMA, write


class TestRefused:
    def test_to_create(self, store: kvstore.Store, source: Path) -> None:
        store.create_table("t", SCHEMA, "k")
        fine: dict[str, Any] = {"source": source, "format": "csv", "table": "t"}
        store.create_job("there", **fine)
        for name, other in [
            ("there", {}),
            ("", {}),
            ("j", {"format": "xml"}),
            ("j", {"source": source / "nowhere"}),
            ("j", {"source": 5}),
            ("j", {"source": __file__}),
            ("j", {"offset": "/a"}),
            ("j", {"max_files": 0}),
            ("j", {"max_bytes": 1.5}),
            ("j", {"max_filter_ratio": 1.1}),
            ("j", {"max_filter_ratio": "x"}),
        ]:
            with pytest.raises(InvalidRequest):
                store.create_job(name, **{**fine, **other})
        with pytest.raises(NoSuchTable):
            store.create_job("j", **{**fine, "table": "u"})
        assert store.list_jobs() == ["there"]

    def test_what_its_state_does_not_allow(self, job: kvstore.Job) -> None:
        with pytest.raises(InvalidRequest, match="pause it first"):
            job.alter(max_files=3)
        with pytest.raises(InvalidRequest, match="is not paused"):
            job.resume()
        job.pause("lunch")
        with pytest.raises(UnsupportedOperation, match=r"resume it first.*lunch"):
            job.run()
        with pytest.raises(InvalidRequest, match="no such option"):
            job.alter(max_size=3)
        assert job.show().version == 0

    def test_what_is_gone(self, store: kvstore.Store, job: kvstore.Job, source: Path, store_path: Path) -> None:
        write(source, "a.csv", 0)
        job.run()
        job.drop()
        with pytest.raises(InvalidRequest, match="was dropped"):
            job.run()
        with pytest.raises(InvalidRequest, match="no such job"):
            store.job("j")
        assert not list(store_path.glob("jobs/*"))
        assert store.table("t").writers == {}
        again = store.create_job("j", source=source, format="csv", table="t")
        assert again.run().tasks[0].number == 1
        store.drop_table("t")
        assert store.list_jobs() == []
        with pytest.raises(InvalidRequest, match="was dropped"):
            again.show()

    def test_a_directory_that_goes_while_it_is_listed_has_no_files(
        self, job: kvstore.Job, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (source / "b").mkdir()
        write(source, "a.csv", 0)
        scandir = os.scandir

        def going(path: Any) -> Any:
            if str(path).endswith("b/"):
                (source / "b").rmdir()
            return scandir(path)

        monkeypatch.setattr(sources.os, "scandir", going)
        assert [each.last for each in job.run().tasks] == ["a.csv"]

    def test_links_that_lead_nowhere_are_no_files(self, job: kvstore.Job, source: Path) -> None:
        write(source, "a.csv", 0)
        for number, target in enumerate(["0.csv", "gone.csv", "a.csv/x"]):
            (source / f"{number}.csv").symlink_to(target)
        assert [each.last for each in job.run().tasks] == ["a.csv"]

    def test_what_can_not_be_looked_at_is_named(self, job: kvstore.Job, source: Path) -> None:
        (source / "b").mkdir()
        (source / "b" / "c.csv").symlink_to("c" * 1000)
        with pytest.raises(Unavailable, match="can't be listed") as refused:
            job.run()
        assert refused.value.where["path"] == repr(str(source / "b" / "c.csv"))

    def test_a_place_that_can_not_be_listed(self, job: kvstore.Job, source: Path) -> None:
        shutil.rmtree(source)
        with pytest.raises(Unavailable, match="can't be listed"):
            job.run()
        assert job.show().state == "waiting"

    @pytest.mark.parametrize(
        ("format", "text", "bytes_max"),
        [("csv", b"k,v\n1,%b\n", formats.CSV_BLOCK_BYTES), ("jsonl", b'{"k":"%b"}\n', formats.LINE_BYTES_MAX)],
    )
    def test_a_row_that_is_longer_than_a_limit(
        self, store: kvstore.Store, source: Path, format: str, text: bytes, bytes_max: int
    ) -> None:
        store.create_table("t", SCHEMA, "k")
        (source / f"a.{format}").write_bytes(text % (b"a" * 2 * bytes_max))  # two blocks of CSV
        job = store.create_job("j", source=source, format=format, table="t")
        with pytest.raises(TaskFailed, match=f"longer than the limit.*bytes_max={bytes_max}"):
            job.run()
        assert store.table("t").count() == 0

    def test_a_store_that_is_only_read(self, open_store: OpenStore, source: Path) -> None:
        with open_store() as store:
            store.create_table("t", SCHEMA, "k")
            store.create_job("j", source=source, format="csv", table="t")
        with open_store(read_only=True) as store:
            job = store.job("j")
            assert job.show().offset is None
            for call in (job.run, job.pause, job.drop):
                with pytest.raises(UnsupportedOperation):
                    call()
