"""``make bench-parts``: the figures for the decisions on codecs, checksum and compression (docs/decisions/).

One batch after another of the rows of ``benchmarks.rows``, best of many runs: what the part costs by itself.
"""

from __future__ import annotations

import struct
import timeit
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.rows import SCHEMA, Rows
from logformat.checksum import crc32c, key_sums, mix, value_sums
from logformat.ids import SchemaId
from logformat.log.batch import LogBatch, decode_batch, encode_batch
from logformat.log.change import ChangeType
from logformat.rows.keys import KeyCodec
from logformat.rows.rows import RowCodec

ROWS = 50_000
_COMPRESSIONS = (None, "lz4", "zstd")


def seconds(work: Callable[[], Any]) -> float:
    """Of one run, the best of ten."""
    once = timeit.timeit(work, number=1)
    number = max(1, int(0.02 / once))
    return min(timeit.repeat(work, number=number, repeat=10)) / number


def row_codecs(console: Console) -> None:
    batch = Rows(1_000_000).updates(ROWS, 1)[0]
    keys = KeyCodec([SCHEMA.field("k")]).encode([batch.column("k")])
    sums = key_sums(keys)
    columns = batch.columns[1:]
    ours = RowCodec({SchemaId(1): pa.schema(list(SCHEMA)[1:])})
    values, _ = ours.encode(columns, sums, SchemaId(1))
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    pack, unpack = struct.Struct("<idq").pack, struct.Struct("<idq").unpack_from
    packed = [pack(a, b, c) + s.encode() for a, b, c, s in rows]
    encode, decoder = msgspec.msgpack.encode, msgspec.msgpack.Decoder(tuple[int, float, int, str])
    messages = [encode(row) for row in rows]
    table = Table("row codec", "encode ns/row", "decode ns/row", "bytes/row")
    for name, to_bytes, from_bytes, size in (
        (
            "ours, with checksum",
            lambda: ours.encode(columns, sums, SchemaId(1)),
            lambda: ours.decode(values, sums, SchemaId(1)),
            values.offsets[-1],
        ),
        (
            "struct, a call a row",
            lambda: [pack(a, b, c) + s.encode() for a, b, c, s in rows],
            lambda: [(*unpack(row), row[20:].decode()) for row in packed],
            sum(map(len, packed)),
        ),
        (
            "msgpack, a call a row",
            lambda: [encode(row) for row in rows],
            lambda: [decoder.decode(row) for row in messages],
            sum(map(len, messages)),
        ),
        ("to Python rows only", lambda: list(zip(*(column.to_pylist() for column in columns), strict=True)), None, 0),
    ):
        back = f"{seconds(from_bytes) / ROWS * 1e9:,.0f}" if from_bytes else ""
        table.add_row(name, f"{seconds(to_bytes) / ROWS * 1e9:,.0f}", back, f"{size / ROWS:.1f}")
    console.print(table)
    words, starts = values.flat[: values.offsets[-1]].view("<u8"), values.offsets[:-1] // 8
    listed = values.to_list()
    table = Table("checksum of a row", "ns/row")
    table.add_row("ours", f"{seconds(lambda: mix(sums + value_sums(words, starts))) / ROWS * 1e9:,.0f}")
    table.add_row("crc32c, a call a row", f"{seconds(lambda: list(map(crc32c, listed))) / ROWS * 1e9:,.0f}")
    table.add_row("zlib.crc32, a call a row", f"{seconds(lambda: list(map(zlib.crc32, listed))) / ROWS * 1e9:,.0f}")
    console.print(table)


def key_codecs(console: Console) -> None:
    numbers = Rows(1_000_000).updates(ROWS, 1)[0].column("k")
    words = pa.array([f"customer/{number}" for number in numbers.to_pylist()])
    both = KeyCodec([pa.field("a", pa.string(), False), pa.field("b", pa.int64(), False)])
    one = KeyCodec([pa.field("k", pa.int64(), False)])
    codes, long_codes = one.encode([numbers]), both.encode([words, numbers])
    pairs = list(zip(words.to_pylist(), numbers.to_pylist(), strict=True))
    table = Table("key codec", "encode ns/key", "decode ns/key")
    pack = struct.Struct(">Q").pack

    def encode_row(word: str, number: int) -> bytes:
        return word.encode().replace(b"\1", b"\1\2").replace(b"\0", b"\1\1") + b"\0" + pack(number ^ 1 << 63)

    for name, to_bytes, from_bytes in (
        ("int64", lambda: one.encode([numbers]), lambda: one.decode(codes)),
        ("string, int64", lambda: both.encode([words, numbers]), lambda: both.decode(long_codes)),
        ("string, int64: a call a row", lambda: [encode_row(word, number) for word, number in pairs], None),
    ):
        back = f"{seconds(from_bytes) / ROWS * 1e9:,.0f}" if from_bytes else ""
        table.add_row(name, f"{seconds(to_bytes) / ROWS * 1e9:,.0f}", back)
    console.print(table)


def compressions(console: Console) -> None:
    table = Table("compression of a batch", "updates", "bytes/record", "encode ns/record", "decode ns/record")
    for updates in (50, 500, 5_000, 50_000):
        rows = pa.Table.from_batches(Rows(1_000_000).updates(updates, 2)).combine_chunks().to_batches()[0]
        codes = np.repeat([ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE], updates).astype(np.uint8)
        batch = LogBatch(
            record_count=2 * updates, last_offset_delta=2 * updates - 1, schema_id=1, change_types=codes, rows=rows
        )
        for compression in _COMPRESSIONS:
            data = encode_batch(batch, compression=compression)
            write = seconds(lambda: encode_batch(batch, compression=compression))  # noqa: B023
            read = seconds(lambda: decode_batch(data, SCHEMA, validate=False))  # noqa: B023
            table.add_row(
                str(compression),
                f"{updates:,}",
                f"{len(data) / 2 / updates:.1f}",
                f"{write / 2 / updates * 1e9:,.0f}",
                f"{read / 2 / updates * 1e9:,.0f}",
            )
    console.print(table)


def main() -> None:
    console = Console(width=120)
    row_codecs(console)
    key_codecs(console)
    compressions(console)


if __name__ == "__main__":
    main()
