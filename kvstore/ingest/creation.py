"""Creating an ingestion job: checked before anything is written."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Any

from kvstore.arguments import printable
from kvstore.disk.files import refusals
from kvstore.errors import InvalidRequest, NoSuchTable, StoreError
from kvstore.ingest.formats import Format, format_named
from kvstore.ingest.job import Job, checked_offset, checked_options
from kvstore.ingest.records import Home, id_of, job_ids
from kvstore.ingest.sources import LocalTree, source_of
from kvstore.meta.state import CatalogState, TableDefinition
from logformat import paths
from logformat.catalog.edits import CreateJob
from logformat.catalog.jobs import JobOptions
from logformat.ids import JobId

JOB_NAME_BYTES_MAX = 255
SOURCE_BYTES_MAX = 4_096
DEFAULTS = JobOptions()


def create(
    home: Home,
    definition: TableDefinition,
    name: str,
    source: str | os.PathLike[str],
    format: str,
    offset: str | None,
    options: dict[str, Any],
) -> Job:
    """Create a job; see :meth:`kvstore.Store.create_job`.

    Args:
        definition: The table.
        options: Fields of :class:`kvstore.JobOptions`.
    """
    name = printable("name", name, JOB_NAME_BYTES_MAX)
    format_given = format_named(format)
    stored = _source(source, format_given)
    offset = checked_offset(offset)
    chosen = checked_options(DEFAULTS, options)

    def decide(state: CatalogState) -> CreateJob:
        if definition.id not in state.tables:
            raise NoSuchTable("The table was dropped.", table=definition.name)
        if name in job_ids(state):
            raise InvalidRequest("A job has this name; choose another name, or drop the job.", job=name)
        return CreateJob(
            table_id=definition.id,
            name=name,
            source=stored,
            format=format_given.value,
            options=chosen,
            offset=offset,
        )

    state = home.journal.append(decide)
    with suppress(StoreError):  # they go with the next job
        _remove_orphans(home, state)
    return Job(home, id_of(state, name))


def _remove_orphans(home: Home, state: CatalogState) -> None:
    """Remove directories of dropped jobs; a job that another process created since has a larger id than the state."""
    there = {id for jobs in state.jobs.values() for id in jobs}
    for directory in (home.path / paths.JOBS).glob("*"):
        if directory.name.isdecimal() and int(directory.name) <= state.txid and JobId(int(directory.name)) not in there:
            with refusals(directory):
                home.files.remove_tree(directory)


def _source(given: str | os.PathLike[str], format: Format) -> str:
    """A source as the catalog stores it: a local one by its absolute path."""
    text = printable("source", os.fspath(given) if isinstance(given, os.PathLike) else given, SOURCE_BYTES_MAX)
    tree = source_of(text, format).tree
    if isinstance(tree, LocalTree):
        try:
            status = os.stat(tree.directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InvalidRequest("There is no such directory; create it first.", path=tree.directory) from error
        except OSError as error:
            raise InvalidRequest(
                "This directory can't be read; check the reason, or give another source.",
                path=tree.directory,
                reason=error.strerror,
            ) from error
        if not stat.S_ISDIR(status.st_mode):
            raise InvalidRequest("This source is a file; give a directory or a pattern.", path=tree.directory)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))
