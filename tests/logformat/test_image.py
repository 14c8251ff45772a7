"""Images as bytes: reading detects everything that is changed, cut off, added or removed."""

from __future__ import annotations

import io
from random import Random
from uuid import UUID

import msgspec
import pytest

from logformat.catalog import image
from logformat.catalog.edits import TableOptions
from logformat.catalog.image import (
    Former,
    Head,
    Item,
    Leader,
    Reader,
    Schema,
    Table,
    counts_of,
    encode_image,
    encode_record,
)
from logformat.errors import CorruptImage, UnsupportedVersion
from logformat.ids import Epoch, SchemaId, TableId, Txid, WriterId

COLUMNS = [{"name": "k", "type": "int64", "nullable": False}]
ITEMS: list[Item] = [
    Table(table_id=TableId(1), name="t", primary_key=("k",), bucket_key=None, buckets=1, options=TableOptions()),
    Schema(table_id=TableId(1), schema_id=SchemaId(1), columns=COLUMNS),
    Former(table_id=TableId(1), writer_id=WriterId(5)),
    Former(table_id=TableId(1), writer_id=WriterId(6)),
]
HEAD = Head(
    store_id=UUID(int=5),
    epoch=Epoch(1),
    txid=Txid(4),
    leader=Leader(epoch=Epoch(2), name="us", lost_to=Epoch(3)),
    created_ms=7,
    next_table_id=TableId(2),
    next_writer_id=WriterId(7),
    counts=counts_of(ITEMS),
)
RECORDS = list(encode_image(HEAD, ITEMS))
DATA = b"".join(RECORDS)


def test_an_image_from_before_leader_epochs_is_readable() -> None:
    head = msgspec.json.decode(msgspec.json.encode(HEAD))
    assert head.pop("leader") == {"epoch": 2, "name": "us", "lost_to": 3}
    assert msgspec.json.decode(msgspec.json.encode(head), type=Head).leader == Leader()


def read(data: bytes) -> tuple[Head, list[Item]]:
    reader = Reader(io.BytesIO(data).read, len(data))
    return reader.head, list(reader.items())


def test_an_image_survives_a_round_trip() -> None:
    assert read(DATA) == (HEAD, ITEMS)


def test_every_flipped_bit_is_detected() -> None:
    for place in range(len(DATA)):
        for bit in range(8):
            damaged = bytearray(DATA)
            damaged[place] ^= 1 << bit
            with pytest.raises(CorruptImage):
                read(bytes(damaged))


def test_a_truncated_image_is_detected() -> None:
    for length in range(len(DATA)):
        with pytest.raises(CorruptImage):
            read(DATA[:length])


def test_bytes_after_the_end_are_detected() -> None:
    for more in (b"\0", DATA, RECORDS[-1]):
        with pytest.raises(CorruptImage, match="bytes follow its end"):
            read(DATA + more)


def test_missing_duplicated_and_moved_records_are_detected() -> None:
    """Each record by itself is valid."""
    random = Random(1)
    made = {b"".join(RECORDS[:place] + RECORDS[place + 1 :]) for place in range(len(RECORDS))}
    made |= {b"".join(RECORDS[: place + 1] + RECORDS[place:]) for place in range(len(RECORDS))}
    made |= {b"".join(random.sample(RECORDS, len(RECORDS))) for _ in range(50)}
    for data in made - {DATA}:
        with pytest.raises(CorruptImage):
            read(data)


def test_a_wrong_count_is_detected() -> None:
    for kind in HEAD.counts:
        wrong = msgspec.structs.replace(HEAD, counts={**HEAD.counts, kind: HEAD.counts[kind] + 1})
        with pytest.raises(CorruptImage, match="records are missing"):
            read(b"".join(encode_image(wrong, ITEMS)))


def sealed(record: dict[str, object]) -> bytes:
    """A record of a newer version."""
    body = msgspec.json.encode(record)
    return encode_record(msgspec.Raw(body))  # type: ignore[arg-type]


def test_newer_versions_are_refused_by_name() -> None:
    newer = {**msgspec.to_builtins(HEAD), "format": 2, "what": "is this"}
    with pytest.raises(UnsupportedVersion, match="format=2"):
        read(sealed(newer) + b"".join(RECORDS[1:]))
    with pytest.raises(UnsupportedVersion, match="shard"):
        read(RECORDS[0] + sealed({"kind": "shard", "url": "s3://"}) + b"".join(RECORDS[1:]))
    with pytest.raises(UnsupportedVersion, match="colour"):
        read(RECORDS[0] + sealed({**msgspec.to_builtins(ITEMS[2]), "colour": 1}) + b"".join(RECORDS[1:]))


def test_other_files_are_refused() -> None:
    for data in (b"", b"PK\x03\x04 something else, and longer than a head", RECORDS[1], image.encode_record(HEAD)):
        with pytest.raises(CorruptImage):
            read(data)
