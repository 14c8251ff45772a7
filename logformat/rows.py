"""The value a row has in the index: ``checksum u32 | schema id u16 | record``, padded to 8 bytes (docs/format.md, Row).

* A value holds the columns that are not in the key; the key holds the others.
* A value is encoded with the schema of the change that wrote it, so a rebuilt index equals the live one.
* Nothing is decoded before its checksum, which covers the key too, was found right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from logformat import octets
from logformat.checksum import FIRST_WORD_WEIGHT, mix, value_sums
from logformat.errors import CorruptData
from logformat.ids import SchemaId
from logformat.octets import Octets
from logformat.record import RecordCodec

_HEAD = [("checksum", "<u4"), ("schema_id", "<u2")]
_LOW = np.uint64(0xFFFFFFFF)


class RowCodec:
    """Codec of the values of one table.

    Args:
        schemas: The columns outside the key, by schema id; each has those of the one before it, and new ones behind.
    """

    def __init__(self, schemas: Mapping[SchemaId, pa.Schema]) -> None:
        self._schemas = dict(schemas)
        self._codecs = {id: RecordCodec(schema.types, _HEAD, multiple_of=8) for id, schema in schemas.items()}

    def encode(
        self, columns: Sequence[pa.Array], key_sums: np.ndarray, schema_id: SchemaId
    ) -> tuple[Octets, np.ndarray]:
        """Values of a batch of rows, and their hashes.

        Args:
            columns: The columns outside the key, in the order of the schema.
            key_sums: ``checksum.key_sums`` of the rows' keys.
            schema_id: Which schema the columns follow.

        Returns:
            The values, and uint64 hashes whose low 32 bits are their checksums.
        """
        fixed, variable = self._codecs[schema_id].encode(columns) if columns else (self._bare(schema_id, key_sums), [])
        fixed["schema_id"] = schema_id
        matrix = fixed.view(np.uint8).reshape(len(fixed), fixed.itemsize)
        if not variable:
            hashes = mix(key_sums + value_sums(matrix.view("<u8")))
            fixed["checksum"] = hashes & _LOW
            return octets.from_matrix(matrix), hashes
        lengths = np.full(len(fixed), fixed.itemsize)
        for column in variable:
            lengths += np.diff(octets.to_flat(column)[1])
        joined = octets.join(octets.from_matrix(matrix), *variable, octets.word_padding(lengths))
        flat, offsets = octets.to_flat(joined)
        flat = flat[: offsets[-1]].copy()
        starts = offsets[:-1] // 8
        hashes = mix(key_sums + value_sums(flat.view("<u8"), starts))
        flat.view("<u4")[2 * starts] = hashes & _LOW
        return octets.from_flat(flat, offsets), hashes

    def decode(
        self, values: Octets, key_sums: np.ndarray, schema_id: SchemaId, names: Sequence[str] | None = None
    ) -> tuple[list[pa.Array], np.ndarray]:
        """Columns of a batch of values, and the hashes of the rows.

        Args:
            values: As LMDB holds them.
            key_sums: ``checksum.key_sums`` of the keys they were found under.
            schema_id: The schema the caller wants; columns newer than a value are null.
            names: Columns the caller wants, in this order; all if None.

        Raises:
            CorruptData: A value is not what was written, or not under its key.
        """
        flat, offsets = octets.to_flat(octets.as_binary(values))
        hashes = _verified(flat, offsets, key_sums)
        wanted = self._schemas[schema_id]
        names = wanted.names if names is None else names
        written = flat[: offsets[-1]].view("<u2")[offsets[:-1] // 2 + 2]
        if len(written) and np.any(written != written[0]):
            return self._decode_mixed(flat, offsets, written, wanted, names), hashes
        its_schema = SchemaId(int(written[0])) if len(written) else schema_id
        return self._decode_one(flat, offsets[:-1], offsets[1:], its_schema, wanted, names), hashes

    def _bare(self, schema_id: SchemaId, key_sums: np.ndarray) -> np.ndarray:
        # A table whose columns are all in the key still has values: their checksum and schema.
        return np.zeros(len(key_sums), self._codecs[schema_id].dtype)

    def _decode_one(
        self,
        flat: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        written: SchemaId,
        wanted: pa.Schema,
        names: Sequence[str],
    ) -> list[pa.Array]:
        schema = self._schemas.get(written)
        if schema is None:
            raise CorruptData("A stored row names an unknown schema; run `kvstore check`.", schema_id=written)
        there = [name for name in names if name in schema.names]
        decoded = self._codecs[written].decode(flat, starts, ends, [schema.names.index(name) for name in there])
        columns = dict(zip(there, decoded, strict=True))
        return [columns.get(name, pa.nulls(len(starts), wanted.field(name).type)) for name in names]

    def _decode_mixed(
        self, flat: np.ndarray, offsets: np.ndarray, written: np.ndarray, wanted: pa.Schema, names: Sequence[str]
    ) -> list[pa.Array]:
        parts, order = [], []
        for schema_id in np.unique(written):
            rows = np.flatnonzero(written == schema_id)
            parts.append(
                self._decode_one(flat, offsets[rows], offsets[rows + 1], SchemaId(int(schema_id)), wanted, names)
            )
            order.append(rows)
        back = pa.array(np.argsort(np.concatenate(order), kind="stable"))
        return [pa.concat_arrays(column).take(back) for column in zip(*parts, strict=True)]


def verified(values: Octets, key_sums: np.ndarray) -> np.ndarray:
    """Hashes (uint64) of rows, without decoding them.

    Raises:
        CorruptData: A value is not what was written, or not under its key.
    """
    return _verified(*octets.to_flat(octets.as_binary(values)), key_sums)


def _verified(flat: np.ndarray, offsets: np.ndarray, key_sums: np.ndarray) -> np.ndarray:
    lengths = np.diff(offsets)
    if np.any(lengths % 8) or np.any(lengths < 8):
        raise CorruptData("A stored row is cut short; run `kvstore check`.")
    flat, starts = flat[: offsets[-1]], offsets[:-1] // 8
    words = flat.view("<u8")
    stored = flat.view("<u4")[2 * starts]
    one_width = len(lengths) and np.all(lengths == lengths[0])
    sums = value_sums(words.reshape(len(lengths), -1)) if one_width else value_sums(words, starts)
    # The sum was taken while the checksum was zero; it is linear, so its share is taken out again.
    hashes = mix(key_sums + sums - stored * FIRST_WORD_WEIGHT)
    wrong = (hashes & _LOW) != stored
    if wrong.any():
        raise CorruptData(
            "Stored rows fail their checksum; run `kvstore check`.",
            rows=int(wrong.sum()),
            first=int(np.argmax(wrong)),
        )
    return hashes
