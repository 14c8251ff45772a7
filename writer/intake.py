"""Conversion of rows, keys and Arrow data, in mixed order, to changes.

Only :mod:`logformat.rows.intake` decides whether a row fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import SchemaMismatch, StoreError
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.keys import KEY_BYTES_MAX, KeyCodec
from logformat.rows.schema import is_variable
from writer.refused import Refused, tell_apart


class Key:
    """A key to delete, among rows (dicts) to store."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key


class Whole(NamedTuple):
    """Changes, the schema they follow, and the columns of their key; the table may have a later schema by now."""

    changes: Changes
    schema_id: int
    key: Sequence[str]


Item = Any
"""A row (a dict), a :class:`Key`, or a :class:`Whole`."""


class Intake:
    """Converts items to changes of one table.

    Args:
        schema: Columns that rows have.
        schema_id: Id of that schema.
        key: Names of the key's columns in key order; empty for a log table.
    """

    def __init__(self, schema: pa.Schema, schema_id: int, key: Sequence[str]) -> None:
        self.schema = schema
        self.schema_id = schema_id
        self.key_schema = pa.schema([schema.field(name) for name in key])
        self._codec = KeyCodec(list(self.key_schema))

    def changes(self, items: list[Item]) -> tuple[list[Whole], list[Refused]]:
        """Convert items in order; returns the changes and the rows that do not fit."""
        converted: list[Whole] = []
        refused: list[Refused] = []
        if set(map(type, items)) == {dict}:
            self._rows(items, converted, refused)
            return converted, refused
        for is_whole, run in groupby(items, lambda item: isinstance(item, Whole)):
            if is_whole:
                for whole in run:
                    self._fitting(whole, converted, refused)
            else:
                self._mixed(list(run), converted, refused)
        return converted, refused

    def _upserts(self, rows: list[Item]) -> Changes:
        with _Unforeseen():
            return self._checked(Changes.upserts(intake.one_batch(rows, self.schema)))

    def _rows(self, rows: list[Item], converted: list[Whole], refused: list[Refused]) -> None:
        done, failed = tell_apart(len(rows), lambda start, end: self._upserts(rows[start:end]))
        converted += [Whole(changes, self.schema_id, self.key_schema.names) for changes in done]
        refused += [Refused([rows[row]], error) for row, error in failed]

    def _mixed(self, items: list[Item], converted: list[Whole], refused: list[Refused]) -> None:
        """Converts rows and keys that alternate: each kind on its own, then merged in the original order."""
        keys = [item.key for item in items if type(item) is Key]
        rows = [item for item in items if type(item) is not Key]
        is_key = np.array([type(item) is Key for item in items])

        def deleted(start: int, end: int) -> Changes:
            with _Unforeseen():
                return self._checked(Changes.deletes(intake.key_rows(keys[start:end], self.key_schema), self.schema))

        batches, bad_rows = tell_apart(len(rows), lambda start, end: self._upserts(rows[start:end]))
        deletes, bad_keys = tell_apart(len(keys), deleted)
        refused += [Refused([rows[row]], error) for row, error in bad_rows]
        refused += [Refused([keys[row]], error) for row, error in bad_keys]
        places = [
            np.delete(np.flatnonzero(is_it), [row for row, _ in bad])
            for is_it, bad in ((~is_key, bad_rows), (is_key, bad_keys))
        ]
        if batches or deletes:
            order = pa.array(np.argsort(np.concatenate(places)))
            every = together([*batches, *deletes])
            merged = Changes(every.rows.take(order), every.is_delete.take(order))
            converted.append(Whole(merged, self.schema_id, self.key_schema.names))

    def _fitting(self, whole: Whole, converted: list[Whole], refused: list[Refused]) -> None:
        changes, _, key = whole
        done, failed = tell_apart(len(changes), lambda start, end: self._checked(part(changes, start, end), key))
        converted += [whole._replace(changes=each) for each in done]
        refused += [Refused(part(changes, row, row + 1), error) for row, error in failed]

    def _checked(self, changes: Changes, key: Sequence[str] | None = None) -> Changes:
        """Returns the changes unchanged; refuses a key that is too large before it gets a sequence."""
        columns = [changes.rows.column(name) for name in (self.key_schema.names if key is None else key)]
        variable = [column for column in columns if is_variable(column.type)]
        if variable and len(changes):
            # Escaping at most doubles a byte, so the lengths alone nearly always prove that no key is too long.
            longest = sum(pc.max(pc.binary_length(column)).as_py() for column in variable)
            if 2 * longest + _FIXED_BYTES * len(columns) > KEY_BYTES_MAX:
                self._codec.encode(columns)
        return changes


class _Unforeseen:
    """Turns any error raised by the code of a value, such as a user's tzinfo, into an error about that value."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, StoreError | MemoryError):
            raise SchemaMismatch("A value can't be converted.", reason=f"{type(error).__name__}: {error}") from error


_FIXED_BYTES = 17
"""Upper bound of the bytes of a fixed-width column in a key, and of the overhead of a variable one."""


def part(changes: Changes, start: int, end: int) -> Changes:
    """A slice of changes, not copied."""
    if start == 0 and end == len(changes):
        return changes
    return Changes(changes.rows.slice(start, end - start), changes.is_delete.slice(start, end - start))


def together(parts: Sequence[Changes]) -> Changes:
    """Concatenates changes in order; at least one is given."""
    if len(parts) == 1:
        return parts[0]
    return Changes(
        pa.concat_batches([each.rows for each in parts]), pa.concat_arrays([each.is_delete for each in parts])
    )


def beginning(changes: Changes, rows_max: int, bytes_max: int) -> Changes:
    """The longest prefix within the limits, at least one row."""
    piece = part(changes, 0, min(len(changes), rows_max))
    while len(piece) > 1 and piece.rows.nbytes > bytes_max:
        piece = part(piece, 0, len(piece) // 2)
    return piece
