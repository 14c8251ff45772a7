"""Write the golden store of this format: ``python -m tests.golden.write DIRECTORY``.

It has something of everything that docs/format.md describes. What is committed is never written again: a version that
changes the format adds a directory beside it, and reads them all.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import tarfile
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import kvstore
from tests.golden.description import described

KEYED = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
ALL_TYPES = pa.schema(
    [
        pa.field("name", pa.string(), False),
        pa.field("number", pa.int32(), False),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int8()),
        pa.field("unsigned", pa.uint64()),
        pa.field("half", pa.float16()),
        pa.field("real", pa.float64()),
        pa.field("money", pa.decimal128(10, 2)),
        pa.field("bytes", pa.binary()),
        pa.field("fixed", pa.binary(4)),
        pa.field("day", pa.date32()),
        pa.field("moment", pa.timestamp("us", "UTC")),
        pa.field("time", pa.time64("us")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("point", pa.struct([pa.field("x", pa.float32()), pa.field("y", pa.float32())])),
    ]
)


def row(number: int) -> dict[str, Any]:
    if number % 5 == 4:
        return {**dict.fromkeys(ALL_TYPES.names), "name": f"ü{number}", "number": number}
    return {
        "name": f"ü{number}",
        "number": number,
        "flag": number % 2 == 0,
        "small": -number,
        "unsigned": 2**64 - 1 - number,
        "half": number / 2,
        "real": number / 3,
        "money": Decimal(number) / 4,
        "bytes": bytes([number]) * (5000 if number == 5 else number),  # one has pages of its own
        "fixed": bytes([number] * 4),
        "day": dt.date(1969, 12, 20) + dt.timedelta(days=number),
        "moment": dt.datetime(2026, 11, 22, 12, number, tzinfo=dt.UTC),
        "time": dt.time(1, number, 2, 3),
        "tags": ["", "a", None][: number % 4],
        "point": {"x": float(number), "y": None},
    }


def write(store: Path, replica: Path, landing: Path) -> None:
    """A store with something of everything."""
    with kvstore.open(store, segment_bytes_max=4000, log_bytes_max=8000, edits_per_journal=12) as opened:
        _write_types(opened)
        for engine in ("first_row", kvstore.Versioned("v"), kvstore.Aggregate({"v": "sum"})):
            name = engine if isinstance(engine, str) else type(engine).__name__.lower()
            table = opened.create_table(name, KEYED, "k", merge_engine=engine, compression="zstd")
            for step in range(4):
                table.upsert([{"k": k, "v": step * k} for k in range(5)])
        wal = opened.create_table("wal", KEYED, "k", changelog_image="wal", compression=None)
        wal.upsert([{"k": 1, "v": 1}])
        wal.upsert([{"k": 1, "v": 2}, {"k": 2, "v": 2}])
        wal.delete([2])
        opened.create_table("log", KEYED, None, buckets=2).upsert([{"k": k, "v": k} for k in range(9)])
        opened.create_table("ids", KEYED, "v", auto_increment="k").upsert([{"v": v} for v in (7, 8, 7)])
        opened.create_table("dropped", KEYED, "k").upsert([{"k": 1, "v": 1}])
        opened.drop_table("dropped")
        _write_writers(opened)
        _write_altered(opened)
        _write_expired(opened)
        _write_indexed(opened)
        _run_job(opened, landing)
        opened.consumer("reader").commit("epochs", {0: 1, 1: 0, 2: 1})
        opened.checkpoint()
        opened.add_replica(str(replica), "copy").ship()
        opened.checkpoint()
        opened.table("wal").upsert([{"k": 3, "v": 3}])
        opened.flush()
        opened.replica("copy").ship()
        opened.replica("copy").check()


def _write_types(store: kvstore.Store) -> None:
    table = store.create_table("types", ALL_TYPES, ["name", "number"], buckets=2, bucket_key=["name"])
    table.upsert(pa.RecordBatch.from_pylist([row(number) for number in range(12)], ALL_TYPES))
    table.delete([("ü3", 3)])
    store.add_columns("types", [pa.field("added", pa.string())])
    table.upsert([{**row(1), "added": "later"}, {**row(20), "added": None}])


def _write_writers(store: kvstore.Store) -> None:
    table = store.create_table("epochs", KEYED, "k", buckets=3)
    for epoch in range(3):
        rows = [("upsert", {"k": k, "v": epoch}) for k in range(9)]
        table.apply_epoch(kvstore.Changes.of(rows, KEYED), "epochs", epoch, "run")
    with table.writer("batches") as writer:
        for k in range(20, 30):
            writer.upsert({"k": k, "v": k})
    bucket, writer_id = table.bucket(0), store.new_writer_id()
    bucket.apply(kvstore.Changes.of([], KEYED), writer_id, 0)


def _write_altered(store: kvstore.Store) -> None:
    """Columns that were renamed and dropped, before a snapshot and after it."""
    schema = pa.schema([*KEYED, pa.field("old", pa.string(), False), pa.field("left", pa.list_(pa.int8()))])
    table = store.create_table("altered", schema, "k", buckets=2, merge_engine=kvstore.Versioned("v"))
    table.upsert([{"k": k, "v": k, "old": "x", "left": [k]} for k in range(6)])
    store.rename_columns("altered", {"k": "v", "v": "version", "left": "right"})
    store.drop_columns("altered", ["old"])
    table.upsert([{"v": v, "version": 9, "right": None} for v in range(3)])
    table.snapshot()
    store.drop_columns("altered", ["right"])
    store.add_columns("altered", [pa.field("old", pa.int16())])
    table.upsert([{"v": v, "version": 10, "old": v} for v in (1, 7)])


def _write_expired(store: kvstore.Store) -> None:
    table = store.create_table("expired", KEYED, "k")
    for step in range(80):
        table.upsert([{"k": k, "v": step} for k in range(10)])
    table.snapshot()
    table.bucket(0).handle.retain()
    assert table.offsets()[0][0] > 0


def _write_indexed(store: kvstore.Store) -> None:
    """Secondary indexes: values that repeat, nulls and a long one; one that was dropped, and rows not yet merged."""
    schema = pa.schema([*KEYED, pa.field("mail", pa.string())])
    indexes = {"by_mail": ["mail", "v"], "by_v": "v"}
    table = store.create_table("indexed", schema, "k", buckets=2, indexes=indexes)
    mails = ["a@x", None, "x" * 600, "b@x"]
    table.upsert([{"k": k, "v": k % 3, "mail": mails[k % 4]} for k in range(20)])
    store.drop_index("indexed", "by_v")
    store.create_index("indexed", "one", ["k", "v"], unique=True)
    table.upsert([{"k": 3, "v": 9, "mail": "x" * 599 + "y"}])


def _run_job(store: kvstore.Store, landing: Path) -> None:
    landing.mkdir()
    (landing / "a.csv").write_text("k,v\n1,1\n2,x\n3,3\n")
    table = store.create_table("loaded", KEYED, "k")
    job = store.create_job("load", source=str(landing), format="csv", table=table.name, max_filter_ratio=0.5)
    job.run()


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        write(work / "store", work / "replica", work / "in")
        with kvstore.open(work / "store", read_only=True) as store:
            expected = described(store)
        for name in ("store", "replica"):
            with tarfile.open(directory / f"{name}.tar.xz", "w:xz") as archive:
                archive.add(work / name, name)
    (directory / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
