"""Rows, keys and Arrow data, mixed as they came, as changes.

Whether a row fits is decided by :mod:`logformat.intake` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat import intake
from logformat.changes import Changes
from logformat.keys import KEY_BYTES_MAX, KeyCodec
from logformat.schema import is_variable
from writer.refused import Refused, tell_apart


class Key:
    """A key to delete, among rows (dicts) to store."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key


Item = Any
"""A row (a dict), a :class:`Key`, or Changes."""


class Intake:
    """Makes changes of one table's columns.

    Args:
        schema: Those that rows have.
        key: Names of the key's columns in key order; empty for a log table.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str]) -> None:
        self.schema = schema
        self.key_schema = pa.schema([schema.field(name) for name in key])
        self._codec = KeyCodec(list(self.key_schema))

    def changes(self, items: list[Item]) -> tuple[list[Changes], list[Refused]]:
        """Items in order, but for those that do not fit."""
        found: list[Changes] = []
        refused: list[Refused] = []
        if set(map(type, items)) == {dict}:
            self._rows(items, found, refused)
            return found, refused
        for whole, run in groupby(items, lambda item: isinstance(item, Changes)):
            if whole:
                for changes in run:
                    self._fitting(changes, found, refused)
            else:
                self._mixed(list(run), found, refused)
        return found, refused

    def _rows(self, rows: list[Item], found: list[Changes], refused: list[Refused]) -> None:
        def attempt(start: int, end: int) -> Changes:
            return self._checked(Changes.upserts(intake.one_batch(rows[start:end], self.schema)))

        done, failed = tell_apart(len(rows), attempt)
        found += done
        refused += [Refused([rows[place]], error) for place, error in failed]

    def _mixed(self, items: list[Item], found: list[Changes], refused: list[Refused]) -> None:
        """Rows and keys in turn: each kind is converted by itself, then they are put in order again."""
        keys = [item.key for item in items if type(item) is Key]
        rows = [item for item in items if type(item) is not Key]
        is_key = np.array([type(item) is Key for item in items])

        def stored(start: int, end: int) -> Changes:
            return self._checked(Changes.upserts(intake.one_batch(rows[start:end], self.schema)))

        def deleted(start: int, end: int) -> Changes:
            return self._checked(Changes.deletes(intake.key_rows(keys[start:end], self.key_schema), self.schema))

        batches, bad_rows = tell_apart(len(rows), stored)
        deletes, bad_keys = tell_apart(len(keys), deleted)
        refused += [Refused([rows[place]], error) for place, error in bad_rows]
        refused += [Refused([keys[place]], error) for place, error in bad_keys]
        places = [
            np.delete(np.flatnonzero(is_it), [place for place, _ in bad])
            for is_it, bad in ((~is_key, bad_rows), (is_key, bad_keys))
        ]
        if batches or deletes:
            order = pa.array(np.argsort(np.concatenate(places)))
            whole = together([*batches, *deletes])
            found.append(Changes(whole.rows.take(order), whole.is_delete.take(order)))

    def _fitting(self, changes: Changes, found: list[Changes], refused: list[Refused]) -> None:
        done, failed = tell_apart(len(changes), lambda start, end: self._checked(part(changes, start, end)))
        found += done
        refused += [Refused(part(changes, place, place + 1), error) for place, error in failed]

    def _checked(self, changes: Changes) -> Changes:
        """The same; a key that is too large is refused before anything is numbered."""
        columns = [changes.rows.column(field.name) for field in self.key_schema]
        variable = [column for column in columns if is_variable(column.type)]
        if variable and len(changes):
            # An escaped byte is two, so nearly always their lengths tell that they can't be too long.
            longest = sum(pc.max(pc.binary_length(column)).as_py() for column in variable)
            if 2 * longest + _FIXED_BYTES * len(columns) > KEY_BYTES_MAX:
                self._codec.encode(columns)
        return changes


_FIXED_BYTES = 17
"""No column of fixed width takes more in a key, nor what stands around a variable one."""


def part(changes: Changes, start: int, end: int) -> Changes:
    """Some of them, not copied."""
    if start == 0 and end == len(changes):
        return changes
    return Changes(changes.rows.slice(start, end - start), changes.is_delete.slice(start, end - start))


def together(parts: Sequence[Changes]) -> Changes:
    """All of them in order, at least one."""
    if len(parts) == 1:
        return parts[0]
    return Changes(
        pa.concat_batches([each.rows for each in parts]), pa.concat_arrays([each.is_delete for each in parts])
    )


def beginning(changes: Changes, rows_max: int, bytes_max: int) -> Changes:
    """As much of them as is small enough, at least one row."""
    piece = part(changes, 0, min(len(changes), rows_max))
    while len(piece) > 1 and piece.rows.nbytes > bytes_max:
        piece = part(piece, 0, len(piece) // 2)
    return piece
