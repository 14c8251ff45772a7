"""A file as rows of a table: those that fit, and of each that does not, where it stands and why.

* A row is loaded or filtered; what is wrong with all rows of a file, such as a column that is missing, is the file's
  fault and not a row's.
* With a column ``_change_type`` in it, a file says of each row what it does: ``delete`` deletes, ``update_preimage`` is
  skipped, the rest upsert. Without it every row is an upsert.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import InvalidRequest, StoreError
from kvstore.ingest.formats import UNFIT, Piece, reader_of
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
        file: Its path below the source's directory.
        row: Its number in the file, from 1; the heading of a CSV file is none.
        reason: Why it does not fit.
    """

    file: str
    row: int
    reason: str


@dataclass(frozen=True)
class Columns:
    """What a table is given: its columns but the one it fills, and which of them are its key."""

    schema: pa.Schema
    key: tuple[str, ...]

    def with_changes(self) -> pa.Schema:
        """The same beside a column that says what rows do; what a delete has in the others does not matter."""
        fields = [each if each.name in self.key else each.with_nullable(True) for each in self.schema]
        return pa.schema([*fields, pa.field(CHANGE_TYPE, pa.string())])


@dataclass
class FileRows:
    """What was read of a file.

    Attributes:
        load_bytes: Of the changes, about.
    """

    changes: list[Changes] = field(default_factory=list)
    misfits: list[Misfit] = field(default_factory=list)
    counts: TaskCounts = field(default_factory=TaskCounts)
    load_bytes: int = 0

    def add(self, changes: Changes) -> None:
        """Add some more."""
        self.changes.append(changes)
        self.load_bytes += int(row_bytes(changes.rows).sum())


@dataclass(frozen=True)
class FileReader:
    """Reads files of a job; it can be sent to other processes.

    Attributes:
        bytes_max: The rows of a file take no more, or it is not read to its end.
    """

    source: Source
    columns: Columns
    bytes_max: int

    def __call__(self, file: SourceFile) -> FileRows:
        """All of a file, as it was listed.

        Raises:
            InvalidRequest: It is gone, changed, or can't be read; its rows take too much memory, or more than
                ``MISFITS_MAX`` of them do not fit.
            SchemaMismatch: Its columns are not those of the table.
        """
        try:
            return self._read(file)
        except InvalidRequest as error:
            error.where = {"path": file.path, **error.where}
            raise

    def _read(self, file: SourceFile) -> FileRows:
        found, broken = FileRows(), list[tuple[int, str]]()
        reader = reader_of(self.source.format)
        with self.source.opened(file) as opened:
            has_changes = CHANGE_TYPE in reader.names(opened)
            opened.seek(0)
            schema = self.columns.with_changes() if has_changes else self.columns.schema
            first = 1
            for piece in reader.pieces(opened, schema, lambda row, reason: broken.append((row, reason))):
                for start, part in _parts(piece, self._fitted):
                    if isinstance(part, str):
                        found.misfits.append(Misfit(file.path, first + start, part))
                    else:
                        self._add(found, file, first + start, part)
                        check_bytes(found.load_bytes, self.bytes_max)
                    _check(found, broken)
                first += piece[0]
        _check(found, broken)
        _number_again(found, broken, file)
        loaded = sum(map(len, found.changes))
        found.counts = TaskCounts(
            scanned_rows=loaded + len(found.misfits),
            loaded_rows=loaded,
            filtered_rows=len(found.misfits),
            load_bytes=found.load_bytes,
        )
        return found

    def _fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows.

        Raises:
            KeyTooLarge: One has a key that no table takes.
        """
        key = [rows.column(name) for name in self.columns.key]
        strings = [column for column in key if _is_text(column.type)]
        # Twice as many bytes is the most that a key takes; nearly always that is few.
        if sum(_longest(column) for column in strings) * 2 + 16 * len(key) > KEY_BYTES_MAX:
            KeyCodec([rows.schema.field(name) for name in self.columns.key]).encode(key)
        return rows

    def _add(self, found: FileRows, file: SourceFile, first: int, rows: pa.RecordBatch) -> None:
        if CHANGE_TYPE not in rows.schema.names:
            found.add(Changes.upserts(rows))
            return
        kinds = rows.column(CHANGE_TYPE)
        rows = rows.remove_column(rows.num_columns - 1)
        is_delete = pc.equal(kinds, ChangeType.DELETE.word).fill_null(False)
        reasons = {"it does not say what it does": pc.invert(pc.is_in(kinds, pa.array(sorted(_WORDS))))}
        for each in self.columns.schema:
            if not each.nullable and each.name not in self.columns.key:
                reasons[f"{each.name} is null"] = pc.and_not(rows.column(each.name).is_null(), is_delete)
        kept = np.ones(rows.num_rows, bool)
        for reason, wrong in reasons.items():
            for place in np.flatnonzero(kept & wrong.to_numpy(zero_copy_only=False)):
                found.misfits.append(Misfit(file.path, first + int(place), reason))
                kept[place] = False
        kept &= ~pc.equal(kinds, ChangeType.UPDATE_PREIMAGE.word).fill_null(False).to_numpy(zero_copy_only=False)
        found.add(Changes(rows, is_delete).take(pa.array(np.flatnonzero(kept))))


def check_bytes(size: int, bytes_max: int) -> None:
    """See that rows are not too many for memory and for one commit.

    Raises:
        InvalidRequest: They are.
    """
    if size > bytes_max:
        raise InvalidRequest(
            "The rows of a task take more than one commit may hold; alter max_files or max_bytes, or split the file.",
            bytes_max=bytes_max,
        )


def _parts(
    piece: Piece, check: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> Iterator[tuple[int, pa.RecordBatch | str]]:
    """Where parts of a piece begin: rows that fit, as many as stand together, or why one does not."""
    rows, fit = piece
    waiting = [(0, rows)]
    while waiting:
        start, stop = waiting.pop()
        try:
            found = check(fit(start, stop))
        except UNFIT as error:
            if stop - start == rows:
                fit(0, 0)  # raises what is no row's fault
            if stop - start > 1:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
            else:
                yield start, _reason(error)
        else:
            yield start, found


def _reason(error: Exception) -> str:
    if isinstance(error, StoreError):
        about = {name: error.where[name] for name in ("column", "expected", "reason") if name in error.where}
        return " ".join([error.message, *(f"{name}={value}" for name, value in about.items())])
    return f"It can't be read: {error}"


def _check(found: FileRows, broken: list[tuple[int, str]]) -> None:
    if len(found.misfits) + len(broken) > MISFITS_MAX:
        raise InvalidRequest(
            f"More than {MISFITS_MAX} rows of a file do not fit; see to the file.",
            row=found.misfits[-1].row if found.misfits else broken[-1][0],
            reason=found.misfits[-1].reason if found.misfits else broken[-1][1],
        )


def _number_again(found: FileRows, broken: list[tuple[int, str]], file: SourceFile) -> None:
    """Count rows that were none too, as those behind them were not told of them."""
    if broken:
        ahead = [row - place for place, (row, _) in enumerate(broken)]
        misfits = [Misfit(file.path, each.row + bisect_right(ahead, each.row), each.reason) for each in found.misfits]
        misfits += [Misfit(file.path, row, reason) for row, reason in broken]
        found.misfits = sorted(misfits, key=lambda each: each.row)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _longest(column: pa.Array) -> int:
    return pc.max(pc.binary_length(column)).as_py() or 0
