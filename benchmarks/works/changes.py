"""Reading the changelog in this process, beside pyarrow that reads the same columns from a mapped IPC file.

Both sum every numeric column; the file has the batches of the log, with the same compression.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measuring import KVSTORE, Figure, Setting, in_turns, rate, seconds
from benchmarks.peers import KvStore
from benchmarks.rows import Rows
from benchmarks.works.writes import BATCH_ROWS

CHANGELOG = "changelog, every numeric column summed"
PLAIN = "pyarrow, mapped IPC file"


def figures(setting: Setting) -> Iterator[Figure]:
    rows, store = Rows(setting.rows), KvStore(setting.place("kvstore"))
    rate(store, rows.inserts(BATCH_ROWS), float("inf"))
    rate(store, rows.updates(BATCH_ROWS, setting.rows // BATCH_ROWS), float("inf"))
    count, file = store.log_count(), setting.directory / "changes.arrow"
    ways = {KVSTORE: lambda: count / seconds(lambda: _summed(store.table.changelog()))}
    if setting.with_others:
        _write(file, store)
        assert _summed(_read(file)) == _summed(store.table.changelog())
        ways[PLAIN] = lambda: count / seconds(lambda: _summed(_read(file)))
    yield from in_turns(CHANGELOG, ways, setting.rounds, unit="records/s")
    store.close()


def _write(file: Path, store: KvStore) -> None:
    schema = store.table.changelog_schema()
    options = pa.ipc.IpcWriteOptions(compression=store.table.options.compression)
    with pa.ipc.new_file(file, schema, options=options) as writer:
        for batch in store.table.changelog():
            writer.write_batch(batch)


def _read(file: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        for nth in range(reader.num_record_batches):
            yield reader.get_batch(nth)


def _summed(batches: Iterable[pa.RecordBatch]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for batch in batches:
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
                sums[field.name] = sums.get(field.name, 0) + pc.sum(column).as_py()
    return sums
