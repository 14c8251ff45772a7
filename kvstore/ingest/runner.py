"""Runs a job, task by task; if a run is killed at any step, the rows of its task are still applied once.

1. The journal gets the files of the task: a later run of the same task uses exactly these.
2. The files are read; rows that do not fit go to a side file, and the journal gets the counts.
3. The rows are applied as the epoch with the task's number, all or none.
4. The journal gets the end of the task, with the job's new offset and statistics.

Between 2 and 4 the table decides whether the rows were applied. If they were, the counts of step 2 are valid, and
nothing is read again: the files may have been removed meanwhile. If they were not, and the job was altered meanwhile,
the task is void: this is the way out of a task that can't end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event

from kvstore.errors import CorruptImage, InvalidRequest, TaskFailed, Unavailable, UnsupportedOperation
from kvstore.ingest.engine import Engine
from kvstore.ingest.formats import Format
from kvstore.ingest.offsets import Overlooked, Taken, files_after, files_of_task
from kvstore.ingest.reading import FileReader
from kvstore.ingest.records import NotNow, Record
from kvstore.ingest.sources import Source, source_of
from kvstore.ingest.tasks import bytes_max_of, columns_of, gathered, write_rejected
from kvstore.meta.jobs import HISTORY_MAX, writer_of
from kvstore.process.calls import check_caller, uninterrupted
from kvstore.table.table import Table
from logformat import paths
from logformat.catalog.edits import BeginTask, EndTask, FailTask, ReadTask, ResumeJob
from logformat.catalog.jobs import EndedTask, JobStatus, OpenTask, SourceFile
from logformat.ids import TableId

RETRY_MS_MIN = 1_000
RETRY_MS_MAX = 300_000
LOOK_MS_MIN = 250
LOOK_MS_MAX = 8_000
_REASON_MAX = 1_000
_VOID = "The job was altered before the rows of this task were applied."

_log = logging.getLogger(__name__)


@dataclass
class Run:
    """Result of a run of a job.

    Attributes:
        tasks: The applied tasks; only the latest of them if the run followed its source.
        overlooked: Files before the offset that came late or changed.
    """

    tasks: list[EndedTask] = field(default_factory=list)
    overlooked: Overlooked = field(default_factory=Overlooked)


class Runner:
    """Runs one job, whose lock the caller holds.

    Args:
        progress: Called with the bytes of files read so far, and the bytes to read in total.
        ended: Called with each applied task.
    """

    def __init__(
        self,
        record: Record,
        engine: Engine,
        progress: Callable[[int, int], None],
        ended: Callable[[EndedTask], None],
    ) -> None:
        self._record = record
        self._home = record.home
        self._engine = engine
        self._progress = progress
        self._ended = ended
        self._directory = paths.job_directory(record.home.path, record.id)
        self._taken = Taken(self._directory, record.home.files)
        self._run = Run()
        self._has_said_empty = False

    def once(self) -> Run:
        """Load all files that the source has now.

        Raises:
            TaskFailed: A task failed, now or before, and the time to try again has not come.
            UnsupportedOperation: The job is paused.
            InvalidRequest: The job was dropped, or its files can't be listed.
        """
        job = self._resumed(self._status())
        if job.state == "paused":
            if job.resume_ms is not None:
                raise TaskFailed(
                    "A task failed, and the time to try it again has not come; resume the job to try now.",
                    job=job.name,
                    reason=job.reason,
                    wait_ms=job.resume_ms - self._home.clock.now_ms(),
                )
            raise UnsupportedOperation("The job is paused; resume it first.", job=job.name, reason=job.reason)
        self._pass()
        return self._run

    def follow(self, stop: Event) -> Run:
        """Load files as they come, until ``stop`` is set; failed tasks are tried again, with growing delays.

        Raises:
            InvalidRequest: The job was dropped.
        """
        idle_ms = LOOK_MS_MIN
        failures = 0
        while not stop.is_set():
            job = self._resumed(self._status())
            wait_ms = idle_ms
            try:
                worked = job.state != "paused" and self._pass(stop)
                failures = 0
            except TaskFailed as error:
                _log.warning("%s", error)
                continue  # the catalog has the time of the next attempt
            except Unavailable as error:
                _log.warning("%s", error)
                worked, wait_ms = False, backoff_ms(failures)
                failures += 1
            idle_ms = LOOK_MS_MIN if worked else min(2 * idle_ms, LOOK_MS_MAX)
            if job.state == "paused":
                wait_ms = LOOK_MS_MIN
            del self._run.tasks[:-HISTORY_MAX]  # a run may last for ever
            if not worked:
                stop.wait(wait_ms / 1000)
        return self._run

    def _status(self) -> JobStatus:
        return self._record.status()[1]

    def _resumed(self, job: JobStatus) -> JobStatus:
        """The job, resumed if its failed task is due again, or if the clock was ahead when it failed."""
        waits_ms = None if job.resume_ms is None else job.resume_ms - self._home.clock.now_ms()
        # No task waits for longer than RETRY_MS_MAX; a clock that was set back by a little changes nothing.
        if job.state == "paused" and waits_ms is not None and not 0 < waits_ms <= 2 * RETRY_MS_MAX:
            with suppress(NotNow):
                return self._record.edit(lambda table, now: self._resumption(table, now, job))
            return self._status()
        return job

    def _resumption(self, table: TableId, now: JobStatus, seen: JobStatus) -> ResumeJob:
        if now != seen:
            raise NotNow
        return ResumeJob(table_id=table, job_id=self._record.id)

    def _pass(self, stop: Event | None = None) -> bool:
        """Load the files that the source has now; returns whether there were any."""
        job = self._status()
        source = source_of(job.source, Format(job.format))
        worked = job.task is not None
        if job.task is not None:
            self._finish(job, source, read=0, total=sum(file.size for file in job.task.files))
        listed = source.files()
        if not listed and job.offset is None and not self._has_said_empty:
            _log.warning("no file at %s matches the job's source yet; check whether the source is right", job.source)
            self._has_said_empty = True
        self._say_overlooked(self._taken.overlooked(listed, self._status()))
        read, total = 0, sum(file.size for file in files_after(listed, self._status().offset))
        self._progress(read, total)
        while not (stop is not None and stop.is_set()):
            job = self._status()
            files = files_of_task(listed, job)
            if job.state != "waiting" or not files:
                break
            try:
                job = self._record.edit(lambda table, now: self._begin(table, now, job, files))  # noqa: B023
            except NotNow:
                continue
            self._finish(job, source, read=read, total=total)
            read += sum(file.size for file in files)
            worked = True
        return worked

    def _begin(self, table: TableId, now: JobStatus, seen: JobStatus, files: list[SourceFile]) -> BeginTask:
        if now != seen:
            raise NotNow
        number = now.statistics.succeeded_tasks + 1
        return BeginTask(table_id=table, job_id=self._record.id, task=number, version=now.version, files=files)

    def _finish(self, job: JobStatus, source: Source, *, read: int, total: int) -> None:
        """Apply the open task and end it, or fail it."""
        task = job.task
        assert task is not None
        try:
            if not self._is_applied(task) and (
                task.version < job.version or not self._apply(task, job, source, read=read, total=total)
            ):
                self._resumed(self._record.edit(lambda table, now: self._failure(table, now, task, _VOID, wait_ms=0)))
                return
        except InvalidRequest as error:
            if error.where.get("committed"):
                raise
            reason = str(error)[:_REASON_MAX]
            wait_ms = backoff_ms(job.failures)
            self._record.edit(lambda table, now: self._failure(table, now, task, reason, wait_ms=wait_ms))
            raise TaskFailed(
                f"A task failed, and nothing of it was applied: {error.message}",
                **{"job": job.name, "task": task.number, **error.where},
            ) from error
        # Before the offset passes the files: a file before the offset that is not in the list came late.
        self._taken.add(task.files, task.version)
        after = self._record.edit(lambda table, now: self._end(table, now, task))
        self._run.tasks += after.history[-1:]
        self._ended(after.history[-1])

    def _table(self) -> Table:
        return self._home.table(self._record.status()[0])

    def _is_applied(self, task: OpenTask) -> bool:
        """Whether an earlier run has already applied the task."""
        return task.counts is not None and self._table().is_applied(writer_of(self._record.id), task.number)

    def _apply(self, task: OpenTask, job: JobStatus, source: Source, *, read: int, total: int) -> bool:
        """Apply the rows of a task; False if the offset was set meanwhile, so that the task is void."""
        table = self._table()
        done = [read]

        def progress(size: int) -> None:
            done[0] += size
            self._progress(done[0], total)
            check_caller()

        reader = FileReader(source, columns_of(table), bytes_max_of(table))
        rows = uninterrupted(gathered)(self._engine.read(reader, task.files), task.files, reader.bytes_max, progress)
        rejected = paths.rejected_file(self._directory, task.number)
        write_rejected(rejected, rows.misfits, self._home.files)
        self._record.edit(
            lambda table, _: ReadTask(table_id=table, job_id=self._record.id, task=task.number, counts=rows.counts)
        )
        rows.check(job.options, rejected)
        changes = rows.together(reader.columns.schema)
        if task.version < self._status().version:
            return False
        result = table.apply_epoch(changes, writer=writer_of(self._record.id), epoch=task.number)
        if any(each.duplicated for each in result.by_bucket.values()):
            raise CorruptImage(
                "The table has a task that the catalog does not have: the catalog is older than the table; restore the"
                " newest catalog, or drop the job and create it again with the offset it had.",
                job=job.name,
                task=task.number,
            )
        return True

    def _end(self, table: TableId, now: JobStatus, task: OpenTask) -> EndTask:
        open_task = now.task or task
        assert open_task.counts is not None
        return EndTask(
            table_id=table,
            job_id=self._record.id,
            task=task.number,
            version=task.version,
            offset=task.files[-1].path,
            statistics=now.statistics.after(task.files, open_task.counts),
        )

    def _failure(self, table: TableId, now: JobStatus, task: OpenTask, reason: str, *, wait_ms: int) -> FailTask:
        return FailTask(
            table_id=table,
            job_id=self._record.id,
            task=task.number,
            reason=reason,
            statistics=now.statistics.after_failure(),
            resume_ms=self._home.clock.now_ms() + wait_ms,
        )

    def _say_overlooked(self, overlooked: Overlooked) -> None:
        for path in sorted({*overlooked.late} - {*self._run.overlooked.late}):
            _log.warning("file %r came after the job's offset had passed it, and is not loaded", path)
        for path in sorted({*overlooked.changed} - {*self._run.overlooked.changed}):
            _log.warning("file %r changed after it was loaded, and is not loaded again", path)
        self._run.overlooked = overlooked


def backoff_ms(failures: int) -> int:
    """Delay before the next attempt, in milliseconds, after this number of earlier failures in a row."""
    return min(RETRY_MS_MIN << min(failures, 30), RETRY_MS_MAX)
