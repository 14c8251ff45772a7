"""Bytes of the log, beside the same change records as Parquet with zstd; updates in batches of 50,000."""

from __future__ import annotations

from collections.abc import Iterator

from pyarrow import parquet

from benchmarks.measuring import Figure, Setting, rate
from benchmarks.peers import KvStore
from benchmarks.rows import NARROW, Rows
from benchmarks.works.writes import BATCH_ROWS

LOG_BYTES = "bytes of the log for a record"
ZSTD, DEFAULT, PARQUET = "log, zstd", "log, the default", "Parquet, zstd"


def figures(setting: Setting) -> Iterator[Figure]:
    for name, options in ((ZSTD, {"compression": "zstd"}), (DEFAULT, {})):
        place = setting.place(name)
        rows, store = Rows(setting.rows // 2), KvStore(place, NARROW, "sync", **options)
        rate(store, rows.inserts(BATCH_ROWS), float("inf"))
        rate(store, rows.updates(BATCH_ROWS, 10), float("inf"))
        count = store.log_count()
        size = sum(path.stat().st_size for path in place.glob("kvstore/tables/*/*/log/*"))
        yield Figure(LOG_BYTES, name, size / count, "bytes")
        if setting.with_others and name == ZSTD:
            file = place / "changes.parquet"
            with parquet.ParquetWriter(file, store.table.changelog_schema(), compression="zstd") as writer:
                for batch in store.table.changelog():
                    writer.write_batch(batch)
            yield Figure(LOG_BYTES, PARQUET, file.stat().st_size / count, "bytes")
        store.close()
