"""Reading of one file of a job: rows that fit the table, and number and reason of each row that does not.

* A row is loaded or left out; an error that concerns all rows, such as a missing column, is an error of the file.
* A column ``_change_type`` says what each row does: ``delete`` deletes, ``update_preimage`` is skipped, all others
  upsert. Without this column every row is an upsert.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import InvalidRequest, SchemaMismatch, StoreError
from kvstore.ingest.formats import UNFIT, Format, Portion, compression_of, decompressed, reader_for
from kvstore.ingest.sources import Source
from logformat.catalog.jobs import SourceFile, TaskCounts
from logformat.log.change import ChangeType
from logformat.rows.changes import Changes
from logformat.rows.keys import KEY_BYTES_MAX, KeyCodec
from logformat.rows.value_bytes import row_bytes

CHANGE_TYPE = "_change_type"
MISFITS_MAX = 10_000
_WORDS = {kind.word for kind in ChangeType}


class Misfit(msgspec.Struct, frozen=True):
    """A row that was left out.

    Attributes:
        file: Path of the file below the source's directory.
        row: Number of the row in the file, from 1, without the header of a CSV file.
        reason: Why the row does not fit.
    """

    file: str
    row: int
    reason: str


@dataclass(frozen=True)
class Columns:
    """Columns that files have: those of the table without the one that it fills itself, and its key."""

    schema: pa.Schema
    key: tuple[str, ...]

    def with_changes(self) -> pa.Schema:
        """The columns with ``_change_type``; the others, but the key, may be null because deletes ignore them."""
        fields = [each if each.name in self.key else each.with_nullable(True) for each in self.schema]
        return pa.schema([*fields, pa.field(CHANGE_TYPE, pa.string())])


@dataclass
class FileRows:
    """Rows read from a file.

    Attributes:
        changes: Rows that fit.
        misfits: Rows that do not fit.
        load_bytes: Approximate bytes of the changes.
    """

    changes: list[Changes] = field(default_factory=list)
    misfits: list[Misfit] = field(default_factory=list)
    counts: TaskCounts = field(default_factory=TaskCounts)
    load_bytes: int = 0

    def add(self, changes: Changes) -> None:
        """Add rows that fit."""
        self.changes.append(changes)
        self.load_bytes += int(row_bytes(changes.rows).sum())


@dataclass(frozen=True)
class FileReader:
    """Reads files of a job; it can be pickled for other processes.

    Attributes:
        bytes_max: Limit of the bytes of a file's rows; reading stops with an error beyond it.
    """

    source: Source
    columns: Columns
    bytes_max: int

    def __call__(self, file: SourceFile) -> FileRows:
        """Read a whole file, provided that it is unchanged since it was listed.

        Raises:
            InvalidRequest: The file was removed or changed, or can't be read; its rows take too much memory, or more
                than ``MISFITS_MAX`` of them do not fit.
            SchemaMismatch: Its columns are not those of the table.
        """
        try:
            return self._read(file)
        except InvalidRequest as error:
            error.where = {"path": file.path, **error.where}
            raise

    def _read(self, file: SourceFile) -> FileRows:
        file_rows, broken = FileRows(), list[tuple[int, str]]()
        compression = compression_of(file.path, self.source.format)
        with self.source.opened(file) as stored:

            def opened() -> BinaryIO:
                stored.seek(0)
                return decompressed(stored, compression)

            reader = reader_for(self.source.format, opened())
            names = reader.names(opened())
            has_changes = CHANGE_TYPE in names
            if has_changes and self.source.format is not Format.JSONL:
                _check_required(names, self.columns.schema)
            schema = self.columns.with_changes() if has_changes else self.columns.schema
            number = 1
            portions = reader.portions(opened(), schema, lambda row, reason: broken.append((row, reason)))
            with closing(portions):
                for portion in portions:
                    for start, part in _parts(portion, self._fitted):
                        if isinstance(part, str):
                            file_rows.misfits.append(Misfit(file.path, number + start, part))
                        else:
                            self._add(file_rows, file, number + start, part)
                            check_bytes(file_rows.load_bytes, self.bytes_max)
                        _check(file_rows, broken)
                    number += portion[0]
        _check(file_rows, broken)
        _renumber(file_rows, broken, file)
        loaded = sum(map(len, file_rows.changes))
        file_rows.counts = TaskCounts(
            scanned_rows=loaded + len(file_rows.misfits),
            loaded_rows=loaded,
            filtered_rows=len(file_rows.misfits),
            load_bytes=file_rows.load_bytes,
        )
        return file_rows

    def _fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged if all their keys are short enough.

        Raises:
            KeyTooLarge: A key is too long for any table.
        """
        key = [rows.column(name) for name in self.columns.key]
        strings = [column for column in key if _is_text(column.type)]
        # A key takes at most twice as many bytes; so the exact test is rarely needed.
        if sum(pc.max(pc.binary_length(column)).as_py() or 0 for column in strings) * 2 + 16 * len(key) > KEY_BYTES_MAX:
            KeyCodec([rows.schema.field(name) for name in self.columns.key]).encode(key)
        return rows

    def _add(self, file_rows: FileRows, file: SourceFile, number: int, rows: pa.RecordBatch) -> None:
        if CHANGE_TYPE not in rows.schema.names:
            file_rows.add(Changes.upserts(rows))
            return
        kinds = rows.column(CHANGE_TYPE)
        rows = rows.remove_column(rows.num_columns - 1)
        is_delete = pc.equal(kinds, ChangeType.DELETE.word).fill_null(False)
        reasons = {"its _change_type is unknown": pc.invert(pc.is_in(kinds, pa.array(sorted(_WORDS))))}
        for each in self.columns.schema:
            if not each.nullable and each.name not in self.columns.key:
                reasons[f"{each.name} is null"] = pc.and_not(rows.column(each.name).is_null(), is_delete)
        kept = np.ones(rows.num_rows, bool)
        for reason, wrong in reasons.items():
            for row in np.flatnonzero(kept & wrong.to_numpy(zero_copy_only=False)):
                file_rows.misfits.append(Misfit(file.path, number + int(row), reason))
                kept[row] = False
        kept &= ~pc.equal(kinds, ChangeType.UPDATE_PREIMAGE.word).fill_null(False).to_numpy(zero_copy_only=False)
        file_rows.add(Changes(rows, is_delete).take(pa.array(np.flatnonzero(kept))))


