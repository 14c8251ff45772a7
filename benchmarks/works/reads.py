"""Reading rows: one by its key, many by their keys, all of them.

Rows were inserted in random order of keys, and everything is warm. sqlite3 gives a tuple, kvstore a dict whose bytes
were held against their checksum. What LMDB does alone ends with bytes
that were not verified.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting, fill, in_turns, seconds
from benchmarks.peers import KvStore, Sqlite, Store
from benchmarks.rows import NARROW, Rows
from benchmarks.works.writes import BATCH_ROWS
from kvstore.request.row_layout import layout_of

GET = "get of one key, warm"
LOOKUP = "lookup of 10,000 keys"
SCAN = "scan to Arrow, all columns"
PROJECTION = "scan to Arrow, 2 of 5 columns"
LARGE = "scan of values of 10,000 bytes"
CURSOR, GET_ALONE = "LMDB's cursor alone", "LMDB's get alone"
_GETS, _LOOKUPS = 2_000, 10
_TWO = ["a", "c"]
_LARGE_SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("data", pa.binary())])
_LARGE_BYTES = 10_000


def figures(setting: Setting) -> Iterator[Figure]:
    rows, ours = Rows(setting.rows), KvStore(setting.place("kvstore"))
    filled: list[Store] = [ours]
    sqlite = Sqlite(setting.place("sqlite"), NARROW, "relaxed") if setting.with_others else None
    if sqlite is not None:
        filled.append(sqlite)
    for _ in fill(filled, rows.inserts(BATCH_ROWS), "", 0):
        """Only its end counts."""
    table = ours.table
    yield from _gets(setting, rows, table, sqlite)
    some = [rows.keys(10_000) for _ in range(_LOOKUPS)]

    def looked_up() -> float:
        return sum(map(len, some)) / seconds(lambda: [table.lookup(chosen) for chosen in some])

    def looked_up_arrow() -> float:
        columns = [pa.array(chosen) for chosen in some]
        return sum(map(len, some)) / seconds(lambda: [table.lookup(column) for column in columns])

    ways = {KVSTORE: looked_up_arrow, "a list": looked_up}
    if setting.with_others:
        codes = [
            layout_of(ours.store.runtime.definition("t")).encode_keys(_key_rows(chosen)).to_list() for chosen in some
        ]
        ways[GET_ALONE] = lambda: sum(map(len, codes)) / seconds(lambda: [_got(table, each) for each in codes])
    yield from in_turns(LOOKUP, ways, setting.rounds, unit="keys/s")
    yield from _scans(setting, {SCAN: (table, None), PROJECTION: (table, _TWO)})
    with kvstore.open(setting.place("large")) as store:
        large = store.create_table("large", _LARGE_SCHEMA, "k")
        for first in range(0, setting.rows // 100, 1_000):
            numbers = range(first, first + 1_000)
            data = [bytes([number % 256]) * _LARGE_BYTES for number in numbers]
            large.upsert(pa.RecordBatch.from_arrays([list(numbers), data], schema=_LARGE_SCHEMA))
        large.flush()
        yield from _scans(setting, {LARGE: (large, None)})
    for each in filled:
        each.close()


def _gets(setting: Setting, rows: Rows, table: kvstore.Table, sqlite: Sqlite | None) -> Iterator[Figure]:
    chosen = rows.keys(_GETS)

    def repeated(get: Callable[[int], object]) -> Callable[[], float]:
        assert all(map(get, chosen))
        return lambda: _GETS / seconds(lambda: [get(key) for key in chosen])

    ways = {KVSTORE: repeated(table.get)}
    if sqlite is not None:
        execute, select = sqlite.db.execute, "SELECT * FROM t WHERE k = ?"
        ways[Sqlite.name] = repeated(lambda key: execute(select, (key,)).fetchone())
    yield from in_turns(GET, ways, setting.rounds, unit="keys/s")


def _scans(setting: Setting, scans: dict[str, tuple[kvstore.Table, Sequence[str] | None]]) -> Iterator[Figure]:
    for number, (line, (table, columns)) in itertools.product(range(setting.rounds + 1), scans.items()):
        readers: dict[str, Callable[[], int]] = {
            KVSTORE: lambda table=table, columns=columns: sum(batch.num_rows for batch in table.scan(columns))
        }
        if setting.with_others:
            readers[CURSOR] = lambda table=table: _through_the_cursor(table)
        for name, read in readers.items():
            count = table.count()
            value = count / seconds(read)
            if number:
                yield Figure(line, name, value)


def _key_rows(keys: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys)], names=["k"])


def _got(table: kvstore.Table, codes: list[bytes]) -> list[bytes]:
    with table.bucket(0).handle.latest() as view:
        return view.get(codes)


def _through_the_cursor(table: kvstore.Table) -> int:
    engine = table.bucket(0).handle.engine
    assert engine is not None
    with engine.committer.memtable.index.environment.read() as transaction, transaction.cursor() as cursor:
        return sum(1 for _ in cursor)
