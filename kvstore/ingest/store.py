"""A store with its jobs: what ``kvstore.open`` opens.

``kvstore.store`` may not know this room, as the rooms are ordered. So the store that users see is made here, of that
one (docs/decisions/0014-ingestion-jobs.md).
"""

from __future__ import annotations

import os
from pathlib import Path

from kvstore.arguments import printable, shown
from kvstore.errors import InvalidRequest, NoSuchTable
from kvstore.files import refusals
from kvstore.ingest.formats import Format
from kvstore.ingest.job import Job, checked_offset, checked_options
from kvstore.ingest.records import Home, id_of, job_ids
from kvstore.ingest.sources import LocalPlace, source_of
from kvstore.meta.state import CatalogState
from kvstore.options import Durability
from kvstore.replica.store import Store as ReplicatedStore
from kvstore.store import options_of_call, path_of
from kvstore.table.table import Table
from logformat import paths
from logformat.catalog.edits import CreateJob
from logformat.catalog.jobs import JobOptions
from logformat.ids import JobId, TableId

JOB_NAME_BYTES_MAX = 255
SOURCE_BYTES_MAX = 4_096
DEFAULTS = JobOptions()
_FORMATS = {**{format.value: format for format in Format}, "json": Format.JSONL}


class Store(ReplicatedStore):
    """An open store; a context manager. It may be used from any thread, but not across ``fork()``."""

    def create_job(
        self,
        name: str,
        *,
        source: str | os.PathLike[str],
        format: str,
        table: str,
        offset: str | None = None,
        max_files: int = DEFAULTS.max_files,
        max_bytes: int = DEFAULTS.max_bytes,
        max_filter_ratio: float = DEFAULTS.max_filter_ratio,
    ) -> Job:
        """Create an ingestion job: :meth:`Job.run` loads every file that comes to ``source`` into a table, once.

        Files are taken in the order of their paths. Names that begin with ``.`` or ``_`` are left alone: a file is
        written under such a name and then renamed.

        Args:
            name: Up to 255 bytes of printable text.
            source: A directory, with all below it that has a suffix of the format; a pattern such as ``in/*.csv``,
                where ``**`` goes over directories; or a URL of either, such as ``s3://bucket/in``.
            format: ``parquet``, ``arrow``, ``csv``, or ``json``: an object a line.
            table: Name of the table. Rows are upserted, or appended to a log table; a column ``_change_type`` may say
                ``delete``.
            offset: Only files behind this path, which is relative to the source's directory.
            max_files, max_bytes: A task, which is one commit, takes as many files; one at least, however large.
            max_filter_ratio: Share of a task's rows, from 0 to 1, that may be left out because they do not fit.

        Raises:
            NoSuchTable: There is none of that name.
            InvalidRequest: There is a job of that name, or an argument is not possible. Nothing was written.
        """
        self._check_writable()
        name = printable("name", name, JOB_NAME_BYTES_MAX)
        if format not in _FORMATS:
            raise InvalidRequest("`format` is one of these.", given=shown(format), formats=sorted(_FORMATS))
        place = _source(source, _FORMATS[format])
        offset = checked_offset(offset)
        chosen = checked_options(
            DEFAULTS, {"max_files": max_files, "max_bytes": max_bytes, "max_filter_ratio": max_filter_ratio}
        )
        definition = self._core.definition(table)

        def decide(state: CatalogState) -> CreateJob:
            if definition.id not in state.tables:
                raise NoSuchTable("The table was dropped.", table=table)
            if name in job_ids(state):
                raise InvalidRequest("There is a job of that name; choose another, or drop it.", job=name)
            self._remove_orphans(state)
            return CreateJob(
                table_id=definition.id,
                name=name,
                source=place,
                format=_FORMATS[format].value,
                options=chosen,
                offset=offset,
            )

        state = self._core.journal.append(decide)
        return Job(self._home(), id_of(state, name))

    def job(self, name: str) -> Job:
        """A job of the store.

        Raises:
            InvalidRequest: There is none of that name.
        """
        self._check_open()
        return Job(self._home(), id_of(self._core.catalog(), name))

    def list_jobs(self) -> list[str]:
        """Names of all jobs, sorted."""
        self._check_open()
        return list(job_ids(self._core.catalog()))

    def _home(self) -> Home:
        core = self._core
        return Home(
            core.path, core.files, core.clock, core.journal, self._table_of, self._check_open, self._check_writable
        )

    def _table_of(self, id: TableId) -> Table:
        definition = self._core.catalog().tables.get(id)
        if definition is None:
            raise NoSuchTable("The job's table was dropped.", table_id=id)
        return self.table(definition.name)

    def _remove_orphans(self, state: CatalogState) -> None:
        """Remove what is left of jobs that are gone."""
        there = {id for jobs in state.jobs.values() for id in jobs}
        for directory in (self._core.path / paths.JOBS).glob("*"):
            if directory.name.isdecimal() and JobId(int(directory.name)) not in there:
                with refusals(directory):
                    self._core.files.remove_tree(directory)


def open_store(
    path: str | os.PathLike[str], read_only: bool = False, durability: Durability = "sync", **settings: int
) -> Store:
    """Open a store, creating it if the directory is new or empty.

    Args:
        path: Directory of the store, on a local disk.
        read_only: Write nothing but LMDB's lock files, in which readers register. What a crashed writer left to be
            recovered is not seen until someone writes.
        durability: ``sync``, ``interval`` or ``none``; see :class:`kvstore.options.StoreOptions`.
        settings: Other fields of :class:`kvstore.options.StoreOptions`.

    Raises:
        NotAStore: The directory is no store and not empty, or does not exist and ``read_only``. Nothing was written.
        UnsupportedVersion: A newer kvstore wrote it.
        CorruptImage: Its catalog is damaged.
        InvalidRequest: It is open in this process with other settings, or an argument is not possible.
    """
    return Store(path_of(path), options_of_call(durability, settings), read_only=read_only)


def _source(given: str | os.PathLike[str], format: Format) -> str:
    """A source as the catalog has it: a local one with its whole path."""
    text = printable("source", os.fspath(given) if isinstance(given, os.PathLike) else given, SOURCE_BYTES_MAX)
    place = source_of(text, format).place
    if isinstance(place, LocalPlace):
        if not Path(place.directory).exists():
            raise InvalidRequest("There is no such directory; create it first.", path=place.directory)
        if not Path(place.directory).is_dir():
            raise InvalidRequest("A source is a directory or a pattern, and this is a file.", path=place.directory)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))