def _check_required(names: list[str], schema: pa.Schema) -> None:
    """Refuse a file whose rows all lack a column that is not null."""
    if missing := [field.name for field in schema if not field.nullable and field.name not in names]:
        raise SchemaMismatch(
            "A column is missing; only a nullable column may be left out.", missing=missing, given=names
        )


def check_bytes(size: int, bytes_max: int) -> None:
    """Verify that rows are not too large for memory and for one commit.

    Raises:
        InvalidRequest: They are too large.
    """
    if size > bytes_max:
        raise InvalidRequest(
            "The rows of a task take more than one commit may hold; alter max_files or max_bytes, or split the file.",
            bytes_max=bytes_max,
        )


def _parts(
    portion: Portion, check: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> Iterator[tuple[int, pa.RecordBatch | str]]:
    """First row of each part of a portion, with the part: consecutive rows that fit, or why one row does not."""
    rows, fit = portion
    waiting = [(0, rows)]
    while waiting:
        start, stop = waiting.pop()
        try:
            part = check(fit(start, stop))
        except UNFIT as error:
            if stop - start == rows:
                fit(0, 0)  # raises an error that concerns all rows
            if stop - start > 1:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
            else:
                yield start, _reason(error)
        else:
            yield start, part


def _reason(error: Exception) -> str:
    if isinstance(error, StoreError):
        about = {
            name: error.where[name]
            for name in ("column", "unknown", "missing", "expected", "reason")
            if name in error.where
        }
        return " ".join([error.message, *(f"{name}={value}" for name, value in about.items())])
    return f"It can't be read: {error}"


def _check(file_rows: FileRows, broken: list[tuple[int, str]]) -> None:
    if len(file_rows.misfits) + len(broken) > MISFITS_MAX:
        raise InvalidRequest(
            f"More than {MISFITS_MAX} rows of a file do not fit; check the file.",
            row=file_rows.misfits[-1].row if file_rows.misfits else broken[-1][0],
            reason=file_rows.misfits[-1].reason if file_rows.misfits else broken[-1][1],
        )


def _renumber(file_rows: FileRows, broken: list[tuple[int, str]], file: SourceFile) -> None:
    """Count the rows that could not be parsed, too: they shift the numbers of all rows after them."""
    if broken:
        ahead = [row - nth for nth, (row, _) in enumerate(broken)]
        misfits = [
            Misfit(file.path, each.row + bisect_right(ahead, each.row), each.reason) for each in file_rows.misfits
        ]
        misfits += [Misfit(file.path, row, reason) for row, reason in broken]
        file_rows.misfits = sorted(misfits, key=lambda each: each.row)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
