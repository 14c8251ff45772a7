"""Ingestion jobs (docs/format.md, Ingestion jobs): structs shared by the edits, state and images of the catalog."""

from __future__ import annotations

from typing import Literal

import msgspec

FileFormat = Literal["parquet", "arrow", "csv", "jsonl"]
JobState = Literal["waiting", "running", "pausing", "paused"]


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a job."""


class JobOptions(_Struct, frozen=True, kw_only=True):
    """Options of a job.

    Attributes:
        max_files, max_bytes: Limits of the files of one task; it takes at least one file, however large.
        max_filter_ratio: Largest share of a task's rows that may be left out because they do not fit the table.
    """

    max_files: int = 256
    max_bytes: int = 64 << 20
    max_filter_ratio: float = 0.0


class SourceFile(_Struct, frozen=True, kw_only=True):
    """A file as the source listed it.

    Attributes:
        path: Relative to the source's directory.
        size: Bytes.
        tag: Changes with every change of the file, as far as the file system can detect it.
    """

    path: str
    size: int
    tag: str


class TaskCounts(_Struct, frozen=True, kw_only=True):
    """Row counts of a task.

    Attributes:
        scanned_rows: All rows, loaded or filtered.
        loaded_rows: Rows that are applied.
        filtered_rows: Rows that do not fit.
        load_bytes: Approximate bytes of the loaded rows; depends only on their values.
    """

    scanned_rows: int = 0
    loaded_rows: int = 0
    filtered_rows: int = 0
    load_bytes: int = 0


class JobStatistics(_Struct, frozen=True, kw_only=True):
    """Totals of a job. Failed tasks count only in ``failed_tasks``."""

    file_number: int = 0
    file_size: int = 0
    scanned_rows: int = 0
    loaded_rows: int = 0
    filtered_rows: int = 0
    load_bytes: int = 0
    succeeded_tasks: int = 0
    failed_tasks: int = 0

    def after(self, files: list[SourceFile], counts: TaskCounts) -> JobStatistics:
        """The totals after a task that was applied."""
        return JobStatistics(
            file_number=self.file_number + len(files),
            file_size=self.file_size + sum(file.size for file in files),
            scanned_rows=self.scanned_rows + counts.scanned_rows,
            loaded_rows=self.loaded_rows + counts.loaded_rows,
            filtered_rows=self.filtered_rows + counts.filtered_rows,
            load_bytes=self.load_bytes + counts.load_bytes,
            succeeded_tasks=self.succeeded_tasks + 1,
            failed_tasks=self.failed_tasks,
        )

    def after_failure(self) -> JobStatistics:
        """The totals after a task that failed."""
        return msgspec.structs.replace(self, failed_tasks=self.failed_tasks + 1)


class OpenTask(_Struct, frozen=True, kw_only=True):
    """A task that has begun and not yet ended.

    Attributes:
        version: Version of the job when the task began.
        counts: None until all its files are read.
    """

    number: int
    version: int
    begun_ms: int
    files: list[SourceFile]
    counts: TaskCounts | None = None


class EndedTask(_Struct, frozen=True, kw_only=True):
    """The outcome of a task.

    Attributes:
        files, bytes: Number and total size of its files.
        first, last: Paths of its first and last file.
        counts: None if it failed before all its files were read.
        error: Why it failed; None if it was applied.
    """

    number: int
    begun_ms: int
    ended_ms: int
    files: int
    bytes: int
    first: str
    last: str
    counts: TaskCounts | None = None
    error: str | None = None


class JobStatus(_Struct, frozen=True, kw_only=True):
    """The state of a job after its edits.

    Attributes:
        source: A directory, a pattern of paths, or a URL of one.
        version: Version of offset and options; grows each time a user sets them.
        offset: Path of the last file taken; None before the first.
        reason: Why the job is paused.
        resume_ms: When it resumes by itself; None if only a user resumes it.
        failures: Consecutive failed tasks.
        task: The open task.
        history: The latest ended tasks, newest last.
    """

    name: str
    source: str
    format: FileFormat
    options: JobOptions
    version: int = 0
    offset: str | None = None
    state: JobState = "waiting"
    reason: str | None = None
    resume_ms: int | None = None
    failures: int = 0
    statistics: JobStatistics = JobStatistics()
    task: OpenTask | None = None
    history: list[EndedTask] = []
