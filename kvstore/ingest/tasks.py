"""The rows of one task: read, counted, and brought together; what does not fit stands in a side file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from kvstore.calls import uninterrupted
from kvstore.errors import InvalidRequest
from kvstore.files import Files, refusals
from kvstore.ingest.reading import MISFITS_MAX, Columns, FileRows, Misfit, check_bytes
from kvstore.request.preparation import ROWS_BYTES_MAX
from kvstore.table.table import Table
from logformat.catalog.jobs import JobOptions, SourceFile, TaskCounts
from logformat.rows.changes import Changes
from logformat.rows.intake import empty

TASK_BYTES_MAX = 2**31 - 1
"""Rows of a task take no more in memory: Arrow has no longer columns of text."""


@dataclass
class TaskRows:
    """What the files of a task hold, in their order.

    Attributes:
        counts: Over all files.
    """

    changes: list[Changes] = field(default_factory=list)
    misfits: list[Misfit] = field(default_factory=list)
    counts: TaskCounts = field(default_factory=TaskCounts)

    def together(self, schema: pa.Schema) -> Changes:
        """All of it as one: changes to a table of this schema."""
        if not self.changes:
            return Changes.upserts(empty(schema))
        # Where there are deletes, columns may hold nulls that take none otherwise.
        shared = next((each.rows.schema for each in self.changes if each.rows.schema != schema), schema)
        rows = [pa.RecordBatch.from_arrays(each.rows.columns, schema=shared) for each in self.changes]
        return Changes(pa.concat_batches(rows), pa.concat_arrays([each.is_delete for each in self.changes]))

    def check(self, options: JobOptions, rejected: Path) -> None:
        """See that no more rows are left out than may be.

        Raises:
            InvalidRequest: They are.
        """
        counts = self.counts
        if counts.filtered_rows > options.max_filter_ratio * counts.scanned_rows:
            first = self.misfits[0]
            raise InvalidRequest(
                "More rows do not fit than max_filter_ratio allows; see to the files, or alter the job.",
                filtered_rows=counts.filtered_rows,
                scanned_rows=counts.scanned_rows,
                max_filter_ratio=options.max_filter_ratio,
                rejected=rejected,
                first=f"{first.file}, row {first.row}: {first.reason}",
            )


def columns_of(table: Table) -> Columns:
    """What files give a table: all but the column it fills."""
    fields = [each for each in table.schema if each.name != table.options.auto_increment]
    return Columns(pa.schema(fields), table.primary_key or ())


def bytes_max_of(table: Table) -> int:
    """How many bytes the rows of a task may take."""
    return min(table.buckets * ROWS_BYTES_MAX, TASK_BYTES_MAX)


def gathered(
    reads: Iterable[FileRows], files: Sequence[SourceFile], bytes_max: int, read: Callable[[int], None]
) -> TaskRows:
    """What was read of files, in their order.

    Args:
        bytes_max: Rows of all of them may take so many.
        read: Told the size of each file that was.

    Raises:
        InvalidRequest: More than ``MISFITS_MAX`` rows do not fit, or the rows are too many; or see
            :class:`kvstore.ingest.reading.FileReader`.
    """
    found = TaskRows()
    for file, rows in zip(files, reads, strict=True):
        found.changes += [changes for changes in rows.changes if len(changes)]
        found.misfits += rows.misfits
        found.counts = _sum(found.counts, rows.counts)
        check_bytes(found.counts.load_bytes, bytes_max)
        if len(found.misfits) > MISFITS_MAX:
            last = found.misfits[-1]
            raise InvalidRequest(
                f"More than {MISFITS_MAX} rows of a task do not fit; see to the files.",
                path=last.file,
                row=last.row,
                reason=last.reason,
            )
        read(file.size)
    return found


@uninterrupted
def write_rejected(path: Path, misfits: Sequence[Misfit], files: Files) -> None:
    """Have a side file say what was left out, a JSON object a line; without misfits there is none.

    Raises:
        StoreFull, LogFailed: The disk refused.
    """
    with refusals(path):
        if misfits:
            files.make_directory(path.parent)
            files.publish(path, b"".join(msgspec.json.encode(each) + b"\n" for each in misfits))
        elif path.exists():
            files.remove(path)


def _sum(one: TaskCounts, other: TaskCounts) -> TaskCounts:
    return TaskCounts(
        scanned_rows=one.scanned_rows + other.scanned_rows,
        loaded_rows=one.loaded_rows + other.loaded_rows,
        filtered_rows=one.filtered_rows + other.filtered_rows,
        load_bytes=one.load_bytes + other.load_bytes,
    )
