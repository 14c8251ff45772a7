"""Jobs in the catalog: lookup by name, and edits that their states allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvstore.arguments import shown
from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.errors import InvalidRequest
from kvstore.meta.jobs import NEXT
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState
from kvstore.table.table import Table
from logformat.catalog.edits import AboutJob, AlterJob, AlterJobOptions, BeginTask, DropJob, PauseJob, ResumeJob
from logformat.catalog.jobs import JobStatus
from logformat.ids import JobId, TableId

_NOT_PAUSED = "Only a paused job can be altered; pause it first."
_REFUSED = {
    AlterJob: _NOT_PAUSED,
    AlterJobOptions: _NOT_PAUSED,
    PauseJob: "The job is already pausing; it ends its task first.",
    ResumeJob: "The job is not paused.",
}


@dataclass(frozen=True)
class Home:
    """The parts of a store that its jobs use.

    Attributes:
        table: Returns the table of an id.
        check_open, check_writable: Raise if the store is closed, or can't be written.
    """

    path: Path
    files: Files
    clock: Clock
    journal: Journal
    table: Callable[[TableId], Table]
    check_open: Callable[[], None]
    check_writable: Callable[[], None]


class NotNow(Exception):
    """The job has changed since the decision; read it again."""


class Record:
    """One job in the catalog."""

    def __init__(self, home: Home, id: JobId) -> None:
        self.home = home
        self.id = id

    def status(self) -> tuple[TableId, JobStatus]:
        """Current status of the job, and its table.

        Raises:
            InvalidRequest: The job or its table was dropped.
        """
        self.home.check_open()
        return self._found(self.home.journal.state())

    def edit(self, make: Callable[[TableId, JobStatus], AboutJob]) -> JobStatus:
        """Add an edit and make it durable.

        Args:
            make: Returns the edit, given the job's table and current status.

        Returns:
            The job after the edit; as it was before, if the edit dropped it.

        Raises:
            InvalidRequest: The job was dropped, or its state does not allow the edit. Nothing was written.
            NotNow: The job's state no longer allows a new task; also anything that ``make`` raises.
            StoreFull: The disk is full. Nothing was written.
        """
        self.home.check_writable()
        before: list[JobStatus] = []

        def decide(state: CatalogState) -> AboutJob:
            table, job = self._found(state)
            before[:] = [job]
            payload = make(table, job)
            if not isinstance(payload, DropJob) and (job.state, type(payload)) not in NEXT:
                if isinstance(payload, BeginTask):
                    raise NotNow
                raise InvalidRequest(_REFUSED[type(payload)], job=job.name, state=job.state)
            return payload

        state = self.home.journal.append(decide)
        return next((jobs[self.id] for jobs in state.jobs.values() if self.id in jobs), before[0])

    def _found(self, state: CatalogState) -> tuple[TableId, JobStatus]:
        for table, jobs in state.jobs.items():
            if self.id in jobs:
                return table, jobs[self.id]
        raise InvalidRequest("The job or its table was dropped.", job_id=self.id)


def job_ids(state: CatalogState) -> dict[str, JobId]:
    """Ids of all jobs by name, sorted."""
    return dict(sorted((job.name, id) for jobs in state.jobs.values() for id, job in jobs.items()))


def id_of(state: CatalogState, name: object) -> JobId:
    """Id of the job of a name.

    Raises:
        InvalidRequest: There is no such job.
    """
    ids = job_ids(state)
    if not isinstance(name, str) or name not in ids:
        raise InvalidRequest("There is no such job.", job=shown(name), jobs=list(ids))
    return ids[name]
