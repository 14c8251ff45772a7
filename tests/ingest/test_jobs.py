"""Jobs as users have them: what is loaded, what is left out, and what is noticed."""

from __future__ import annotations

import gzip
import json
import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

import kvstore
from kvstore.disk.lock import ProcessLock
from kvstore.errors import InvalidRequest, StoreLocked, TaskFailed, Unavailable
from kvstore.ingest import reading, runner, tasks
from kvstore.ingest.engine import EmbeddedEngine
from kvstore.ingest.records import Home
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat.catalog.jobs import SourceFile, TaskCounts
from logformat.ids import JobId, TableId
from tests.ingest.worlds import BAD, SCHEMA, keys, left_out, write
from tests.support.clocks import SetClock
from tests.support.tables import rows_of
from tests.support.waiting import wait_until


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


@pytest.mark.parametrize(("suffix", "compression"), [("", None), (".gz", "gzip"), (".zst", "zstd")])
def test_files_are_known_by_their_suffixes_as_load_knows_them(
    store: kvstore.Store, source: Path, suffix: str, compression: str | None
) -> None:
    texts = {"csv": "k,v\n{},a\n", "jsonl": '{{"k":{},"v":"a"}}\n', "json": '[{{"k":{},"v":"a"}}]\n'}
    for key, (name, text) in enumerate(texts.items()):
        for place in ("a", "b"):
            data = text.format(key).encode()
            written = data if compression is None else pa.compress(data, compression, asbytes=True)
            (source / f"{place}.{name}{suffix}").write_bytes(written)
    for format, pattern, expected in (("csv", "*.csv", [0]), ("json", "*.json*", [1, 2])):
        for name, given in ((format, source), (f"{format}_pattern", f"{source}/{pattern}{suffix}")):
            store.create_table(name, SCHEMA, "k")
            job = store.create_job(name, source=given, format=format, table=name)
            assert sum(task.files for task in job.run().tasks) == 2 * len(expected)
            assert keys(store, name) == expected


def test_a_compressed_file_of_bytes_is_refused_where_it_is_asked_for(store: kvstore.Store, source: Path) -> None:
    store.create_table("t", SCHEMA, "k")
    (source / "a.parquet.gz").write_bytes(gzip.compress(b"PAR1"))
    assert not store.create_job("all", source=source, format="parquet", table="t").run().tasks
    job = store.create_job("j", source=f"{source}/*.gz", format="parquet", table="t")
    with pytest.raises(TaskFailed, match=r"A compressed file of parquet can't be read.*a\.parquet\.gz"):
        job.run()


def test_a_compressed_file_is_numbered_and_cut_off_like_any_other(
    store: kvstore.Store, job: kvstore.Job, source: Path
) -> None:
    job.pause()
    job.alter(max_filter_ratio=0.5)
    job.resume()
    many = "".join(f"{key},{'v' * 100}\n" for key in range(100_000))
    (source / "a.csv.gz").write_bytes(gzip.compress(f"k,v\n{many}x,y\n1,2,3\n".encode(), 1))
    job.run()
    assert left_out(job) == [("a.csv.gz", 100_001), ("a.csv.gz", 100_002)]
    assert keys(store) == [*range(100_000)]
    (source / "b.csv.gz").write_bytes(gzip.compress(b"k,v\n" + b"1,2\n" * 1000)[:-9])
    with pytest.raises(TaskFailed, match=r"can't be read.*b\.csv\.gz"):
        job.run()


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


