"""The public interface of an ingestion job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from types import EllipsisType
from typing import Any

from msgspec.structs import replace

from kvstore.arguments import integer_within, printable, shown
from kvstore.disk.files import refusals
from kvstore.disk.lock import ProcessLock
from kvstore.errors import CorruptData, InvalidRequest
from kvstore.ingest.engine import EmbeddedEngine, Engine
from kvstore.ingest.records import Home, Record
from kvstore.ingest.runner import Run, Runner
from kvstore.meta.jobs import writer_of
from kvstore.process.calls import uninterrupted
from logformat import paths
from logformat.catalog.edits import AlterJob, AlterJobOptions, DropJob, DropWriter, PauseJob, ResumeJob
from logformat.catalog.jobs import EndedTask, JobOptions, JobStatus
from logformat.ids import OFFSET_MAX, JobId, TableId

REASON_BYTES_MAX = 1_000
PATH_BYTES_MAX = 4_096


class Job:
    """An ingestion job of an open store: it loads every file of its source into a table, once.

    Made by :meth:`kvstore.Store.create_job` and :meth:`kvstore.Store.job`; it may be used from any thread.
    """

    def __init__(self, home: Home, id: JobId) -> None:
        self._home = home
        self._record = Record(home, id)

    @property
    def id(self) -> int:
        """Id of the job, never used again in this store."""
        return self._record.id

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.show().name

    @property
    def table(self) -> str:
        """Name of the table that it loads into."""
        return self._home.journal.state().tables[self._record.status()[0]].name

    @property
    def writer(self) -> str:
        """Name of the writer that applies its tasks; each task is one of its epochs, see :meth:`kvstore.Table.undo`."""
        return writer_of(self._record.id)

    def show(self) -> JobStatus:
        """The job's current status, also if it runs in another process: offset, statistics, open task and history.

        Raises:
            InvalidRequest: The job or its table was dropped.
        """
        return self._record.status()[1]

    def rejected(self, task: int) -> Path:
        """Path of the rows that a task left out, if any: JSON lines of ``file``, ``row`` and ``reason``."""
        return paths.rejected_file(self._directory, integer_within("task", task, 1, OFFSET_MAX))

    def run(
        self,
        *,
        follow: bool = False,
        stop: Event | None = None,
        engine: Engine | None = None,
        progress: Callable[[int, int], None] = lambda _read, _total: None,
        ended: Callable[[EndedTask], None] = lambda _: None,
    ) -> Run:
        """Finish the task that an earlier run left open, then load the files of the source, task by task.

        However a run ends, the next one continues where it ended: each file is loaded once.

        Args:
            follow: Continue with new files until ``stop`` is set. A failed task is tried again after 1 s, then 2 s, and
                so on up to 5 minutes; while a user has paused the job, the run waits.
            engine: Reads the files; by default, threads of this process.
            progress: Called with the bytes of files read so far, and the bytes to read in total.
            ended: Called with each applied task.

        Raises:
            TaskFailed: A task failed, now or before, and the time to try again has not come. Nothing of it was applied,
                and the job is paused; check its files. Not with ``follow``.
            InvalidRequest: The job is paused or was dropped.
            StoreLocked: Another run of this job is active, or another process writes the table and does not hand it
                over.
            Unavailable: The files can't be listed, or the disk is full. The next run continues. Not with ``follow``.
            CorruptData, LogFailed: See :meth:`kvstore.Table.apply_epoch`.
        """
        self._home.check_writable()
        with self._locked():
            runner = Runner(self._record, engine or EmbeddedEngine(), progress, ended)
            return runner.follow(stop or Event()) if follow else runner.once()

    def pause(self, reason: str = "paused by hand") -> None:
        """Pause the job: it begins no more tasks; an active run still ends the current one.

        Raises:
            InvalidRequest: The job was dropped, or is already pausing.
        """
        reason = printable("reason", reason, REASON_BYTES_MAX)
        self._record.edit(lambda table, _: PauseJob(table_id=table, job_id=self._record.id, reason=reason))

    def resume(self) -> None:
        """Let the job continue; it does so in the next :meth:`run`, or in one that follows its source.

        Raises:
            InvalidRequest: The job was dropped, or is not paused.
        """
        self._record.edit(lambda table, _: ResumeJob(table_id=table, job_id=self._record.id))

    def alter(self, *, offset: str | EllipsisType | None = ..., **options: Any) -> None:
        """Set the offset or options of a paused job.

        If the offset is set, a task that began before does not move it any more; if it has not begun to apply its rows,
        it never does. Without it, such a task goes on.

        Args:
            offset: The next run loads the files after this path, as :meth:`show` has it, even if they were loaded
                before; None for all files.
            options: Options of :meth:`kvstore.Store.create_job` with new values.

        Raises:
            InvalidRequest: The job was dropped or is not paused, or an argument is invalid. Nothing was changed.
        """

        def altered(table: TableId, job: JobStatus) -> AlterJob | AlterJobOptions:
            id, made = self._record.id, checked_options(job.options, options)
            if isinstance(offset, EllipsisType):
                return AlterJobOptions(table_id=table, job_id=id, options=made)
            new_offset = checked_offset(offset)
            return AlterJob(table_id=table, job_id=id, version=job.version + 1, offset=new_offset, options=made)

        self._record.edit(altered)

    def drop(self) -> None:
        """Remove the job and the files of the rows that it left out; the rows that it loaded stay in the table.

        Raises:
            InvalidRequest: The job was dropped before.
            StoreLocked: The job runs; pause it, and stop its run.
        """
        self._home.check_writable()
        table = self._record.status()[0]
        with self._locked():
            self._record.edit(lambda table, _: DropJob(table_id=table, job_id=self._record.id))
        self._home.journal.append(lambda _: DropWriter(table_id=table, name=writer_of(self._record.id)))
        with refusals(self._directory):
            self._home.files.remove_tree(self._directory)

    @property
    def _directory(self) -> Path:
        return paths.job_directory(self._home.path, self._record.id)

    @uninterrupted
    def _make_directory(self) -> None:
        with refusals(self._directory):
            self._home.files.make_directory(self._directory.parent)
            self._home.files.make_directory(self._directory)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the job, which allows one run at a time."""
        self._record.status()
        self._make_directory()
        lock = ProcessLock(self._directory / paths.LOCK_FILE, self._home.files)
        with ExitStack() as taken:
            try:
                taken.enter_context(lock.taken("Another run of this job is active; wait until it ends, or stop it."))
            except CorruptData:
                self._record.status()  # a dropped job is the cause to report
                raise
            self._record.status()
            yield


def checked_offset(given: object) -> str | None:
    """Validate an offset.

    Raises:
        InvalidRequest: It is not a path below the source's directory.
    """
    if given is None:
        return None
    path = printable("offset", given, PATH_BYTES_MAX)
    if path.startswith("/") or "://" in path:
        raise InvalidRequest("An offset is a path below the directory of the job's files.", offset=path)
    return path


def checked_options(before: JobOptions, given: dict[str, Any]) -> JobOptions:
    """Options with some new values.

    Raises:
        InvalidRequest: An option is unknown, or its value is invalid.
    """
    if unknown := sorted(given.keys() - set(JobOptions.__struct_fields__)):
        raise InvalidRequest("A job has no such option.", unknown=unknown, options=list(JobOptions.__struct_fields__))
    made = dict(given)
    for name in ("max_files", "max_bytes"):
        if name in given:
            made[name] = integer_within(name, given[name], 1, OFFSET_MAX)
    if "max_filter_ratio" in given:
        ratio = given["max_filter_ratio"]
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
            raise InvalidRequest("`max_filter_ratio` is a number from 0 to 1.", max_filter_ratio=shown(ratio))
        made["max_filter_ratio"] = float(ratio)
    return replace(before, **made)
