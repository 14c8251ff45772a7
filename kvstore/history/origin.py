"""Who wrote a batch of the log: its writer by name, the epoch, and the ingestion job and its files.

Batches have only numbers. The catalog has the names that are in use. A writer that lost its name to another run has it
in the edits of the catalog, as long as they are kept. Of a name that was dropped, the number of the writer is what is
left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from kvstore.meta.jobs import NO_JOBS, writer_of
from kvstore.meta.state import CatalogState
from kvstore.meta.table_catalog import CatalogReads
from kvstore.meta.writers import NamedWriter
from logformat.catalog.jobs import EndedTask, JobStatus
from logformat.ids import NO_WRITER, Sequence, TableId, WriterId
from logformat.log.batch import BatchHeader

ORIGIN_FIELDS = pa.schema(
    [
        pa.field("writer", pa.string()),
        pa.field("writer_id", pa.int64()),
        pa.field("epoch", pa.int64()),
        pa.field("sequence", pa.int64()),
        pa.field("run", pa.string()),
        pa.field("job", pa.string()),
        pa.field("task", pa.int64()),
        pa.field("file", pa.string()),
        pa.field("transaction", pa.string()),
    ]
)
"""Columns about the origin of a change; all null for a batch without a writer."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who wrote a batch.

    Attributes:
        writer: Name of the writer, also of one that lost it to another run; its id as text if it has none.
        epoch: For a writer of epochs, the number of the epoch; for others, the incarnation of the writer.
        counts_epochs: Whether it is a writer of epochs.
        sequence: Number of the batch among its writer's.
        run: Run that counts the epochs, such as the id of a streaming query of Spark.
        job, task: Ingestion job, and the number of its task.
        file: The task's file; of several, the first and the last one. None if the job no longer remembers the task.
        transaction: Id of the commit over several buckets or tables that the batch belongs to, the same in all of them.
            None for another batch, and once the catalog has dropped the edits of that time.
    """

    writer: str | None = None
    writer_id: int | None = None
    epoch: int | None = None
    counts_epochs: bool = False
    sequence: int | None = None
    run: str | None = None
    job: str | None = None
    task: int | None = None
    file: str | None = None
    transaction: str | None = None


_NO_ORIGIN = Origin()


class Origins:
    """Origins of the batches of one table, by what the catalog says now.

    Args:
        earlier: Returns the writers that had names, by id; called only for a batch of a writer that lost its name.
        commits: Returns the ids of commits, by writer and sequence; called only for a batch of a writer of epochs.
    """

    def __init__(
        self,
        state: CatalogState,
        table: TableId,
        earlier: Callable[[], Mapping[WriterId, tuple[str, NamedWriter]]] = dict,
        commits: Callable[[], Mapping[tuple[WriterId, Sequence], str]] = dict,
    ) -> None:
        writers = state.writers_of(table)
        self._writers = {writer.writer_id: (name, writer) for name, writer in writers.named.items()}
        self._former = writers.former
        self._earlier = earlier
        self._commits = commits
        self._ids: Mapping[tuple[WriterId, Sequence], str] | None = None
        self._jobs: dict[str, JobStatus] = {writer_of(id): job for id, job in state.jobs.get(table, NO_JOBS).items()}

    @classmethod
    def known_to(cls, catalog: CatalogReads) -> Origins:
        """Origins of the batches of the table of a catalog."""
        return cls(catalog.state(), catalog.definition().id, catalog.earlier_writers, catalog.commits)

    def writer(self, id: int) -> tuple[str, NamedWriter] | None:
        """Name of a writer, and how it was opened last under it; None for one without a name.

        Raises:
            CorruptImage: An edit of the catalog is damaged.
        """
        if id in self._former and id not in self._writers:
            self._writers = {**self._earlier(), **self._writers}
            self._former = frozenset()
        return self._writers.get(WriterId(id))

    def of(self, header: BatchHeader) -> Origin:
        """The origin of a batch."""
        id = header.writer_id
        if id == NO_WRITER:
            return _NO_ORIGIN
        named = self.writer(id)
        if named is None:
            return Origin(str(id), int(id), header.writer_epoch, sequence=header.batch_sequence)
        name, writer = named
        if writer.kind != "epochs":
            return Origin(name, int(id), header.writer_epoch, sequence=header.batch_sequence)
        epoch = writer.first_epoch + header.batch_sequence
        job = self._jobs.get(name)
        return Origin(
            *(name, int(id), epoch, True, header.batch_sequence, writer.run),
            job=None if job is None else job.name,
            task=None if job is None else epoch,
            file=None if job is None else _file(job, epoch),
            transaction=self._transaction(id, header.batch_sequence),
        )

    def _transaction(self, id: WriterId, sequence: Sequence) -> str | None:
        if self._ids is None:
            self._ids = self._commits()
        return self._ids.get((id, sequence))

    def columns(self, headers: list[BatchHeader]) -> list[pa.Array]:
        """``ORIGIN_FIELDS`` of the batches with these headers, one row for each."""
        origin_of: dict[int, Origin] = {}
        origins = []
        for header in headers:
            if header.base_offset not in origin_of:
                origin_of[header.base_offset] = self.of(header)
            origins.append(origin_of[header.base_offset])
        return [pa.array([getattr(each, field.name) for each in origins], field.type) for field in ORIGIN_FIELDS]


def _file(job: JobStatus, number: int) -> str | None:
    if job.task is not None and job.task.number == number:
        files = [file.path for file in job.task.files]
        return _files(files[0], files[-1], len(files))
    applied = [task for task in job.history if task.number == number and task.error is None]
    return _of_ended(applied[-1]) if applied else None


def _of_ended(task: EndedTask) -> str:
    return _files(task.first, task.last, task.files)


def _files(first: str, last: str, count: int) -> str:
    return first if count == 1 else f"{first} … {last} ({count} files)"