def test_a_source_without_a_file_is_reported(
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


def altered_in_its_task(job: kvstore.Job, **altered: Any) -> None:
    """A run whose job is altered, as another process may do it, while the first task is read."""
    done = []

    def alter(read: int, _: int) -> None:
        if read and not done:
            done.append(read)
            job.pause()
            job.alter(**altered)
            job.resume()

    job.run(progress=alter)
    assert done


def test_options_that_are_altered_while_a_task_runs_load_no_file_twice(
    store: kvstore.Store, job: kvstore.Job, source: Path
) -> None:
    for number in (1, 2, 3):
        write(source, f"{number}.csv", 10 * number, 2)
    altered_in_its_task(job, max_files=1)
    status = job.show()
    assert (status.offset, status.options.max_files, status.state) == ("3.csv", 1, "waiting")
    assert (status.statistics.file_number, status.statistics.failed_tasks) == (3, 0)
    assert job.run().tasks == []
    assert sum(end for _, end in store["t"].offsets().values()) == store["t"].count()


def test_an_offset_that_is_set_while_a_task_is_read_makes_it_void(
    store: kvstore.Store, job: kvstore.Job, source: Path
) -> None:
    for number in (1, 2, 3):
        write(source, f"{number}.csv", 10 * number, 2)
    altered_in_its_task(job, offset="2.csv")
    status = job.show()
    assert (status.offset, status.statistics.file_number, status.statistics.failed_tasks) == ("3.csv", 1, 1)
    assert store["t"].count() == 2


def test_a_run_of_a_job_that_is_dropped_at_that_moment(
    store: kvstore.Store, job: kvstore.Job, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, "1.csv", 0, 2)
    taken, other = ProcessLock.taken, store.job("j")

    def dropped_before(lock: ProcessLock, refusal: str) -> AbstractContextManager[None]:
        monkeypatch.undo()
        other.drop()
        return taken(lock, refusal)

    monkeypatch.setattr(ProcessLock, "taken", dropped_before)
    with pytest.raises(InvalidRequest, match="was dropped"):
        job.run()
    assert store["t"].count() == 0


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
        with pytest.raises(TaskFailed, match="no such column") as failed:
            tolerant.run()
        assert failed.value.where["path"] == "b.csv"
        assert "path=b.csv" in (tolerant.show().reason or "")
        for data in (b"", b"k,\xff\n1,2\n", b"k,v\n1,\xff\n", b'k,"' + b"v" * 200_000):
            (source / "a.csv").write_bytes(data)
            tolerant.resume()
            with pytest.raises(TaskFailed):
                tolerant.run()


def test_a_file_may_lack_a_nullable_column(store: kvstore.Store, source: Path) -> None:
    """Whatever the format; a column that is not null is missed in the whole file."""
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int64(), False), pa.field("v", pa.string())])
    store.create_table("t", schema, "k")
    rows = pa.table({"k": [1], "n": [2]})
    (source / "a.csv").write_text("k,n\n1,2\n")
    (source / "b.csv").write_text("k,n,_change_type\n2,3,insert\n1,,delete\n")
    parquet.write_table(rows, source / "c.parquet")
    for format in ("csv", "parquet"):
        store.create_job(format, source=source, format=format, table="t").run()
    assert rows_of(store.table("t")) == [{"k": 1, "n": 2, "v": None}, {"k": 2, "n": 3, "v": None}]
    job = store.create_job("j", source=source / "*.txt", format="csv", table="t", max_filter_ratio=1)
    for text in ("k,v\n5,x\n", "k,v,_change_type\n5,x,insert\n"):
        (source / "d.txt").write_text(text)
        with pytest.raises(TaskFailed, match=r"column is missing.*missing=\['n'\]"):
            job.run()
        job.resume()


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

    def test_no_more_files_are_read_than_the_task_waits_for(self) -> None:
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
            wait_until(lambda: job.show().offset == "a.csv")
            job.pause()
            write(source, "b.csv", 20)
            with pytest.raises(StoreLocked, match="Another run of this job is active"):
                job.run()
            assert job.show().offset == "a.csv"
            job.alter(offset=None)
            job.resume()
            wait_until(lambda: job.show().offset == "b.csv")
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
            wait_until(lambda: job.show().statistics.failed_tasks >= 2)
            path.with_name("_a").write_text("k,v\n1,2\n")
            path.with_name("_a").rename(path)
            wait_until(lambda: job.show().offset == "a.csv")
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
        self, store: kvstore.Store, job: kvstore.Job, source: Path
    ) -> None:
        def dropped(_: TableId) -> kvstore.Table:
            store.drop_table("t")
            return store.table("t")

        runtime, allowed = store.runtime, lambda: None
        parts = runtime.path, runtime.files, runtime.clock, runtime.journal
        write(source, "a.csv", 0)
        with pytest.raises(InvalidRequest, match="job or its table was dropped"):
            kvstore.Job(Home(*parts, dropped, allowed, allowed), JobId(job.id)).run()

    def test_waits_for_no_clock_that_was_set_back(self, store_path: Path, source: Path) -> None:
        clock = SetClock(10 * 86_400_000)
        path = write(source, "a.csv", 0, more=BAD)
        with Store(store_path, StoreOptions(), clock=clock) as store:
            store.create_table("t", SCHEMA, "k")
            job = store.create_job("j", source=source, format="csv", table="t")
            with pytest.raises(TaskFailed):
                job.run()
            write(source, "a.csv", 0)
            with pytest.raises(TaskFailed, match="has not come"):
                job.run()
            clock.now = 86_400_000
            assert [each.last for each in job.run().tasks] == [path.name]

    def test_waits_longer_each_time(self) -> None:
        waits = [runner.backoff_ms(failures) for failures in range(40)]
        assert waits[:4] == [1000, 2000, 4000, 8000]
        assert waits == sorted(waits)
        assert waits[-1] == runner.RETRY_MS_MAX


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
