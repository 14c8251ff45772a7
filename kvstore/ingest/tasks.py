"""Rows of one task: collected from its files and counted; rows that do not fit are listed in a side file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from kvstore.disk.files import Files, refusals
from kvstore.errors import InvalidRequest
from kvstore.ingest.reading import MISFITS_MAX, Columns, FileRows, Misfit, check_bytes
from kvstore.process.calls import uninterrupted
from kvstore.request.preparation import ROWS_BYTES_MAX
from kvstore.table.table import Table
from logformat.catalog.jobs import JobOptions, SourceFile, TaskCounts
from logformat.rows.changes import Changes
from logformat.rows.intake import empty

TASK_BYTES_MAX = 2**31 - 1
"""Limit of a task's rows in memory: Arrow has no longer columns of text."""


@dataclass
class TaskRows:
    """Contents of the files of a task, in the order of the files.

    Attributes:
        changes: Rows that fit.
        misfits: Rows that do not fit.
        counts: Sums over all files.
    """

    changes: list[Changes] = field(default_factory=list)
    misfits: list[Misfit] = field(default_factory=list)
    counts: TaskCounts = field(default_factory=TaskCounts)

    def together(self, schema: pa.Schema) -> Changes:
        """All changes in one batch, for a table of this schema."""
        if not self.changes:
            return Changes.upserts(empty(schema))
        # With deletes, columns that are not nullable may have nulls.
        shared = next((each.rows.schema for each in self.changes if each.rows.schema != schema), schema)
        rows = [pa.RecordBatch.from_arrays(each.rows.columns, schema=shared) for each in self.changes]
        return Changes(pa.concat_batches(rows), pa.concat_arrays([each.is_delete for each in self.changes]))

    def check(self, options: JobOptions, rejected: Path) -> None:
        """Verify that not too many rows are left out.

        Raises:
            InvalidRequest: More rows are left out than the options allow.
        """
        counts = self.counts
        if counts.filtered_rows > options.max_filter_ratio * counts.scanned_rows:
            misfit = self.misfits[0]
            raise InvalidRequest(
                "More rows do not fit than max_filter_ratio allows; check the files, or alter the job.",
                filtered_rows=counts.filtered_rows,
                scanned_rows=counts.scanned_rows,
                max_filter_ratio=options.max_filter_ratio,
                rejected=rejected,
                first=f"{misfit.file}, row {misfit.row}: {misfit.reason}",
            )


def columns_of(table: Table) -> Columns:
    """Columns that files must have: those of the table without the one that it fills itself."""
    fields = [each for each in table.schema if each.name != table.options.auto_increment]
    return Columns(pa.schema(fields), table.primary_key or ())


def bytes_max_of(table: Table) -> int:
    """Limit of the bytes of a task's rows."""
    return min(table.buckets * ROWS_BYTES_MAX, TASK_BYTES_MAX)


def gathered(
    reads: Iterable[FileRows], files: Sequence[SourceFile], bytes_max: int, read: Callable[[int], None]
) -> TaskRows:
    """Collect the rows of files, in the order of the files.

    Args:
        bytes_max: Limit of the bytes of all rows.
        read: Called with the size of each file after it was read.

    Raises:
        InvalidRequest: More than ``MISFITS_MAX`` rows do not fit, or the rows have too many bytes; or see
            :class:`kvstore.ingest.reading.FileReader`.
    """
    task_rows = TaskRows()
    for file, rows in zip(files, reads, strict=True):
        task_rows.changes += [changes for changes in rows.changes if len(changes)]
        task_rows.misfits += rows.misfits
        task_rows.counts = _sum(task_rows.counts, rows.counts)
        check_bytes(task_rows.counts.load_bytes, bytes_max)
        if len(task_rows.misfits) > MISFITS_MAX:
            last = task_rows.misfits[-1]
            raise InvalidRequest(
                f"More than {MISFITS_MAX} rows of a task do not fit; check the files.",
                path=last.file,
                row=last.row,
                reason=last.reason,
            )
        read(file.size)
    return task_rows


@uninterrupted
def write_rejected(path: Path, misfits: Sequence[Misfit], files: Files) -> None:
    """Write the side file of the rows that were left out, one JSON object per line; without such rows, remove it.

    Raises:
        StoreFull, LogFailed: The disk is full or failed.
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
