"""A job whose files lie in an object store: an S3 of this machine, and one that says less than S3 does."""

from __future__ import annotations

import gzip
import io
import json
import socket
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from obstore.store import from_url
from pyarrow import parquet

import kvstore
from kvstore.errors import InvalidRequest, TaskFailed, Unavailable
from kvstore.ingest.sources import is_same
from logformat.catalog.jobs import SourceFile
from tests.cli.commands import fine
from tests.ingest.worlds import SCHEMA
from tests.support import s3
from tests.support.object_store import Objects, serving
from tests.support.tables import rows_of


class Bucket:
    """Objects in an S3 bucket that another program has written."""

    def __init__(self, url: str) -> None:
        self._store: Any = from_url(url)

    def put(self, path: str, *keys: int, value: str = "v") -> None:
        """A Parquet file; of as many rows and as long values it has always the same size."""
        rows = pa.table({"k": pa.array(keys, pa.int64()), "v": [value] * len(keys)})
        data = io.BytesIO()
        parquet.write_table(rows, data)
        self.put_bytes(path, data.getvalue())

    def put_bytes(self, path: str, data: bytes) -> None:
        obstore.put(self._store, path, data)

    def delete(self, path: str) -> None:
        obstore.delete(self._store, path)


@pytest.fixture
def bucket(s3_url: str) -> Bucket:
    return Bucket(s3_url)


@pytest.fixture
def job(store: kvstore.Store, s3_url: str) -> kvstore.Job:
    store.create_table("t", SCHEMA, "k")
    return store.create_job("j", source=f"{s3_url}/dir/*.parquet", format="parquet", table="t", max_files=2)


def values(store: kvstore.Store) -> dict[int, str]:
    return {row["k"]: row["v"] for row in rows_of(store.table("t"))}


class Dies:
    """An engine that dies before it has read anything."""

    def read(self, *_: Any) -> Any:
        raise KeyboardInterrupt


def test_files_are_taken_as_they_come(store: kvstore.Store, job: kvstore.Job, bucket: Bucket) -> None:
    for place, name in enumerate(["b.parquet", "a é%41.parquet", "c.parquet", "c/d.parquet", "_e.parquet", "f.txt"]):
        bucket.put(f"dir/{name}", place)
    bucket.put("dir2/x.parquet", 99)
    done = job.run()
    assert [(each.first, each.last) for each in done.tasks] == [
        ("a é%41.parquet", "b.parquet"),
        ("c.parquet", "c.parquet"),
    ]
    assert values(store).keys() == {0, 1, 2}
    assert (job.run().tasks, bool(job.run().overlooked)) == ([], False)
    bucket.put("dir/d.parquet", 7)
    assert [each.first for each in job.run().tasks] == ["d.parquet"]
    bucket.put("dir/b0.parquet", 8)
    assert job.run().overlooked.late == ("b0.parquet",)
    assert values(store).keys() == {0, 1, 2, 7}


def test_an_object_of_the_same_size_and_second_is_another(
    store: kvstore.Store, job: kvstore.Job, bucket: Bucket
) -> None:
    bucket.put("dir/a.parquet", 1, value="old")
    bucket.put("dir/b.parquet", 2, value="old")
    with pytest.raises(KeyboardInterrupt):
        job.run(engine=Dies())
    bucket.put("dir/b.parquet", 2, value="new")
    with pytest.raises(TaskFailed, match="changed after a task had taken it") as failed:
        job.run()
    assert failed.value.where["path"] == "b.parquet"
    assert (values(store), job.show().offset) == ({}, None)
    job.resume()
    assert not job.run().overlooked
    assert values(store) == {1: "old", 2: "new"}
    bucket.put("dir/a.parquet", 1, value="odd")
    assert job.run().overlooked.changed == ("a.parquet",)
    bucket.put("dir/a.parquet", 1, value="old")  # as it was
    assert not job.run().overlooked


def test_one_that_vanished(store: kvstore.Store, job: kvstore.Job, bucket: Bucket) -> None:
    bucket.put("dir/a.parquet", 1)
    bucket.put("dir/b.parquet", 2)
    with pytest.raises(KeyboardInterrupt):
        job.run(engine=Dies())
    bucket.delete("dir/a.parquet")
    with pytest.raises(TaskFailed, match="no longer exists") as failed:
        job.run()
    assert failed.value.where["path"] == "a.parquet"
    job.resume()
    job.run()
    assert values(store).keys() == {2}


def test_what_browsers_put_for_folders_is_no_file(store: kvstore.Store, s3_url: str, bucket: Bucket) -> None:
    store.create_table("t", SCHEMA, "k")
    for folder in ("dir/", "dir/sub/"):
        bucket.put_bytes(folder, b"")
    bucket.put("dir/sub/a", 1)
    done = store.create_job("j", source=f"{s3_url}/dir/**", format="parquet", table="t").run()
    assert [(each.first, each.files) for each in done.tasks] == [("sub/a", 1)]


def test_what_was_taken_before_etags_were_kept_is_still_the_same(
    store: kvstore.Store, job: kvstore.Job, bucket: Bucket, store_path: Path
) -> None:
    bucket.put("dir/a.parquet", 1)
    job.run()
    (taken,) = store_path.glob("jobs/*/taken.jsonl")
    line = json.loads(taken.read_text())
    line["files"][0]["tag"] = line["files"][0]["tag"].split()[0]
    taken.write_text(json.dumps(line) + "\n")
    assert not job.run().overlooked


