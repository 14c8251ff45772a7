"""Targets about writes by the native kernel: it makes the groups, values and change records that Python makes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kvstore.bucket.merge import cdc
from kvstore.bucket.merge.small import merge_small
from kvstore.errors import CorruptData, KeyTooLarge
from kvstore.kernel import library, writes
from kvstore.kernel.changes import ChangeMaker, Made, Stored
from kvstore.kernel.library import RecordMaker
from kvstore.kernel.writes import Encoded, Few
from kvstore.meta.state import TableDefinition
from kvstore.request.encoded import EncodedWrites, SmallRequest, encoded_operations, encoded_writes
from kvstore.request.request import Grouping, group
from kvstore.request.row_layout import TableLayout, layout_of
from kvstore.request.rules import OVERWRITE
from kvstore.request.sizes import bytes_of
from kvstore.request.take_rows import take_rows
from logformat.binary_column import WORD, BinaryColumn
from logformat.catalog.edits import TableOptions
from logformat.checksum import hasher, key_sums
from logformat.ids import Offset, SchemaId, TableId
from logformat.log import arrow_message
from logformat.log.batch import BatchHeader, LogBatch
from logformat.log.few_records import FewRecordsEncoder, finished, packed
from logformat.rows.few.few_rows import Operation
from logformat.rows.schema import fixed_width, is_variable
from merge_engines.engine import Operations
from tests.kernel.guarded import guarded

_KEYS = [
    *(("n", pa.int64()), ("f", pa.bool_()), ("d", pa.decimal128(20, 2)), ("x", pa.binary(7)), ("u", pa.uint16())),
    *(("s", pa.string()), ("r", pa.binary())),
]
_VALUES = [
    *(("a", pa.int32()), ("b", pa.string()), ("c", pa.bool_()), ("e", pa.binary()), ("g", pa.int8())),
    *(("h", pa.float16()), ("i", pa.decimal128(30, 2)), ("j", pa.binary(3)), ("k", pa.timestamp("us", "UTC"))),
    *(("l", pa.string()), ("m", pa.bool_())),
]
_SCHEMA = SchemaId(1)


def _definition(key: Sequence[str], values: int, options: TableOptions) -> TableDefinition:
    """A table with these columns in its key, and so many others around them."""
    keys = [pa.field(name, kind, False) for name, kind in _KEYS if name in key]
    others = [pa.field(name, kind, name not in "al") for name, kind in _VALUES[:values]]
    schema = pa.schema([*others[:2], *keys, *others[2:]])
    return TableDefinition(TableId(1), "t", {_SCHEMA: schema}, tuple(key), 1, options)


_TABLES = [("sn", 11), ("n", 9), ("xduf", 11), ("rs", 3), ("f", 0)]
_SMALL = [[_definition(*table, TableOptions(changelog_image=image)) for image in ("full", "wal")] for table in _TABLES]


class _Part(NamedTuple):
    """A column as bytes: its buffers, what it says about its nulls, and where in them it begins."""

    kind: pa.DataType
    count: int
    buffers: list[bytes | None]
    nulls: int
    offset: int

    def array(self, placed: Callable[[bytes], np.ndarray]) -> pa.Array:
        buffers = [None if each is None else pa.py_buffer(placed(each)) for each in self.buffers]
        return pa.Array.from_buffers(self.kind, self.count, buffers, self.nulls, self.offset)


class _Given:
    """Numbers and bytes that are made of other bytes."""

    def __init__(self, data: bytes) -> None:
        self._bytes = cycle(data or b"\0")

    def number(self, end: int) -> int:
        return next(self._bytes) % end

    def bytes(self, count: int) -> bytes:
        return bytes(islice(self._bytes, count))


def native_writes(data: bytes) -> None:
    """Rows with any bytes, some of them deletes, take the place of others, some of which have any bytes, too."""
    given = _Given(data)
    definition = _SMALL[given.number(len(_SMALL))][given.number(3) == 0]
    layout, preimages = layout_of(definition), definition.options.changelog_image == "full"
    placed = guarded if given.number(3) else _misplaced
    count, first = 1 + given.number(40), given.number(10)
    different = 1 + given.number(min(12, first + count))
    which = [given.number(different) for _ in range(first + count)]
    parts = [_part(given, field, first, which, is_key=field.name in layout.key_names) for field in layout.schema]
    is_delete = np.array([given.number(5) == 0 for _ in range(count)])
    plain = pa.RecordBatch.from_arrays([part.array(_copied) for part in parts], schema=layout.schema)
    rows = pa.RecordBatch.from_arrays([part.array(placed) for part in parts], schema=layout.schema)
    grouping = _grouped(layout, plain, rows)
    lasts = grouping.order[grouping.lasts]
    _assert_same_values(layout, plain, rows, grouping, np.where(is_delete[lasts], -1, lasts))
    old, is_any = _old_values(given, layout, plain, grouping)
    _assert_same_few(layout, rows, grouping)
    found = _made(definition, rows, is_delete, old)
    try:
        types, change_rows, digest = _records(layout, plain, grouping, is_delete, old, preimages=preimages)
    except CorruptData:
        assert found is None, "the kernel takes damage for a row"
        raise
    if found is None:
        assert library.kernel() is None, "the kernel knows all that is right"
        return
    assert found.records == len(types)
    if found.records:
        its_types, its_rows = FewRecordsEncoder(layout.schema).decoded(found.batch, found.records)
        assert its_types.tolist() == types.tolist()
        its_rows.validate()
        if is_any:
            assert _encoded(layout, its_rows) == _encoded(layout, change_rows)
        else:
            assert bytes(arrow_message.encode(its_rows, None)) == bytes(arrow_message.encode(change_rows, None))
    put = ~is_delete[lasts]
    hashes = layout.encode_values(take_rows(plain, lasts[put]), key_sums(grouping.keys)[put], _SCHEMA)[1]
    assert found.digest == (int(hashes.sum(dtype=np.uint64)) - digest) % 2**64


def native_writes_seeds() -> list[bytes]:
    """Rows for each layout: some that begin at odd addresses, and some with nothing but zeros in them."""
    random = Random(1)
    heads = [bytes([nth, 1, nth & 1, 12, 0, 3]) for nth in range(len(_TABLES))]
    return [head + more for head in heads for more in (random.randbytes(600), b"\0")]


def native_few(data: bytes) -> None:
    """A few rows, some of them deletes, take the place of others, also of one another; some of all have any bytes."""
    given = _Given(data)
    definition = _SMALL[given.number(len(_SMALL))][given.number(2)]
    assert definition.primary_key is not None
    without, native = EncodedWrites(definition, definition.primary_key, has_kernel=False), guarded_maker(definition)
    rows = _few_rows(given, without, definition, 1 + given.number(12))
    if native is None or rows is None:
        return
    header = LogBatch(base_offset=Offset(given.number(200)), schema_id=_SCHEMA)
    half = len(rows) // 2
    again = given.number(3) == 0
    old = {each.code: value for each in rows[half:] if (value := _damaged(given, each.code, each.value)) is not None}
    operations = [
        each if given.number(12) else _with_value(each, _damaged(given, each.code, each.value))
        for each in (rows[:half] if again else {each.code: each for each in rows[:half]}.values())
    ]
    if again:
        operations += [operations[given.number(len(operations))] for _ in range(given.number(6))]
    if given.number(6) == 0:  # nothing is read or written elsewhere, whatever a key is
        code, value = operations[0].code[: given.number(40)] + given.bytes(given.number(12)), operations[0].value
        other = operations[0]._replace(code=code, value=value and sealed(code, value))
        made = _made_of(native, encoded_operations([other, *operations[1:]], _SCHEMA), {}, header)
        assert made is None or _is_key(definition, code), "the kernel takes damage for a key"
    encoded = encoded_operations(operations, _SCHEMA)
    found = _made_of(native, encoded, old, header)
    try:
        expected = merge_small(
            without, SmallRequest(operations, without), lambda keys: [old.get(key, b"") for key in keys], header
        )
    except CorruptData:
        assert found is None, "the kernel takes damage for a row"
        raise
    if found is None:
        were_right = {each.value for each in rows}
        values = [each.value for each in operations]
        assert not were_right.issuperset([*values, *old.values()]), "the kernel knows all that is right"
        return
    assert expected is not None
    assert (found.records, found.digest, found.added_rows) == (
        *(expected.records, expected.digest % 2**64, expected.added_rows),
    )
    whole = found.batch if isinstance(encoded, Few) else finished(found.batch, header, found.records)
    assert [whole] == expected.pieces
    places = zip(_names_of(encoded), found.final, strict=True)
    changed = {key: operations[place].value or b"" for key, place in places if place >= 0}
    kept = {key: value for key, value in expected.rows.items() if value or key in old}
    assert {key: value for key, value in changed.items() if value or key in old} == kept


def native_few_seeds() -> list[bytes]:
    """Rows for each table and both images."""
    random = Random(1)
    heads = [bytes([table, image, count]) for table in range(len(_TABLES)) for image in range(2) for count in (0, 11)]
    return [head + random.randbytes(700) for head in heads]


def _is_key(definition: TableDefinition, key: bytes) -> bool:
    try:
        layout_of(definition).keys.decode(BinaryColumn.from_list([key]))
    except CorruptData:
        return False
    return True


def sealed(key: bytes, value: bytes) -> bytes:
    """A value with the checksum that it would have under a key, if it could have one."""
    if len(value) < WORD or len(value) % WORD:
        return value
    hash, _ = hasher(len(key), len(value))(key, value)
    return (hash % 2**32).to_bytes(4, "little") + value[4:]


_NUMBERS = ["operations", "keys", "skips", "key_bytes", "value_bytes", "old_bytes"]
_ADDRESSES = [
    *("key_flat", "key_ends", "flat", "ends", "old", "old_sizes", "order", "starts", "lasts", "final", "scratch")
]


def guarded_maker(definition: TableDefinition, changed: Mapping[str, int] | None = None) -> ChangeMaker | None:
    """What makes records with the native kernel, if there is one: it ends the process where it leaves its memory.

    Args:
        changed: What is added to numbers that it gets.
    """
    small, maker = encoded_writes(definition), library.record_maker()
    if maker is None or small is None or small.native is None:
        return None

    def guarded_make(keeps_lock: bool, plan: int, batch: bytes, target: int, room: int) -> int:
        fields = dict(zip([*_NUMBERS, *_ADDRESSES, "scratch_bytes"], struct.unpack("<18Q", batch), strict=True))
        real = fields | {"room": room}
        fields = {name: max(0, number + (changed or {}).get(name, 0)) for name, number in real.items()}
        words = {
            **dict.fromkeys(["ends"], real["operations"] + 1),
            **dict.fromkeys(["order"], real["operations"]),
            **dict.fromkeys(["key_ends"], real["keys"] + 1),
            **dict.fromkeys(["old_sizes", "starts", "lasts", "final"], real["keys"]),
        }
        sizes = {name: WORD * count for name, count in words.items()}
        for name, size in (("key_flat", "key_bytes"), ("flat", "value_bytes"), ("old", "old_bytes")):
            sizes[name] = min(real[size], fields[size])
        sizes["scratch"] = min(real["scratch_bytes"], fields["scratch_bytes"]) // WORD * WORD  # it is of whole words
        placed = {name: guarded(ctypes.string_at(real[name], size)) for name, size in sizes.items()}
        there = guarded(bytes(min(room, fields["room"])))
        addresses = [placed[name].ctypes.data for name in _ADDRESSES]
        given = struct.pack("<18Q", *(fields[name] for name in _NUMBERS), *addresses, fields["scratch_bytes"])
        status = maker.make(keeps_lock, plan, given, there.ctypes.data, fields["room"])
        ctypes.memmove(target, there.ctypes.data, len(there))
        ctypes.memmove(real["final"], placed["final"].ctypes.data, sizes["final"])
        return status

    def guarded_few(plan: ctypes.c_void_p, memory: bytes, count: int, skips: bool, target: bytes, room: int) -> int:
        placed, there = guarded(memory), guarded(target)
        addresses = [ctypes.c_void_p(each.ctypes.data) for each in (placed, there)]
        status = maker.make_few(plan, addresses[0], count, skips, addresses[1], room)
        # The kernel fills bytes that nobody else has.
        ctypes.memmove(target, there.ctypes.data, len(target))
        return status

    table = layout_of(definition).flat
    assert table is not None
    return ChangeMaker(
        *(RecordMaker(guarded_make, guarded_few), table, small.records.template),
        preimages=small.preimages,
        inserts=small.tells_inserts,
        keeps_first=small.keeps_first,
    )


def _stored(values: list[bytes]) -> Stored:
    column = BinaryColumn.from_list(values)
    return Stored(column.lengths, column)


def _made_of(maker: ChangeMaker, rows: Encoded | Few, old: Mapping[bytes, bytes], header: BatchHeader) -> Made | None:
    stored = [old.get(key, b"") for key in _names_of(rows)]
    return maker.make_few(rows, stored, packed(header)) if isinstance(rows, Few) else maker.make(rows, _stored(stored))


def _names_of(rows: Encoded | Few) -> list[bytes]:
    return rows.names if isinstance(rows, Few) else rows.keys.to_list()


def _made(
    definition: TableDefinition, rows: pa.RecordBatch, is_delete: np.ndarray, old: Sequence[bytes]
) -> Made | None:
    """What the kernel makes of rows; those that it encodes are held against what it encodes by itself."""
    kernel, table, maker, few = (
        library.kernel(),
        layout_of(definition).flat,
        guarded_maker(definition),
        library.few_encoder(),
    )
    if kernel is None or table is None or maker is None or few is None:
        return None
    encoded = writes.RowEncoder(kernel, few, table).many(rows, bytes_of(rows), is_delete)
    assert encoded is not None, "the kernel knows all that is right"
    assert [bool(value) for value in encoded.values.to_list()] == (~is_delete).tolist()
    return maker.make(encoded, _stored(list(old)))


def _few_rows(given: _Given, writes: EncodedWrites, definition: TableDefinition, keys: int) -> list[Operation] | None:
    """Twice so many operations, of which the second half has the keys of the first; None if one is too long."""
    which, key = [*range(keys)] * 2, definition.primary_key or ()
    parts = [_part(given, field, 0, which, is_key=field.name in key) for field in definition.schema]
    rows = pa.RecordBatch.from_arrays([part.array(_copied) for part in parts], schema=definition.schema)
    is_delete = [given.number(5) == 0 for _ in range(keys)] + [False] * keys
    return writes.rows.operations(rows, pa.array(is_delete, pa.bool_()))


def _damaged(given: _Given, key: bytes, value: bytes | None) -> bytes | None:
    """A value, or in some calls another one; some of these have a right checksum."""
    if not value or given.number(4):
        return value
    at, size = given.number(len(value)), WORD * given.number(4)
    match given.number(4):
        case 0:
            return None
        case 1:
            value = value[:at] + bytes([value[at] ^ 1 << given.number(8)]) + value[at + 1 :]
        case 2:
            value = value[:at] + given.bytes(size) + value[at:]
        case 3:
            value = value[: at // WORD * WORD] or given.bytes(WORD)
    return sealed(key, value) if given.number(2) else value


def _with_value(operation: Operation, value: bytes | None) -> Operation:
    if value is None or len(value) < WORD or len(value) % WORD:
        return operation
    hash, _ = hasher(len(operation.code), len(value))(operation.code, value)
    return operation._replace(value=value, hash=hash)


def _part(given: _Given, field: pa.Field, first: int, which: Sequence[int], *, is_key: bool) -> _Part:
    """A column; equal numbers in ``which`` have equal values in a column of the key."""
    rows = len(which)
    nth = which if is_key else range(rows)
    bitmap_bytes = (rows + 7) // 8
    validity, nulls = None, 0
    if field.nullable and given.number(3):
        validity = given.bytes(bitmap_bytes)
        there = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")[first:rows]
        nulls = int(np.count_nonzero(there == 0)) if given.number(2) else -1
    if pa.types.is_boolean(field.type):
        bits = [given.number(2) for _ in range(rows)]
        buffers = [np.packbits([bits[each] for each in nth], bitorder="little").tobytes()]
    elif is_variable(field.type):
        longest = 200 if given.number(8) == 0 else 9
        texts = [given.bytes(given.number(longest)) for _ in range(rows)]
        if pa.types.is_string(field.type):
            texts = [bytes(byte & 0x7F for byte in text) for text in texts]
        before = b"\0" * given.number(4)
        ends = np.cumsum([len(before), *(len(texts[each]) for each in nth)], dtype=np.int32)
        data = before + b"".join(texts[each] for each in nth)
        buffers = [ends.tobytes(), data]
    else:
        values = [given.bytes(fixed_width(field.type)) for _ in range(rows)]
        buffers = [b"".join(values[each] for each in nth)]
    return _Part(field.type, rows - first, [validity, *buffers], nulls, first)


def _copied(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).copy()


def _misplaced(data: bytes) -> np.ndarray:
    """A copy at an odd address."""
    return np.frombuffer(bytes(7 - -len(data) % 2) + data + b"\0", np.uint8)[7 - -len(data) % 2 :][: len(data)]


def _grouped(layout: TableLayout, plain: pa.RecordBatch, rows: pa.RecordBatch) -> Grouping:
    kernel, table = library.kernel(), layout.flat
    assert table is not None
    found = None if kernel is None else writes.group(kernel, table, rows, bytes_of(rows))
    try:
        expected = group(layout.encode_keys(plain))
    except KeyTooLarge:
        assert found is None
        raise
    assert found is not None or kernel is None, "the kernel knows all that is right"
    if found is not None:
        keys, *numbers = found
        assert keys.to_list() == expected.keys.to_list()
        assert keys.width == expected.keys.width
        for its, other in zip(numbers, (expected.order, expected.starts, expected.lasts), strict=True):
            assert its.tolist() == other.tolist()
    return expected


def _assert_same_values(
    layout: TableLayout, plain: pa.RecordBatch, rows: pa.RecordBatch, grouping: Grouping, places: np.ndarray
) -> None:
    kernel, table = library.kernel(), layout.flat
    if kernel is None or table is None:
        return
    found = writes.encode(kernel, table, rows, bytes_of(rows), places, grouping.keys)
    assert found is not None, "the kernel knows all that is right"
    values, hashes, sums = found
    expected_sums, put = key_sums(grouping.keys), places >= 0
    expected, expected_hashes = layout.encode_values(take_rows(plain, places[put]), expected_sums[put], _SCHEMA)
    assert sums.tolist() == expected_sums.tolist()
    assert hashes[put].tolist() == expected_hashes.tolist()
    assert not hashes[~put].any()
    assert values.lengths[~put].sum() == 0
    assert values.without_empty().to_list() == expected.to_list()


def _assert_same_few(layout: TableLayout, rows: pa.RecordBatch, grouping: Grouping) -> None:
    """Rows of different keys, encoded as a few, are those that are encoded as many."""
    kernel, table, encode = library.kernel(), layout.flat, library.few_encoder()
    if kernel is None or table is None or encode is None:
        return

    def guarded_encode(*given: Any) -> int:
        *others, target, room, capacity = given
        there = guarded(target)
        status: int = encode(*others, ctypes.c_char_p(there.ctypes.data), room, capacity)
        ctypes.memmove(target, there.ctypes.data, len(target))
        return status

    encoder = writes.RowEncoder(kernel, guarded_encode, table)
    few = encoder.few(rows, bytes_of(rows))
    if len(grouping.keys) < len(rows):
        assert few is None
        return
    encoded = encoder.many(rows, bytes_of(rows), None)
    assert few is not None
    assert encoded is not None
    assert [few.names[row] for row in encoded.order.tolist()] == encoded.keys.to_list()
    assert few.values == encoded.values.to_list()
    assert (few.size, few.schema_id) == (encoded.size, encoded.schema_id)


def _old_values(
    given: _Given, layout: TableLayout, plain: pa.RecordBatch, grouping: Grouping
) -> tuple[list[bytes], bool]:
    """For each key its stored value, if there is one; and whether some have any bytes, under right checksums."""
    firsts, sums = take_rows(plain, grouping.order[grouping.starts]), key_sums(grouping.keys)
    old = layout.encode_values(firsts, sums, _SCHEMA)[0].to_list()
    is_any = False
    for nth, key in enumerate(grouping.keys.to_list()):
        match given.number(16):
            case 0 | 1 | 2:
                old[nth] = b""
            case 3 | 4 if given.number(4) == 0:
                is_any = True
                start, size = given.number(8), WORD * given.number(12)
                found = given.bytes(6) + old[nth][6:start] + given.bytes(size) + old[nth][6 + start :]
                found = found[: len(found) // WORD * WORD].ljust(WORD, b"\1")
                found = bytes(4) + _SCHEMA.to_bytes(2, "little") + found[6:]
                hash, _ = hasher(len(key), len(found))(key, found)
                old[nth] = (hash % 2**32).to_bytes(4, "little") + found[4:]
            case 5 if given.number(8) == 0:
                at = given.number(len(old[nth]))
                old[nth] = old[nth][:at] + bytes([old[nth][at] ^ 1 << given.number(8)]) + old[nth][at + 1 :]
    return old, is_any


def _records(
    layout: TableLayout,
    plain: pa.RecordBatch,
    grouping: Grouping,
    is_delete: np.ndarray,
    old: Sequence[bytes],
    *,
    preimages: bool,
) -> tuple[np.ndarray, pa.RecordBatch, int]:
    """Types and rows of the change records that Python makes, and the sum of the old rows' hashes."""
    there = np.array([bool(value) for value in old])
    values = BinaryColumn.from_list([value for value in old if value])
    keys_of = take_rows(plain, grouping.order[grouping.starts[there]])
    old_rows, hashes = layout.decode(values, key_sums(grouping.keys)[there], keys_of)
    operations = Operations(
        pool=pa.concat_batches([old_rows, plain]) if old_rows.num_rows else plain,
        stored=np.where(there, there.cumsum() - 1, -1),
        order=grouping.order,
        starts=grouping.starts,
        lasts=grouping.lasts,
        is_delete=is_delete,
        targets=None,
        key_names=layout.key_names,
        automatic=None,
    )
    merged = OVERWRITE.merge(operations)
    types, rows = cdc.records_of(merged, grouping.order, preimages=preimages, inserts=preimages)
    return types, rows, int(hashes.sum(dtype=np.uint64))


def _encoded(layout: TableLayout, rows: pa.RecordBatch) -> list[list[bytes]]:
    """The rows, without what lies under their nulls."""
    keys = layout.encode_keys(rows)
    return [keys.to_list(), layout.encode_values(rows, key_sums(keys), _SCHEMA)[0].to_list()]
