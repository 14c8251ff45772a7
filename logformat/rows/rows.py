"""Value of a row in the index: ``checksum u32 | schema id u16 | record``, padded to 8 bytes (docs/format.md, Row).

* A value holds the columns outside the key; the key holds the others.
* A value is encoded with the schema of the change that wrote it, so a rebuilt index equals the live one.
* Decoding reads nothing before it has verified the checksum, which also covers the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from logformat import binary_column as binary_column
from logformat.binary_column import WORD, BinaryColumn
from logformat.checksum import FIRST_WORD_WEIGHT, mix, value_sums
from logformat.errors import CorruptData
from logformat.ids import SchemaId
from logformat.rows.record import RecordCodec

HEAD = [("checksum", "<u4"), ("schema_id", "<u2")]
"""Fields before the columns of a stored row, with their NumPy types."""
_LOW = np.uint64(0xFFFFFFFF)


class RowCodec:
    """Codec of the values of one table.

    Args:
        schemas: The columns outside the key, by schema id; each has the columns of the one before, then new ones.
    """

    def __init__(self, schemas: Mapping[SchemaId, pa.Schema]) -> None:
        self._schemas = dict(schemas)
        self._names = {id: schema.names for id, schema in schemas.items()}
        self._places = {id: {name: at for at, name in enumerate(names)} for id, names in self._names.items()}
        self._alike = _alike(self._schemas)
        self._codecs = {id: RecordCodec(schema.types, HEAD, aligned=True) for id, schema in schemas.items()}

    def encode(
        self, columns: Sequence[pa.Array], key_sums: np.ndarray, schema_id: SchemaId
    ) -> tuple[BinaryColumn, np.ndarray]:
        """Values of a batch of rows, and their hashes.

        Args:
            columns: The columns outside the key, in the order of the schema.
            key_sums: ``checksum.key_sums`` of the rows' keys.
            schema_id: Schema of the columns.

        Returns:
            The values, and uint64 hashes whose low 32 bits are their checksums.
        """
        fixed, variable = self._codecs[schema_id].encode(columns, len(key_sums))
        fixed["schema_id"] = schema_id
        heads = BinaryColumn.from_matrix(fixed.view(np.uint8).reshape(len(fixed), fixed.itemsize))
        if not variable:
            hashes = mix(key_sums + value_sums(*heads.words()))
            fixed["checksum"] = hashes & _LOW
            return heads, hashes
        lengths = np.full(len(fixed), fixed.itemsize)
        for column in variable:
            lengths += column.lengths
        joined = binary_column.join(heads, *variable, binary_column.word_padding(lengths))
        flat, starts = joined.flat[: joined.offsets[-1]].copy(), joined.offsets[:-1] // WORD
        hashes = mix(key_sums + value_sums(flat.view("<u8"), starts))
        flat.view("<u4")[2 * starts] = hashes & _LOW
        return BinaryColumn(flat, joined.offsets), hashes

    def record(self, schema_id: SchemaId) -> tuple[list[str], RecordCodec] | None:
        """Columns of values that were written with a schema, and their codec; None if there is no such schema."""
        codec = self._codecs.get(schema_id)
        return None if codec is None else (self._names[schema_id], codec)

    def decode(
        self, values: BinaryColumn, key_sums: np.ndarray, schema_id: SchemaId, names: Sequence[str] | None = None
    ) -> tuple[list[pa.Array], np.ndarray]:
        """Columns of a batch of values, and the hashes of the rows.

        Args:
            values: Values as LMDB stores them.
            key_sums: ``checksum.key_sums`` of the keys they were found under.
            schema_id: Schema of the result; columns newer than a value are null.
            names: Columns to return, in this order; None for all.

        Raises:
            CorruptData: A value differs from what was written, or is under another key.
        """
        hashes = verified(values, key_sums)
        names = self._names[schema_id] if names is None else names
        starts, ends = values.offsets[:-1], values.offsets[1:]
        if not len(values):
            return [pa.array([], self._schemas[schema_id].field(name).type) for name in names], hashes
        written = schema_ids(values)
        if self._alike is not None:
            written = self._alike[written]
        if (written == written[0]).all():
            return self._decode_one(values.flat, starts, ends, int(written[0]), schema_id, names), hashes
        parts, order = [], []
        for its_schema in np.unique(written):
            rows = np.flatnonzero(written == its_schema)
            order.append(rows)
            parts.append(self._decode_one(values.flat, starts[rows], ends[rows], int(its_schema), schema_id, names))
        back = pa.array(np.argsort(np.concatenate(order), kind="stable"))
        return [pa.concat_arrays(column).take(back) for column in zip(*parts, strict=True)], hashes

    def _decode_one(
        self,
        flat: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        written: int,
        wanted: SchemaId,
        names: Sequence[str],
    ) -> list[pa.Array]:
        """Columns of values that were all written with one schema."""
        its_places = self._places.get(SchemaId(written))
        if its_places is None:
            raise CorruptData("A stored row names an unknown schema; run `kvstore check`.", schema_id=written)
        there = [name for name in names if name in its_places]
        places = None if there == self._names[SchemaId(written)] else [its_places[name] for name in there]
        columns = self._codecs[SchemaId(written)].decode(flat, starts, ends, places)
        if len(there) == len(names):
            return columns
        column_of = dict(zip(there, columns, strict=True))
        schema = self._schemas[wanted]
        return [
            column_of[name] if name in column_of else pa.nulls(len(starts), schema.field(name).type) for name in names
        ]


def _alike(schemas: Mapping[SchemaId, pa.Schema]) -> np.ndarray | None:
    """By schema id the first schema with the same columns, uint16; None if each has others."""
    first: dict[int, SchemaId] = {}
    for id, schema in sorted(schemas.items()):
        first.setdefault(len(schema), id)
    if len(first) == len(schemas):
        return None
    alike = np.arange(2**16, dtype=np.uint16)
    for id, schema in schemas.items():
        alike[id] = first[len(schema)]
    return alike


def schema_ids(values: BinaryColumn) -> np.ndarray:
    """Schema ids (uint16) of values; valid only if the values are verified."""
    starts, end = values.offsets[:-1], values.offsets[-1]
    return values.flat[:end].view("<u2")[starts // 2 + 2]


def verified(values: BinaryColumn, key_sums: np.ndarray) -> np.ndarray:
    """Verify the checksums of rows; returns their hashes (uint64).

    Args:
        values: Values as LMDB stores them, the first at the beginning of ``flat``.
        key_sums: ``checksum.key_sums`` of the keys they were found under.

    Raises:
        CorruptData: A value differs from what was written, or is under another key.
    """
    lengths = values.lengths
    if not len(lengths):
        return np.zeros(0, np.uint64)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest < WORD or (lengths & (WORD - 1)).any():
        raise CorruptData("A stored row is cut short; run `kvstore check`.", bytes=shortest)
    flat, starts = values.flat[: values.offsets[-1]], values.offsets[:-1] // WORD
    words = flat.view("<u8")
    one_width = shortest == longest
    sums = value_sums(words.reshape(len(lengths), -1)) if one_width else value_sums(words, starts)
    stored = flat.view("<u4")[2 * starts]
    # The checksum field was zero when the sum was taken. The sum is linear, so subtract the field's share.
    hashes = mix(key_sums + sums - stored * FIRST_WORD_WEIGHT)
    wrong = (hashes & _LOW) != stored
    if wrong.any():
        raise CorruptData(
            "Stored rows fail their checksum; run `kvstore check`.",
            rows=int(wrong.sum()),
            first=int(np.argmax(wrong)),
        )
    return hashes