@pytest.mark.parametrize(
    ("taken", "now", "same"),
    [
        ("1700000000 abc", "1700000000 abd", False),
        ("1700000000 abc", "1700000009 abc", True),
        ("1700000000", "1700000000 abc", True),
        ("1700000000", "1700000001 abc", False),
        ("1700000000 abc", "1700000000", True),
        ("1700000000 abc", "1700000001", False),
        ("1700000000123456789", "1700000000123456789", True),
        ("1700000000123456789", "1700000000123456780", False),
        ("1700000000", "1700000000123456789", True),
    ],
)
def test_tags_are_compared_by_what_both_say(taken: str, now: str, same: bool) -> None:
    """Those of earlier versions are seconds and no more."""
    assert is_same(SourceFile(path="a", size=1, tag=taken), SourceFile(path="a", size=1, tag=now)) is same
    assert not is_same(SourceFile(path="a", size=1, tag=taken), SourceFile(path="a", size=2, tag=now))


def test_on_the_command_line(store_path: Path, s3_url: str, bucket: Bucket) -> None:
    fine("init", store_path)
    fine("create", store_path, "t", "--column", "k:int64", "--column", "v:string", "--key", "k")
    fine("job", "create", store_path, "j", "--source", f"{s3_url}/dir", "--format", "parquet", "--table", "t")
    bucket.put("dir/2026/a.parquet", 1, 2)
    assert fine("job", "run", store_path, "j").out == "task 1: 2 rows of 2026/a.parquet\n"


def test_places_that_are_none(store: kvstore.Store, job: kvstore.Job, s3_url: str, s3_endpoint: str) -> None:
    for url, reason in [
        ("s4://bucket/in", "can't be at this URL"),
        ("gs://bucket/in?region=x", "can't be at this URL"),
        ("s3://bucket]/in", "can't be at this URL"),
        ("file://host/in", "three slashes"),
        ("s3://bucket/in?access_key=x", "no parameters but endpoint_override"),
        ("s3://key:secret@bucket/in", "by environment variables"),
    ]:
        with pytest.raises(InvalidRequest, match=reason) as refused:
            store.create_job("k", source=url, format="csv", table="t")
        assert "secret" not in str(refused.value)
    s3.put_bytes(f"{s3_endpoint}/{s3_url.partition('://')[2]}/dir//a.parquet", b"")
    with pytest.raises(Unavailable, match=r"can't be listed.*empty path segment"):
        job.run()
    nowhere = store.create_job("k", source=f"{s3_url}-2/in", format="csv", table="t")
    with pytest.raises(Unavailable, match=r"can't be listed.*404 Not Found"):
        nowhere.run()
    assert nowhere.show().state == "waiting"


def test_an_endpoint_that_is_set_later_counts(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment("").items():
        monkeypatch.setenv(name, value)
    store.create_table("t", SCHEMA, "k")
    with serving({"bucket/in/a.txt": (0, b"")}) as wrong, serving({"bucket/in/a.csv": (0, b"k,v\n1,2\n")}) as right:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{wrong}")
        job = store.create_job("j", source="s3://bucket/in", format="csv", table="t")
        assert job.run().tasks == []
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{right}")
        assert len(job.run().tasks) == 1


@pytest.mark.long
def test_a_store_that_does_not_answer_is_given_up(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait can't be interrupted."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name, value in s3.environment(f"http://127.0.0.1:{silent.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        store.create_table("t", SCHEMA, "k")
        job = store.create_job("j", source="s3://bucket/in", format="csv", table="t")
        with pytest.raises(Unavailable, match="can't be listed"):
            job.run()


def test_a_store_that_lists_no_etags_and_milliseconds(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    objects: Objects = {
        f"bucket/in/{name}": (1_000_000_000, f"k,v\n{place},{name}\n".encode())
        for place, name in enumerate(["a.csv", "b/c.csv", "d.csv", "_e.csv", "f.txt"])
    }
    store.create_table("t", SCHEMA, "k")
    with serving(objects) as port:
        parameters = f"?scheme=http&endpoint_override=127.0.0.1%3A{port}&region=us-east-1"
        job = store.create_job("j", source=f"s3://bucket/in{parameters}", format="csv", table="t", max_files=2)
        assert [(each.first, each.last) for each in job.run().tasks] == [("a.csv", "b/c.csv"), ("d.csv", "d.csv")]
        assert [row["v"] for row in rows_of(store.table("t"))] == ["a.csv", "b/c.csv", "d.csv"]
        objects["bucket/in/a.csv"] = (1_000_000_009, objects["bucket/in/a.csv"][1])
        objects["bucket/in/b.csv"] = objects["bucket/in/d.csv"]
        objects["bucket/in/g.csv"] = (1_000_000_009, b"k,v\nx,1\n")
        with pytest.raises(TaskFailed, match="max_filter_ratio"):
            job.run()
        objects["bucket/in/g.csv"] = (1_000_000_010, b"k,v\n1,1\n")
        job.resume()
        done = job.run()
        assert [each.first for each in done.tasks] == ["g.csv"]
        assert (done.overlooked.late, done.overlooked.changed) == (("b.csv",), ("a.csv",))
        pattern = store.create_job("k", source=f"s3://bucket/in/*.csv{parameters}", format="csv", table="t")
        assert [each.files for each in pattern.run().tasks] == [4]


def test_a_compressed_object_is_read(store: kvstore.Store, bucket: Bucket, s3_url: str) -> None:
    store.create_table("t", SCHEMA, "k")
    bucket.put_bytes("dir/a.csv.gz", gzip.compress(b"k,v\n1,a\n"))
    bucket.put_bytes("dir/b.csv", b"k,v\n2,b\n")
    store.create_job("j", source=f"{s3_url}/dir", format="csv", table="t").run()
    assert values(store) == {1: "a", 2: "b"}
