"""A job as its users see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import EllipsisType
from typing import Any

from msgspec.structs import replace

from kvstore.arguments import integer_within, printable, shown
from kvstore.calls import uninterrupted
from kvstore.errors import InvalidRequest
from kvstore.files import refusals
from kvstore.ingest.engine import EmbeddedEngine, Engine
from kvstore.ingest.records import Home, Record
from kvstore.ingest.runner import Run, Runner
from kvstore.lock import ProcessLock
from kvstore.meta.jobs import writer_of
from logformat import paths
from logformat.catalog.edits import AlterJob, DropJob, DropWriter, PauseJob, ResumeJob
from logformat.catalog.jobs import EndedTask, JobOptions, JobStatus
from logformat.ids import OFFSET_MAX, JobId, TableId

REASON_BYTES_MAX = 1_000
PATH_BYTES_MAX = 4_096


class Job:
    """An ingestion job of a store that is open: every file that comes to its source into a table, once.

    Made by :meth:`kvstore.Store.create_job` and :meth:`kvstore.Store.job`; it may be used from any thread.
    """

    def __init__(self, home: Home, id: JobId) -> None:
        self._home = home
        self._record = Record(home, id)

    @property
    def id(self) -> int:
        """A number that no other job of the store has or will have."""
        return self._record.id

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.show().name

    @property
    def table(self) -> str:
        """Name of the table it loads into."""
        return self._home.journal.state().tables[self._record.status()[0]].name

    def show(self) -> JobStatus:
        """The job as it stands now, in whatever process it runs: offset, statistics, open task, tasks of before.

        Raises:
            InvalidRequest: It was dropped, or its table was.
        """
        return self._record.status()[1]

    def rejected(self, task: int) -> Path:
        """Where it stands which rows a task left out: JSON lines of ``file``, ``row`` and ``reason``, if it did."""
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
        """Take the files that are there, task after task, and first what a run before this one left unfinished.

        However a run ends, the next goes on where it was: each file is loaded once.

        Args:
            follow: Then go on with those that come, until ``stop`` is set. A task that fails is tried again, 1 s later,
                then 2 s, and so on up to 5 minutes; while somebody else has paused the job it waits.
            engine: What reads the files; by default, threads of this process.
            progress: Told how many bytes of files were read, and how many there are to read.
            ended: Told of each task that was applied.

        Raises:
            TaskFailed: A task failed, or one has and it is not time yet to try again. Nothing of it was applied, and
                the job is paused; see to its files. Not with ``follow``.
            InvalidRequest: The job is paused, or was dropped.
            StoreLocked: Somebody else runs it, or another process writes the table and does not hand it over.
            Unavailable: The files can't be listed, or there is no space. The next run goes on. Not with ``follow``.
            CorruptData, LogFailed: See :meth:`kvstore.Table.apply_epoch`.
        """
        self._home.check_writable()
        with self._locked():
            runner = Runner(self._record, engine or EmbeddedEngine(), progress, ended)
            return runner.follow(stop or Event()) if follow else runner.once()

    def pause(self, reason: str = "paused by hand") -> None:
        """Have the job begin no more tasks; whoever runs it ends the one it is at.

        Raises:
            InvalidRequest: The job was dropped, or is about to pause.
        """
        reason = printable("reason", reason, REASON_BYTES_MAX)
        self._record.edit(lambda table, _: PauseJob(table_id=table, job_id=self._record.id, reason=reason))

    def resume(self) -> None:
        """Have the job go on; of itself it runs nowhere.

        Raises:
            InvalidRequest: The job was dropped, or is not paused.
        """
        self._record.edit(lambda table, _: ResumeJob(table_id=table, job_id=self._record.id))

    def alter(self, *, offset: str | EllipsisType | None = ..., **options: Any) -> None:
        """Set the offset of a paused job, or its options.

        A task that was begun before this does not move the offset any more; if its rows are not applied yet, they are
        not going to be.

        Args:
            offset: Files behind this path, as :meth:`show` has it, are taken next, whether or not they were before;
                None: all.
            options: Those of :meth:`kvstore.Store.create_job` that are to be others.

        Raises:
            InvalidRequest: The job was dropped, or is not paused; or an argument is not possible. Nothing was changed.
        """

        def altered(table: TableId, job: JobStatus) -> AlterJob:
            behind = job.offset if isinstance(offset, EllipsisType) else checked_offset(offset)
            return AlterJob(
                table_id=table,
                job_id=self._record.id,
                version=job.version + 1,
                offset=behind,
                options=checked_options(job.options, options),
            )

        self._record.edit(altered)

    def drop(self) -> None:
        """Forget the job, and remove what it left out; what it loaded stays in the table.

        Raises:
            InvalidRequest: The job was dropped.
            StoreLocked: It runs; pause it, and stop who runs it.
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
        """Be the only one who runs the job."""
        self._record.status()
        self._make_directory()
        lock = ProcessLock(self._directory / paths.LOCK_FILE, self._home.files)
        if not lock.try_acquire():
            lock.refuse("Somebody else runs this job; wait until that run is over, or stop it.")
        try:
            yield
        finally:
            lock.release()


def checked_offset(given: object) -> str | None:
    """An offset as it was given.

    Raises:
        InvalidRequest: It is none.
    """
    if given is None:
        return None
    path = printable("offset", given, PATH_BYTES_MAX)
    if path.startswith("/") or "://" in path:
        raise InvalidRequest("An offset is a path below the directory of the job's files.", offset=path)
    return path


def checked_options(before: JobOptions, given: dict[str, Any]) -> JobOptions:
    """Options, with those that are given.

    Raises:
        InvalidRequest: One is not possible.
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
