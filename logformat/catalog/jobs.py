"""Ingestion jobs (docs/format.md, Ingestion jobs): the same structs in edits, state and images of the catalog."""

from __future__ import annotations

from typing import Literal

import msgspec

FileFormat = Literal["parquet", "arrow", "csv", "jsonl"]
JobState = Literal["waiting", "running", "pausing", "paused"]


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a job."""


class JobOptions(_Struct, frozen=True, kw_only=True):
    """How a job works.

    Attributes:
        max_files, max_bytes: A task takes as many files; one at least, however large.
        max_filter_ratio: Share of a task's rows that may be left out because they do not fit the table.
    """

    max_files: int = 256
    max_bytes: int = 64 << 20
    max_filter_ratio: float = 0.0


class SourceFile(_Struct, frozen=True, kw_only=True):
    """A file as it was listed.

    Attributes:
        path: Relative to the source's directory.
        size: Bytes.
        tag: Other after every change of the file, as far as the file system tells.
    """

    path: str
    size: int
    tag: str


class TaskCounts(_Struct, frozen=True, kw_only=True):
    """What a task found in its files.

    Attributes:
        scanned_rows: All of them: loaded or filtered.
        loaded_rows: Those that are applied.
        filtered_rows: Those that do not fit.
        load_bytes: About how many bytes the loaded rows take: a matter of their values alone.
    """

    scanned_rows: int = 0
    loaded_rows: int = 0
    filtered_rows: int = 0
    load_bytes: int = 0


class JobStatistics(_Struct, frozen=True, kw_only=True):
    """What a job has done altogether. Of tasks that failed, only that they did is counted."""

    file_number: int = 0
    file_size: int = 0
    scanned_rows: int = 0
    loaded_rows: int = 0
    filtered_rows: int = 0
    load_bytes: int = 0
    succeeded_tasks: int = 0
    failed_tasks: int = 0

    def after(self, files: list[SourceFile], counts: TaskCounts) -> JobStatistics:
        """With a task that was applied."""
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
        """With a task that failed."""
        return msgspec.structs.replace(self, failed_tasks=self.failed_tasks + 1)


class OpenTask(_Struct, frozen=True, kw_only=True):
    """A task that has begun and not ended.

    Attributes:
        version: Of the job's offset when it was begun.
        counts: None before all its files were read.
    """

    number: int
    version: int
    begun_ms: int
    files: list[SourceFile]
    counts: TaskCounts | None = None


class EndedTask(_Struct, frozen=True, kw_only=True):
    """What became of a task.

    Attributes:
        files, bytes: How many, and their size.
        first, last: Their paths.
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
    """A job, as its edits left it.

    Attributes:
        source: A directory, a pattern of paths, or a URL of one.
        version: Of offset and options; it grows with each that was set by hand.
        offset: Path of the last file that was taken; None before the first.
        reason: Why it is paused.
        resume_ms: When it may go on by itself; None for not before it is resumed.
        failures: Tasks that failed since the last that did not.
        task: The one that is open.
        history: The last that ended, the newest at the end.
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
