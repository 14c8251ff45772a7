"""Jobs as users have them: what is loaded, what is left out, what is noticed, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

import kvstore
from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    NoSuchTable,
    StoreLocked,
    TaskFailed,
    Unavailable,
    UnsupportedOperation,
)
from kvstore.ingest import reading, runner, sources, tasks
from kvstore.ingest.engine import EmbeddedEngine
from logformat.catalog.jobs import SourceFile, TaskCounts
from tests.conftest import OpenStore
from tests.ingest.worlds import BAD, SCHEMA, write
from tests.support.tables import rows_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def job(store: kvstore.Store, source: Path) -> kvstore.Job:
    store.create_table("t", SCHEMA, "k", buckets=2)
    return store.create_job("j", source=source, format="csv", table="t", max_files=2)


def keys(store: kvstore.Store) -> list[int]:
    return sorted(row["k"] for row in rows_of(store.table("t")))


def left_out(job: kvstore.Job, task: int = 1) -> list[tuple[str, int]]:
    lines = map(json.loads, job.rejected(task).read_text().splitlines())
    return [(line["file"], line["row"]) for line in lines]


def test_files_are_taken_in_the_order_of_their_paths(store: kvstore.Store, job: kvstore.Job, source: Path) -> None:
    (source / "b").mkdir()
    (source / "b" / "back").symlink_to(source)
    for name in ("c.csv", "b/x.csv", "b.csv", "é.csv", "_c.csv", ".c.csv", "c.txt", "b/.x/y.csv"):
        (source / name).parent.mkdir(exist_ok=True)
        write(source, name, 0, 3)
    done = job.run()
    assert [(each.first, each.last) for each in done.tasks] == [("b.csv", "b/x.csv"), ("c.csv", "é.csv")]
    assert [row["v"] for row in rows_of(store.table("t"))] == [f"é.csv {n}" for n in range(3)]
    assert job.run().tasks == []
    write(source, "ê.csv", 3, 3)
    assert [each.first for each in job.run().tasks] == ["ê.csv"]
    assert keys(store) == [*range(6)]


def test_a_task_takes_up_to_so_many_bytes_and_one_file_at_least(
    store: kvstore.Store, job: kvstore.Job, source: Path
) -> None:
    size = write(source, "a.csv", 0).stat().st_size
    for name in "bcd":
        write(source, f"{name}.csv", 0)
    job.pause()
    job.alter(max_files=9, max_bytes=2 * size)
    job.resume()
    assert [each.files for each in job.run().tasks] == [2, 2]
    job.pause()
    job.alter(offset=None, max_bytes=1)
    job.resume()
    assert [each.files for each in job.run().tasks] == [1, 1, 1, 1]


@pytest.mark.parametrize("pattern", ["*.csv", "?.csv", "[a-c].csv", "**/*.csv", "../in/a*", "**/a.csv", "b/*"])
def test_a_pattern_is_what_a_shell_makes_of_it(store: kvstore.Store, source: Path, pattern: str) -> None:
    store.create_table("t", SCHEMA, "k")
    (source / "b" / "c").mkdir(parents=True)
    for place, name in enumerate(["a.csv", "b/a.csv", "b/c/a.csv", "d.csv", "ab.csv"]):
        write(source, name, place, 1)
    store.create_job("j", source=f"{source}/{pattern}", format="csv", table="t").run()
    expected = {path for path in source.glob(pattern) if path.is_file()}
    names = ["a.csv", "b/a.csv", "b/c/a.csv", "d.csv", "ab.csv"]
    assert {(source / names[key]).resolve() for key in keys(store)} == {path.resolve() for path in expected}


@pytest.mark.parametrize("format", ["parquet", "arrow", "json"])
def test_formats(store: kvstore.Store, source: Path, format: str) -> None:
    store.create_table("t", SCHEMA, "k")
    rows = pa.table({"k": pa.array([1, None, 3], pa.int64()), "v": ["a", "b", None]})
    match format:
        case "parquet":
            parquet.write_table(rows, source / "a.parquet")
        case "arrow":
            with ipc.new_file(source / "a.arrow", rows.schema) as file:
                file.write_table(rows)
        case "json":
            (source / "a.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows.to_pylist()) + "{no json\n" + "[" * 99_999
            )
    job = store.create_job("j", source=source, format=format, table="t", max_filter_ratio=0.6)
    job.run()
    assert rows_of(store.table("t")) == [{"k": 1, "v": "a"}, {"k": 3, "v": None}]
    assert [row for _, row in left_out(job)] == ([2, 4, 5] if format == "json" else [2])


def test_files_in_the_place_of_a_url(store: kvstore.Store, source: Path) -> None:
    store.create_table("t", SCHEMA, "k")
    write(source, "a.csv", 0, 3)
    (source / "b").mkdir()
    write(source, "b/c.csv", 3, 3)
    write(source, "b/_c.csv", 9, 3)
    for number, url in enumerate((f"file://{source}", f"file://{source}/**.csv", f"file://{source}/*.csv")):
        job = store.create_job(f"j{number}", source=url, format="csv", table="t")
        assert [each.files for each in job.run().tasks] == [1 if url.endswith("/*.csv") else 2]
        assert job.run().tasks == []
    assert keys(store) == [*range(6)]


def test_a_file_of_a_url_is_known_as_well_as_one_of_a_path(store: kvstore.Store, source: Path) -> None:
    """To the nanosecond."""
    store.create_table("t", SCHEMA, "k")
    path = write(source, "a.csv", 0, 3)
    job = store.create_job("j", source=f"file://{source}", format="csv", table="t")
    job.run()
    size = path.stat().st_size
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))
    assert (path.stat().st_size, job.run().overlooked.changed) == (size, ("a.csv",))


def test_names_of_all_kinds(store: kvstore.Store, job: kvstore.Job, source: Path) -> None:
    names = sorted(["a\nb.csv", 'a"\\.csv', "日本.csv", "\u202egpj.csv", "a b\r.csv", "[x].csv"], key=str.encode)
    for place, name in enumerate(names):
        (source / name).write_text(f"k,v\n{place},\nx,y\n")
    job.pause()
    job.alter(max_filter_ratio=0.5, max_files=99)
    job.resume()
    done = job.run()
    assert [(each.first, each.last) for each in done.tasks] == [(names[0], names[-1])]
    assert [name for name, _ in left_out(job)] == names
    assert keys(store) == [*range(len(names))]
    assert not job.run().overlooked
    pattern = store.create_job("p", source=f"{source}/**", format="csv", table="t", max_filter_ratio=0.5)
    assert [each.files for each in pattern.run().tasks] == [len(names)]


def test_a_name_that_is_no_text_matters_only_if_the_file_is_meant(job: kvstore.Job, source: Path) -> None:
    write(source, "a.csv", 0)
    (source / os.fsdecode(b"\xff.txt")).write_text("")
    assert len(job.run().tasks) == 1
    (source / os.fsdecode(b"\xff.csv")).write_text("")
    with pytest.raises(Unavailable, match="not valid text; rename it") as refused:
        job.run()
    assert refused.value.where["path"] == r"'\udcff.csv'"


def test_a_directory_that_is_there_is_no_pattern(store: kvstore.Store, source: Path) -> None:
    store.create_table("t", SCHEMA, "k")
    (source / "[a]*").mkdir()
    write(source, "[a]*/a.csv", 0, 3)
    store.create_job("j", source=source / "[a]*", format="csv", table="t").run()
    assert keys(store) == [*range(3)]


def test_a_source_without_a_file_is_told_of(
    store: kvstore.Store, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_table("t", SCHEMA, "k")
    write(source, "a.csv", 0, 3)
    job = store.create_job("j", source=f"{source}/*.cvs", format="csv", table="t")
    job.run()
    assert f"no file at {source}/*.cvs matches" in caplog.text
    caplog.clear()
    job.pause()
    job.alter(offset="a.cvs")
    job.resume()
    job.run()
    assert not caplog.text, "they came, and went since"


def test_files_without_rows(store: kvstore.Store, source: Path) -> None:
    store.create_table("t", SCHEMA, "k")
    (source / "a.csv").write_text("k,v\n")
    (source / "a.jsonl").write_text("")
    parquet.write_table(pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.string())}), source / "a.parquet")
    for format in ("csv", "json", "parquet"):
        job = store.create_job(f"j {format}", source=source, format=format, table="t")
        (task,) = job.run().tasks
        assert task.counts == TaskCounts()
        assert (job.show().offset, job.show().statistics.file_number) == (task.last, 1)


class TestBadRows:
    @pytest.fixture
    def tolerant(self, store: kvstore.Store, source: Path) -> kvstore.Job:
        store.create_table("t", SCHEMA, "k")
        return store.create_job("j", source=source, format="csv", table="t", max_filter_ratio=0.2)

    def test_are_counted_and_written_to_a_side_file(
        self, store: kvstore.Store, tolerant: kvstore.Job, source: Path
    ) -> None:
        write(source, "a.csv", 0, 6, more=BAD)
        (source / "b.csv").write_text(
            (source / "a.csv").read_text().replace(BAD, "1,2,3\n") + "6,x\n,y\n" + "7,z\n" * 9
        )
        counts = tolerant.run().tasks[0].counts
        assert counts is not None
        assert (counts.scanned_rows, counts.filtered_rows, counts.loaded_rows) == (27, 5, 22)
        assert left_out(tolerant) == [("a.csv", 7), ("a.csv", 8), ("a.csv", 9), ("b.csv", 7), ("b.csv", 9)]
        assert keys(store) == [*range(8)]

    def test_beyond_the_ratio_nothing_of_the_task_is_applied(
        self, store: kvstore.Store, tolerant: kvstore.Job, source: Path
    ) -> None:
        write(source, "a.csv", 0, 9, more=BAD)
        with pytest.raises(TaskFailed, match="max_filter_ratio") as failed:
            tolerant.run()
        assert failed.value.where["filtered_rows"] == 3
        assert "a.csv, row 10" in str(failed.value)
        status = tolerant.show()
        assert (status.state, status.offset, status.task) == ("paused", None, None)
        assert (status.statistics.failed_tasks, status.statistics.scanned_rows) == (1, 0)
        assert "max_filter_ratio" in (status.reason or "")
        assert (status.history[0].error, status.history[0].number) == (status.reason, 1)
        assert left_out(tolerant) == [("a.csv", 10), ("a.csv", 11), ("a.csv", 12)]
        assert keys(store) == []
        assert store.table("t").offsets() == {0: (0, 0)}
        with pytest.raises(TaskFailed, match="time to try it again has not come"):
            tolerant.run()
        write(source, "a.csv", 0, 9)
        tolerant.resume()
        assert [each.number for each in tolerant.run().tasks] == [1]
        assert keys(store) == [*range(9)]
        assert not tolerant.rejected(1).exists()

    def test_exactly_the_ratio_is_allowed(self, tolerant: kvstore.Job, source: Path) -> None:
        write(source, "a.csv", 0, 12, more=BAD)
        assert len(tolerant.run().tasks) == 1

    def test_all_of_them_if_that_is_allowed(self, store: kvstore.Store, source: Path) -> None:
        store.create_table("t", SCHEMA, "k")
        (source / "a.csv").write_text("k,v\nx,1\ny,2\n")
        job = store.create_job("j", source=source, format="csv", table="t", max_filter_ratio=1)
        (task,) = job.run().tasks
        assert task.counts == TaskCounts(scanned_rows=2, filtered_rows=2)
        assert left_out(job) == [("a.csv", 1), ("a.csv", 2)]

    def test_too_many_fail_the_task_whatever_the_ratio(
        self, tolerant: kvstore.Job, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "MISFITS_MAX", 2)
        write(source, "a.csv", 0, 100, more=BAD)
        with pytest.raises(TaskFailed, match="More than 2 rows"):
            tolerant.run()

    def test_a_key_that_is_too_long_is_a_row_that_does_not_fit(self, store: kvstore.Store, source: Path) -> None:
        store.create_table("t", pa.schema([pa.field("k", pa.string(), False)]), "k")
        (source / "a.csv").write_text("k\n" + "".join(f"{n}\n" for n in range(20)) + "x" * 600 + "\n")
        job = store.create_job("j", source=source, format="csv", table="t", max_filter_ratio=0.1)
        job.run()
        assert left_out(job) == [("a.csv", 21)]

    def test_what_is_wrong_with_all_rows_is_wrong_with_the_file(self, tolerant: kvstore.Job, source: Path) -> None:
        """However many rows may be left out."""
        tolerant.pause()
        tolerant.alter(max_filter_ratio=1)
        tolerant.resume()
        write(source, "a.csv", 0)
        (source / "b.csv").write_text("k,w\n1,2\n")
        with pytest.raises(TaskFailed, match="column is missing") as failed:
            tolerant.run()
        assert failed.value.where["path"] == "b.csv"
        assert "path=b.csv" in (tolerant.show().reason or "")
        for data in (b"", b"k,\xff\n1,2\n", b"k,v\n1,\xff\n", b'k,"' + b"v" * 200_000):
            (source / "a.csv").write_bytes(data)
            tolerant.resume()
            with pytest.raises(TaskFailed):
                tolerant.run()


class TestMemory:
    @pytest.mark.parametrize("sizes", [(1, 9, 1), (4, 4, 4)])
    def test_rows_that_are_too_much_for_a_commit_fail_the_task(
        self, store: kvstore.Store, source: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
    ) -> None:
        """Of one file, or of all."""
        monkeypatch.setattr(tasks, "TASK_BYTES_MAX", 8_500)
        store.create_table("t", SCHEMA, "k", buckets=2)
        for place, size in enumerate(sizes):
            (source / f"{place}.csv").write_text("k,v\n" + f"{place}," + "v" * 1_000 * size + "\n")
        job = store.create_job("j", source=source, format="csv", table="t")
        with pytest.raises(TaskFailed, match="alter max_files or max_bytes") as failed:
            job.run()
        assert failed.value.where.get("path") == ("1.csv" if 9 in sizes else None)
        assert (job.show().state, keys(store)) == ("paused", [])
        if max(sizes) == 4:
            job.alter(max_files=2)
            job.resume()
            assert [each.files for each in job.run().tasks] == [2, 1]

    def test_a_task_has_no_more_rows_than_arrow_puts_into_one_column(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", buckets=16)
        assert tasks.bytes_max_of(table) < 2**31

    def test_no_more_files_are_read_than_somebody_waits_for(self) -> None:
        read = []

        def reader(file: SourceFile) -> reading.FileRows:
            read.append(file.path)
            return reading.FileRows()

        files = [SourceFile(path=f"{n:03}", size=1, tag="") for n in range(100)]
        found = EmbeddedEngine().read(reader, files)  # type: ignore[arg-type]
        next(found)
        threading.Event().wait(0.1)  # enough for all of them
        found.close()  # type: ignore[attr-defined]
        assert 0 < len(read) < 40
        assert len(list(EmbeddedEngine().read(reader, files))) == 100  # type: ignore[arg-type]


class TestChangeTypes:
    def test_a_file_may_delete(self, store: kvstore.Store, job: kvstore.Job, source: Path) -> None:
        write(source, "a.csv", 0, 4)
        (source / "b.csv").write_text(
            "_change_type,k,v\ndelete,0,\nupdate_preimage,1,old\nupdate_postimage,1,new\ninsert,9,x\n"
            "update_preimage,3,old\nupdate_preimage,7,old\n"
        )
        job.run()
        assert sorted((row["k"], row["v"]) for row in rows_of(store.table("t"))) == [
            (1, "new"),
            (2, "a.csv 2"),
            (3, "a.csv 3"),
            (9, "x"),
        ]

    def test_a_row_that_does_not_say_what_it_does_is_left_out(self, store: kvstore.Store, source: Path) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int64(), False)])
        store.create_table("t", schema, "k")
        (source / "a.csv").write_text(
            "k,n,_change_type\n1,1,insert\n1,,delete\n2,2,remove\n3,3,\n4,,insert\n5,5,insert\n"
        )
        job = store.create_job("j", source=source, format="csv", table="t", max_filter_ratio=0.5)
        job.run()
        assert keys(store) == [5]
        assert left_out(job) == [("a.csv", 3), ("a.csv", 4), ("a.csv", 5)]


class TestFilesThatAreNotAsTheyWere:
    def dies_with_an_open_task(self, job: kvstore.Job) -> None:
        class Engine:
            def read(self, *_: Any) -> Any:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            job.run(engine=Engine())
        assert job.show().task is not None

    def test_changed_after_it_was_taken(self, store: kvstore.Store, job: kvstore.Job, source: Path) -> None:
        write(source, "a.csv", 0)
        path = write(source, "b.csv", 20)
        self.dies_with_an_open_task(job)
        path.write_text("k,v\n7,7\n")
        with pytest.raises(TaskFailed, match="changed after a task had taken it") as failed:
            job.run()
        assert failed.value.where["path"] == "b.csv"
        assert (keys(store), job.show().offset) == ([], None)
        job.resume()
        job.run()
        assert keys(store) == [*range(12)]

    def test_another_of_the_same_size_is_noticed(self, job: kvstore.Job, source: Path) -> None:
        path = write(source, "a.csv", 0)
        self.dies_with_an_open_task(job)
        path.write_text(path.read_text().replace("a.csv 1", "a.csv X"))
        with pytest.raises(TaskFailed, match="A file changed"):
            job.run()

    def test_vanished(self, store: kvstore.Store, job: kvstore.Job, source: Path) -> None:
        write(source, "a.csv", 0)
        write(source, "b.csv", 20)
        self.dies_with_an_open_task(job)
        (source / "a.csv").unlink()
        with pytest.raises(TaskFailed, match="no longer exists") as failed:
            job.run()
        assert failed.value.where["path"] == "a.csv"
        job.resume()
        job.run()
        assert keys(store) == [*range(20, 32)]

    def test_changed_while_it_is_read(self, job: kvstore.Job, source: Path) -> None:
        path = write(source, "a.csv", 0)

        class Engine:
            def read(self, reader: Callable[..., Any], files: Any) -> Any:
                for file in files:
                    with reader.source.opened(file) as opened:  # type: ignore[attr-defined]
                        opened.read()
                        path.write_text("k,v\n")
                yield reading.FileRows()

        with pytest.raises(TaskFailed, match="A file changed"):
            job.run(engine=Engine())

    def test_gone_after_it_was_applied_is_no_matter(
        self, job: kvstore.Job, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(source, "a.csv", 0)

        def dies(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(runner.Taken, "add", dies)
            with pytest.raises(KeyboardInterrupt):
                job.run()
        (source / "a.csv").unlink()
        assert [each.counts for each in job.run().tasks] == [job.show().history[0].counts]
        assert job.show().statistics.loaded_rows == 12

    def test_late(self, store: kvstore.Store, job: kvstore.Job, source: Path, caplog: pytest.LogCaptureFixture) -> None:
        for name in ("a.csv", "c.csv"):
            write(source, name, 0)
        job.run()
        old = write(source.parent, "b.csv", 50)
        os.utime(old, (1, 1))
        old.rename(source / "b.csv")
        write(source, "a.csv", 70)
        write(source, "d.csv", 0)
        done = job.run()
        assert (done.overlooked.late, done.overlooked.changed) == (("b.csv",), ("a.csv",))
        assert [each.first for each in done.tasks] == ["d.csv"]
        assert keys(store) == [*range(12)]
        assert "file 'b.csv' came after the job's offset had passed it" in caplog.text
        assert "file 'a.csv' changed after it was loaded" in caplog.text

    def test_who_sets_the_offset_knows_what_lies_before_it(self, job: kvstore.Job, source: Path) -> None:
        for name in "abc":
            write(source, f"{name}.csv", 0)
        job.pause()
        job.alter(offset="b.csv")
        job.resume()
        assert not job.run().overlooked
        write(source, "a0.csv", 0)
        assert job.run().overlooked.late == ("a0.csv",)

    @pytest.mark.parametrize("cut", [b'{"version":0,"fi', b'{"version":0,"fi' + bytes(512) + b"}]}\n"])
    def test_without_what_it_remembers_all_before_the_offset_passes_for_taken(
        self, job: kvstore.Job, source: Path, store_path: Path, cut: bytes
    ) -> None:
        write(source, "b.csv", 0)
        job.run()
        (taken,) = store_path.glob("jobs/*/taken.jsonl")
        whole = taken.read_bytes()
        taken.write_bytes(whole + cut)
        write(source, "c.csv", 0)
        assert not job.run().overlooked
        assert taken.read_bytes().startswith(whole + b'{"version":0,"files":[{"path":"c.csv"')
        taken.unlink()
        write(source, "a.csv", 0)
        assert not job.run().overlooked
        write(source, "a1.csv", 0)
        assert job.run().overlooked.late == ("a1.csv",)

    def test_damage_of_what_it_remembers_is_told_and_calls_no_file_late(
        self, job: kvstore.Job, source: Path, store_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in "abc":
            write(source, f"{name}.csv", 0)
            job.run()
        (taken,) = store_path.glob("jobs/*/taken.jsonl")
        first, second, third = taken.read_bytes().splitlines(keepends=True)
        taken.write_bytes(first + second + third.replace(b"path", b"p\0th"))
        assert not job.run().overlooked
        assert "all files before its offset count as taken" in caplog.text
        write(source, "b1.csv", 0)
        assert job.run().overlooked.late == ("b1.csv",)
        taken.write_bytes(first + second.replace(b"path", b"p\0th") + third)
        with pytest.raises(CorruptData, match="remove it: all files"):
            job.run()


class TestFollow:
    def test_takes_files_as_they_come_and_waits_while_it_is_paused(
        self, job: kvstore.Job, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("LOOK_MS_MIN", "LOOK_MS_MAX"):
            monkeypatch.setattr(runner, name, 5)
        stop = threading.Event()
        thread = threading.Thread(target=job.run, kwargs={"follow": True, "stop": stop})
        thread.start()
        try:
            write(source, "a.csv", 0)
            until(lambda: job.show().offset == "a.csv")
            job.pause()
            write(source, "b.csv", 20)
            with pytest.raises(StoreLocked, match="Another run of this job is active"):
                job.run()
            assert job.show().offset == "a.csv"
            job.alter(offset=None)
            job.resume()
            until(lambda: job.show().offset == "b.csv")
            assert job.show().statistics.file_number == 3
        finally:
            stop.set()
            thread.join()

    def test_tries_again_what_failed(self, job: kvstore.Job, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("LOOK_MS_MIN", "LOOK_MS_MAX", "RETRY_MS_MIN"):
            monkeypatch.setattr(runner, name, 5)
        path = write(source, "a.csv", 0, more=BAD)
        stop = threading.Event()
        thread = threading.Thread(target=job.run, kwargs={"follow": True, "stop": stop})
        thread.start()
        try:
            until(lambda: job.show().statistics.failed_tasks >= 2)
            path.with_name("_a").write_text("k,v\n1,2\n")
            path.with_name("_a").rename(path)
            until(lambda: job.show().offset == "a.csv")
            assert (job.show().failures, job.show().reason) == (0, None)
        finally:
            stop.set()
            thread.join()

    def test_ends_when_its_table_is_dropped(self, store: kvstore.Store, job: kvstore.Job, source: Path) -> None:
        write(source, "a.csv", 0)
        ended: list[object] = []

        def dropped(task: object) -> None:
            ended.append(task)
            store.drop_table("t")

        with pytest.raises(InvalidRequest, match="job or its table was dropped"):
            job.run(follow=True, ended=dropped)
        assert len(ended) == 1

    def test_ends_when_its_table_is_dropped_at_any_moment(
        self, store: kvstore.Store, job: kvstore.Job, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def dropped(self: runner.Runner) -> object:
            table, _ = self._record.status()
            store.drop_table("t")
            return self._home.table(table)

        write(source, "a.csv", 0)
        monkeypatch.setattr(runner.Runner, "_table", dropped)
        with pytest.raises(InvalidRequest, match="job or its table was dropped"):
            job.run()

    def test_waits_longer_each_time(self) -> None:
        waits = [runner.backoff_ms(failures) for failures in range(40)]
        assert waits[:4] == [1000, 2000, 4000, 8000]
        assert waits == sorted(waits)
        assert waits[-1] == runner.RETRY_MS_MAX


def until(is_so: Callable[[], bool], seconds: float = 20) -> None:
    waiting = threading.Event()
    for _ in range(int(seconds * 200)):
        if is_so():
            return
        waiting.wait(0.005)
    raise TimeoutError


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

    def test_what_can_not_be_looked_at_is_named(self, job: kvstore.Job, source: Path) -> None:
        (source / "b").mkdir()
        (source / "b" / "c.csv").symlink_to("c.csv")
        with pytest.raises(Unavailable, match="can't be listed") as refused:
            job.run()
        assert refused.value.where["path"] == repr(str(source / "b" / "c.csv"))

    def test_a_place_that_can_not_be_listed(self, job: kvstore.Job, source: Path) -> None:
        shutil.rmtree(source)
        with pytest.raises(Unavailable, match="can't be listed"):
            job.run()
        assert job.show().state == "waiting"

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


def test_a_log_table_is_appended_to(store: kvstore.Store, source: Path) -> None:
    store.create_table("t", SCHEMA, buckets=2)
    for name in "abc":
        write(source, f"{name}.csv", 0, 2)
    store.create_job("j", source=source, format="csv", table="t", max_files=1).run()
    found = pa.Table.from_batches(store.table("t").changelog(columns=["v"])).column("v").to_pylist()
    assert sorted(found) == [f"{name}.csv {n}" for name in "abc" for n in range(2)]


def test_two_jobs_into_one_table(store: kvstore.Store, source: Path) -> None:
    store.create_table("t", SCHEMA, "k")
    (source / "1").mkdir()
    (source / "2").mkdir()
    write(source, "1/a.csv", 0)
    write(source, "2/a.csv", 12)
    jobs = [store.create_job(f"j{n}", source=source / str(n), format="csv", table="t") for n in (1, 2)]
    for job in jobs:
        job.run()
    assert keys(store) == [*range(24)]
    assert jobs[0].table == "t"


def test_a_column_that_is_added_is_read_from_the_next_task_on(
    store: kvstore.Store, job: kvstore.Job, source: Path
) -> None:
    write(source, "a.csv", 0, 1)
    job.run()
    store.add_columns("t", [pa.field("w", pa.int8())])
    (source / "b.csv").write_text("k,v,w\n1,2,3\n")
    job.run()
    assert [row["w"] for row in rows_of(store.table("t"))] == [None, 3]
