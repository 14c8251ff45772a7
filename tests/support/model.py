"""What a table with one bucket must do, one row at a time: a dict, a list, and no cleverness."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from kvstore import errors
from tests.support.engines_model import EngineModel, Overflow

Row = dict[str, Any]
Operation = tuple[str, Row]
"""``("upsert", row)`` or ``("delete", row with the key)``."""

WINDOW = 5
SEQUENCE_MAX = 2**31 - 1


@dataclass
class Answer:
    """What a batch is answered."""

    first_offset: int
    last_offset: int
    duplicated: bool


class Refused(Exception):
    """The batch is refused; the table must say so with this error."""

    def __init__(self, error: type[errors.StoreError] = errors.OutOfOrderSequence) -> None:
        super().__init__(error.__name__)
        self.error = error


@dataclass(frozen=True)
class Rules:
    """What a table was created with; see ``Store.create_table``. Without a key it is a log table."""

    engine: EngineModel
    image: str = "full"
    delete_behavior: str = "allow"
    auto_increment: str | None = None
    skip_identical: bool = False

    @property
    def names(self) -> list[str]:
        return list(self.engine.schema.names)

    @property
    def last_id(self) -> int:
        return int(np.iinfo(self.engine.schema.field(self.auto_increment).type.to_pandas_dtype()).max)


DEFAULTS = Rules(EngineModel("last_row", pa.schema([]), ()))


@dataclass
class Model:
    """State of a table.

    Attributes:
        rows: By key.
        log: ``(offset, change type, row, first offset of its batch)``.
        sent: For each writer its batches, oldest first.
        rules: Left out, those of a table created with nothing but columns and a key.
    """

    key: tuple[str, ...]
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    log: list[tuple[int, str, Row, int]] = field(default_factory=list)
    end: int = 0
    sent: dict[int, list[tuple[int, Answer]]] = field(default_factory=dict)
    rules: Rules = DEFAULTS
    next_id: int = 1

    def next_sequence(self, writer: int) -> int:
        sent = self.sent.get(writer)
        return 0 if not sent or sent[-1][0] == SEQUENCE_MAX else sent[-1][0] + 1

    @property
    def count(self) -> int:
        return len(self.rows) if self.key else len(self.log)

    def add_columns(self, schema: pa.Schema) -> None:
        """The table has the columns of ``schema`` from now on; in what is there, those it lacks are null."""
        self.rules = replace(self.rules, engine=replace(self.rules.engine, schema=schema))
        for row in (*self.rows.values(), *(change[2] for change in self.log)):
            for name in schema.names:
                row.setdefault(name, None)

    def apply(
        self,
        operations: Sequence[Operation],
        writer: int = -1,
        sequence: int = -1,
        *,
        columns: Collection[str] | None = None,
        overwrite: bool = False,
    ) -> Answer:
        """One batch. Columns that its rows lack, be it that their schema is older, are null."""
        targets = self._targets(columns, overwrite)
        if not overwrite and self.rules.delete_behavior != "allow":
            upserts = [operation for operation in operations if operation[0] == "upsert"]
            if self.rules.delete_behavior == "disable" and len(upserts) < len(operations):
                raise Refused(errors.DeletionDisabled)
            operations = upserts
        if writer >= 0:
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
        return answer

    def _targets(self, columns: Collection[str] | None, overwrite: bool) -> frozenset[str] | None:
        """The columns of a partial batch; None if it is about whole rows."""
        if columns is None or set(columns) | {self.rules.auto_increment} >= set(self.rules.names):
            return None
        if not overwrite and (self.rules.engine.spec == "first_row" or "versioned" in self.rules.engine.spec):
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
            merged = engine.delete(before, targets and targets | {self.rules.auto_increment})
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
        """``(offset, change type, row before, row after, first offset of its batch)``."""
        found = []
        before = None
        for at, kind, row, version in self.log:
            if kind == "update_preimage":
                before = row
                continue
            after = None if kind == "delete" else row
            if start <= at < end:
                found.append((at, kind, row if after is None else before, after, version))
            before = None
        return found

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
