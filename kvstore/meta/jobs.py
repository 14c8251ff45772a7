"""Effects of edits on ingestion jobs: the table of their states and transitions. Pure, like the state.

* ``NEXT`` has all transitions: an edit that has none in the job's state does nothing, live and in replay.
* At most one task is open. The edit that ends it has the new offset and statistics, so a replay never adds twice.
* Setting the offset by hand raises the version; a task that began before does not change the offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec.structs import replace

from logformat.catalog.edits import (
    AboutJob,
    AlterJob,
    AlterJobOptions,
    BeginTask,
    CreateJob,
    DropJob,
    EndTask,
    FailTask,
    PauseJob,
    ReadTask,
    ResumeJob,
)
from logformat.catalog.jobs import EndedTask, JobState, JobStatus, OpenTask
from logformat.ids import JobId, Txid

HISTORY_MAX = 20
"""Number of ended tasks that a job keeps, the latest."""

Jobs: TypeAlias = Mapping[JobId, JobStatus]
"""Jobs of one table."""

NEXT: Mapping[tuple[JobState, type[AboutJob]], JobState] = {
    ("waiting", BeginTask): "running",
    ("waiting", PauseJob): "paused",
    ("running", ReadTask): "running",
    ("running", EndTask): "waiting",
    ("running", FailTask): "paused",
    ("running", PauseJob): "pausing",
    ("pausing", ReadTask): "pausing",
    ("pausing", EndTask): "paused",
    ("pausing", FailTask): "paused",
    ("pausing", ResumeJob): "running",
    ("pausing", AlterJob): "pausing",
    ("pausing", AlterJobOptions): "pausing",
    ("paused", PauseJob): "paused",
    ("paused", ResumeJob): "waiting",
    ("paused", AlterJob): "paused",
    ("paused", AlterJobOptions): "paused",
}

NO_JOBS: Jobs = {}


def writer_of(job: JobId) -> str:
    """Name of the writer of a job, reserved for it; each task is one of its epochs."""
    return f"job {job}"


def jobs_after(jobs: Jobs, edit: CreateJob | AboutJob, txid: Txid, time_ms: int) -> Jobs:
    """Jobs of a table after one more edit of this time (ms); an edit of a dropped job does nothing."""
    if isinstance(edit, CreateJob):
        created = JobStatus(
            name=edit.name, source=edit.source, format=edit.format, options=edit.options, offset=edit.offset
        )
        return {**jobs, JobId(txid): created}
    if edit.job_id not in jobs:
        return jobs
    if isinstance(edit, DropJob):
        return {id: job for id, job in jobs.items() if id != edit.job_id}
    return {**jobs, edit.job_id: job_after(jobs[edit.job_id], edit, time_ms)}


def job_after(job: JobStatus, edit: AboutJob, time_ms: int) -> JobStatus:
    """A job after one more edit; an edit without a transition from its state does nothing."""
    state = NEXT.get((job.state, type(edit)))
    if state is None:
        return job
    match edit:
        case BeginTask():
            task = OpenTask(number=edit.task, version=edit.version, begun_ms=time_ms, files=edit.files)
            return replace(job, state=state, task=task)
        case ReadTask() | EndTask() | FailTask():
            if job.task is None or job.task.number != edit.task:
                return job
            return _of_task(job, job.task, edit, state, time_ms)
        case PauseJob():
            return replace(job, state=state, reason=edit.reason, resume_ms=None)
        case ResumeJob():
            return replace(job, state=state, reason=None, resume_ms=None)
        case AlterJob():
            if edit.version <= job.version:
                return job
            return replace(job, state=state, version=edit.version, offset=edit.offset, options=edit.options)
        case AlterJobOptions():
            return replace(job, state=state, options=edit.options)
    raise AssertionError(edit)


def _of_task(
    job: JobStatus, task: OpenTask, edit: ReadTask | EndTask | FailTask, state: JobState, time_ms: int
) -> JobStatus:
    if isinstance(edit, ReadTask):
        return replace(job, state=state, task=replace(task, counts=edit.counts))
    ended = EndedTask(
        number=task.number,
        begun_ms=task.begun_ms,
        ended_ms=time_ms,
        files=len(task.files),
        bytes=sum(file.size for file in task.files),
        first=task.files[0].path,
        last=task.files[-1].path,
        counts=task.counts,
        error=edit.reason if isinstance(edit, FailTask) else None,
    )
    history = [*job.history, ended][-HISTORY_MAX:]
    after = replace(job, state=state, statistics=edit.statistics, task=None, history=history)
    if isinstance(edit, FailTask):
        # A job that a user paused meanwhile does not resume by itself.
        resume_ms = edit.resume_ms if job.state == "running" else None
        return replace(after, reason=edit.reason, resume_ms=resume_ms, failures=job.failures + 1)
    return replace(after, failures=0, offset=edit.offset if edit.version >= job.version else job.offset)
