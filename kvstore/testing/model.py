"""The model of a table with one bucket: it takes one row at a time, into a dict and a list.

It knows nothing of the store, its files or its batches of columns. So where both agree, both are right.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from kvstore import errors
from kvstore.testing.engine_model import EngineModel, Overflow

Row = dict[str, Any]
Operation = tuple[str, Row]
"""``("upsert", row)`` or ``("delete", row with the key)``."""

WINDOW = 5
"""How many of a writer's last batches are remembered."""
SEQUENCE_MAX = 2**31 - 1
"""The last sequence; 0 follows."""


@dataclass
class Answer:
    """The answer to a batch.

    Attributes:
        first_offset: Offset of its first change, or the one offset that a batch without effect took.
        last_offset: Offset of its last change, inclusive.
        duplicated: Whether the batch was there before; then the offsets are those it got the first time.
    """

    first_offset: int
    last_offset: int
    duplicated: bool


class Refused(Exception):
    """The batch is refused, and nothing of it is in the model.

    Attributes:
        error: The class of the error that a table must raise.
    """

    def __init__(self, error: type[errors.StoreError] = errors.OutOfOrderSequence) -> None:
        super().__init__(error.__name__)
        self.error = error


@dataclass(frozen=True)
class Rules:
    """Options of a table; see :meth:`kvstore.Store.create_table`.

    Attributes:
        engine: The merge engine, and the table's columns.
        image: ``full``: an update is two changes. ``wal``: it is one.
        delete_behavior: ``allow``, ``ignore`` or ``disable``.
        auto_increment: The column that the table fills.
        skip_identical: Whether an update to the same row is no change.
    """

    engine: EngineModel
    image: str = "full"
    delete_behavior: str = "allow"
    auto_increment: str | None = None
    skip_identical: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.engine.schema.names)

    @property
    def last_id(self) -> int:
        """The largest number that the column ``auto_increment`` can hold."""
        return int(np.iinfo(self.engine.schema.field(self.auto_increment).type.to_pandas_dtype()).max)


DEFAULTS = Rules(EngineModel("last_row", pa.schema([]), ()))


