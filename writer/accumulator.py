"""Accumulator: gathers the changes of each bucket into batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import pyarrow as pa

from logformat.errors import SchemaMismatch
from logformat.rows.changes import Changes
from writer.intake import Intake, Item, Key, Whole, beginning, part, together
from writer.options import WriterOptions
from writer.refused import Refused, tell_apart
from writer.target import TargetTable


class Pile:
    """Changes that wait for a batch of one bucket, all of one schema."""

    def __init__(self, schema_id: int) -> None:
        self.schema_id = schema_id
        self.parts: list[Changes] = []
        self.rows = self.size = 0

    def add(self, changes: Changes, size: int) -> None:
        """Add changes of ``size`` bytes."""
        self.parts.append(changes)
        self.rows += len(changes)
        self.size += size


class Made(NamedTuple):
    """A complete batch of one bucket.

    Attributes:
        schema_id: Schema of the rows.
        size: Size in bytes, as counted while gathering.
    """

    bucket: int
    changes: Changes
    schema_id: int
    size: int


class Accumulator:
    """Converts items to batches; used by one thread.

    Attributes:
        batches: Complete batches in order; the caller removes them.
        gathered: Bytes of all changes that ever reached a bucket's pile.
        refused: Rows that fit no batch, since the caller last emptied this list.
    """

    def __init__(self, table: TargetTable, options: WriterOptions) -> None:
        self.batches: deque[Made] = deque()
        self.refused: list[Refused] = []
        self.gathered = 0
        self._table = table
        self._options = options
        self._piles: dict[int, Pile] = {}
        self._turn = count()
        self._intake = self._intake_of(columns_of(table))
        self._items: list[Item] = []
        self._whole: deque[Whole] = deque()

    @property
    def waiting(self) -> int:
        """Number of rows in incomplete batches."""
        return sum(pile.rows for pile in self._piles.values())

    def take(self, items: list[Item]) -> None:
        """Distribute items over the buckets.

        Raises:
            StoreError: The table is gone. Items that are neither in a batch nor refused are in :meth:`left_over`.
        """
        self._items += items
        columns = columns_of(self._table)
        if columns.schema_id != self._intake.schema_id:
            self._intake = self._intake_of(columns)
        self._convert()
        while self._whole:
            self._spread(self._whole[0])
            self._whole.popleft()

    def seal(self) -> None:
        """Turn all incomplete batches into complete ones."""
        for bucket in list(self._piles):
            self._seal(bucket)

    def left_over(self, items: list[Item]) -> list[Changes]:
        """Everything that is in no batch, including ``items``; called when the writer can send nothing more.

        It does not raise: rows that can't be converted are added to ``refused``.
        """
        self._items += items
        try:
            self._convert()
        except Exception:  # code of a user-defined value may raise anything
            self._convert_each()
        return [changes for pile in self._piles.values() for changes in pile.parts] + [
            whole.changes for whole in self._whole
        ]

    def _convert(self) -> None:
        converted, refused = self._intake.changes(self._items)
        self._items = []
        self._whole += converted
        self.refused += refused

    def _convert_each(self) -> None:
        items, self._items = self._items, []
        for item in items:
            try:
                converted, refused = self._intake.changes([item])
            except Exception as error:  # as above; the error is reported with its row
                if isinstance(item, Whole):
                    self._whole.append(item)
                    continue
                misfit = SchemaMismatch("The writer ended while it converted this row.", reason=repr(error))
                misfit.__cause__ = error
                converted, refused = [], [Refused([item.key if isinstance(item, Key) else item], misfit)]
            self._whole += converted
            self.refused += refused

    def _intake_of(self, columns: Columns) -> Intake:
        return Intake(*columns)

    def _spread(self, whole: Whole) -> None:
        changes, schema_id, _ = whole
        other = next(self._turn) % self._table.buckets
        done, failed = tell_apart(
            len(changes),
            lambda start, end: self._table.by_bucket(part(changes, start, end), other, schema_id=schema_id),
        )
        self.refused += [Refused(part(changes, row, row + 1), error) for row, error in failed]
        for by_bucket in done:
            for bucket, belonging in by_bucket.items():
                self._gather(bucket, belonging, schema_id)

    def _gather(self, bucket: int, changes: Changes, schema_id: int) -> None:
        options = self._options
        start = 0
        while start < len(changes):
            pile = self._piles.setdefault(bucket, Pile(schema_id))
            if pile.schema_id != schema_id:
                self._seal(bucket)  # a batch has rows of one schema
                continue
            rest = part(changes, start, len(changes))
            piece = beginning(rest, options.batch_rows - pile.rows, options.batch_bytes)
            size = piece.rows.nbytes
            if pile.rows and pile.size + size > options.batch_bytes:
                self._seal(bucket)
                continue
            pile.add(piece, size)
            self.gathered += size
            start += len(piece)
            if pile.rows >= options.batch_rows or pile.size >= options.batch_bytes:
                self._seal(bucket)

    def _seal(self, bucket: int) -> None:
        pile = self._piles.get(bucket)
        if pile is not None:
            self.batches.append(Made(bucket, together(pile.parts), pile.schema_id, pile.size))
            del self._piles[bucket]


class Columns(NamedTuple):
    """Columns of a given row, without the auto-increment column, the id of their schema, and the key's columns."""

    schema: pa.Schema
    schema_id: int
    key: Sequence[str]


def columns_of(table: TargetTable) -> Columns:
    """The table's current columns."""
    schema_id = table.schema_id
    while True:
        schema, key, automatic = table.schema, table.primary_key or (), table.options.auto_increment
        before, schema_id = schema_id, table.schema_id
        if schema_id == before:
            break  # no column was changed in between
    given = schema if automatic is None else pa.schema([f for f in schema if f.name != automatic])
    return Columns(given, schema_id, key)