@dataclass
class Model:
    """A table with one bucket as a dict of rows and a list of changes.

    Compare a table with it: apply the same batches to both, then compare rows, changes and answers.

    Attributes:
        key: Names of the key's columns; an empty tuple for a log table, to which rows are appended.
        rows: Rows by key.
        log: Changes: ``(offset, change type, row, first offset of its batch)``.
        end: The offset that the next change gets.
        sent: For each writer its batches, oldest first: ``(sequence, answer)``.
        rules: Options of the table; left out, those of a table with nothing but columns and a key.
        next_id: The number that the column ``auto_increment`` gets next.
        epochs: For each writer the lowest epoch that is not fenced.
    """

    key: tuple[str, ...]
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    log: list[tuple[int, str, Row, int]] = field(default_factory=list)
    end: int = 0
    sent: dict[int, list[tuple[int, Answer]]] = field(default_factory=dict)
    rules: Rules = DEFAULTS
    next_id: int = 1
    epochs: dict[int, int] = field(default_factory=dict)

    def next_sequence(self, writer: int) -> int:
        """The sequence of the next batch of a writer."""
        sent = self.sent.get(writer)
        return 0 if not sent or sent[-1][0] == SEQUENCE_MAX else sent[-1][0] + 1

    def fence(self, writer: int, epoch: int) -> None:
        """Refuse batches of lower epochs of a writer from now on."""
        self.epochs[writer] = max(epoch, self.epochs.get(writer, 0))

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.rows) if self.key else len(self.log)

    def add_columns(self, schema: pa.Schema) -> None:
        """Give the table the columns of ``schema``; in rows and changes that are there, the new ones are null."""
        self.rules = replace(self.rules, engine=replace(self.rules.engine, schema=schema))
        for row in (*self.rows.values(), *(change[2] for change in self.log)):
            for name in schema.names:
                row.setdefault(name, None)

    def apply(
        self,
        operations: Sequence[Operation],
        writer: int = -1,
        sequence: int = -1,
        epoch: int = 0,
        *,
        columns: Collection[str] | None = None,
        known: Collection[str] | None = None,
        overwrite: bool = False,
    ) -> Answer:
        """Apply one batch; columns that its rows lack are null.

        Args:
            operations: Upserts and deletes, in order.
            writer: The writer of the batch; -1 for none.
            sequence: The number of the batch among its writer's.
            epoch: Incarnation of the writer.
            columns: Columns that the batch sets; all if None.
            known: Columns of the table when the batch was made; those that it has now if None.
            overwrite: Whether rows are stored as they come, whatever the merge engine.

        Raises:
            Refused: A batch is missing before this one, its epoch is fenced, or its content is refused. Nothing of it
                is in the model.
        """
        targets = self._targets(columns, known or self.rules.names, overwrite)
        if not overwrite and self.rules.delete_behavior != "allow":
            upserts = [operation for operation in operations if operation[0] == "upsert"]
            if self.rules.delete_behavior == "disable" and len(upserts) < len(operations):
                raise Refused(errors.DeletionDisabled)
            operations = upserts
        if writer >= 0:
            if epoch < self.epochs.get(writer, 0):
                raise Refused(errors.WriterFenced)
            for sent, answer in self.sent.get(writer, [])[-WINDOW:]:
                if sent == sequence:
                    return Answer(answer.first_offset, answer.last_offset, duplicated=True)
            if sequence != self.next_sequence(writer):
                raise Refused
        first, before = self.end, (dict(self.rows), list(self.log), self.end, self.next_id)
        try:
            for kind, row in operations:
                self._one(kind, row, first, targets, overwrite)
        except (Overflow, Refused) as error:
            self.rows, self.log, self.end, self.next_id = before
            raise error if isinstance(error, Refused) else Refused(errors.AggregateOverflow) from None
        self.end = max(self.end, first + 1)  # a batch without changes takes one offset
        answer = Answer(first, self.end - 1, duplicated=False)
        if writer >= 0:
            self.sent.setdefault(writer, []).append((sequence, answer))
            self.fence(writer, epoch)
        return answer

    def _targets(
        self, columns: Collection[str] | None, known: Collection[str], overwrite: bool
    ) -> frozenset[str] | None:
        """The columns of a partial batch; None if it is about whole rows."""
        if columns is None or {*self.rules.names} <= {*columns, self.rules.auto_increment}:
            return None
        spec = self.rules.engine.spec
        takes_targets = overwrite or not (spec == "first_row" or "versioned" in spec)
        if {*known} <= {*columns, self.rules.auto_increment}:  # columns that came later stay as they are
            return frozenset(columns) if takes_targets else None
        if not takes_targets:
            raise Refused(errors.UnsupportedOperation)
        fields = [self.rules.engine.schema.field(name) for name in self.rules.names if name not in self.key]
        if any(not field.nullable and field.name != self.rules.auto_increment for field in fields):
            raise Refused(errors.InvalidTargetColumns)
        return frozenset(columns)

    def _one(self, kind: str, given: Row, version: int, targets: frozenset[str] | None, overwrite: bool) -> None:
        row = dict.fromkeys(self.rules.names) | given
        if not self.key:
            return self._change("append", row, version)
        key = tuple(row[name] for name in self.key)
        before = self.rows.get(key)
        engine = replace(self.rules.engine, spec="last_row") if overwrite else self.rules.engine
        if kind == "delete":
            # A row is nothing without a value that can't be null.
            values = () if targets is None else targets - set(self.key)
            if not all(self.rules.engine.schema.field(name).nullable for name in values):
                targets = None
            merged = engine.delete(before, targets and {*targets, *filter(None, [self.rules.auto_increment])})
        else:
            merged = engine.upsert(before, row, targets)
        if merged is before:
            return None
        after = self._numbered(before, merged)
        if self.rules.skip_identical and before is not None and after is not None and repr(before) == repr(after):
            return None
        # Without preimages, the row before is not read where nothing depends on it.
        looks = self.rules.image == "full" or targets is not None or self.rules.auto_increment is not None
        tells_inserts = looks or engine.spec != "last_row"
        if after is None:
            assert before is not None
            self._change("delete", before, version)
            del self.rows[key]
            return None
        if before is not None and self.rules.image == "full":
            self._change("update_preimage", before, version)
        self._change("insert" if before is None and tells_inserts else "update_postimage", after, version)
        self.rows[key] = after
        return None

    def _numbered(self, before: Row | None, after: Row | None) -> Row | None:
        """A new row has the next id, any other the one it had, unless it brings one of its own."""
        name = self.rules.auto_increment
        if name is None or after is None:
            return after
        if after[name] is None:
            after = {**after, name: self.next_id if before is None else before[name]}
            if after[name] > self.rules.last_id:
                raise Refused(errors.InvalidRequest)
        self.next_id = max(self.next_id, after[name] + 1)
        return after

    def _change(self, kind: str, row: Row, version: int) -> None:
        self.log.append((self.end, kind, row, version))
        self.end += 1

    def binlog(self, start: int, end: int) -> list[tuple[int, str, Row | None, Row | None, int]]:
        """The binlog: ``(offset, change type, row before, row after, first offset of its batch)``."""
        events = []
        before = None
        for at, kind, row, version in self.log:
            if kind == "update_preimage":
                before = row
                continue
            after = None if kind == "delete" else row
            if start <= at < end:
                events.append((at, kind, row if after is None else before, after, version))
            before = None
        return events

    def as_of(self, offset: int) -> dict[tuple[Any, ...], Row]:
        """Rows after all changes before an offset; between the halves of an update, the row is still the old one."""
        rows: dict[tuple[Any, ...], Row] = {}
        for at, kind, row, _ in self.log:
            if at >= offset:
                break
            key = tuple(row[name] for name in self.key)
            if kind == "delete":
                del rows[key]
            else:
                rows[key] = row
        return rows
