"""What an edit does to ingestion jobs: the table of their states, and all that goes with it. Pure, like the state.

* ``NEXT`` is the whole of it: an edit that has no place there does nothing, live and in replay.
* One task at most is open. Its end replaces offset and statistics by what the edit says: nothing is added up.
* An offset that was set by hand has a higher version, and a task that was begun before does not move it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec.structs import replace

from logformat.catalog.edits import (
    AboutJob,
    AlterJob,
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
"""Tasks of a job that are remembered, the last."""

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
    ("paused", PauseJob): "paused",
    ("paused", ResumeJob): "waiting",
    ("paused", AlterJob): "paused",
}

NO_JOBS: Jobs = {}


def writer_of(job: JobId) -> str:
    """The name under which a job writes, its tasks as epochs; nobody else has it."""
    return f"job {job}"


def jobs_after(jobs: Jobs, edit: CreateJob | AboutJob, txid: Txid, time_ms: int) -> Jobs:
    """Jobs of a table with one more edit, made at a time (ms); one that is about a job that is gone does nothing."""
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
    """A job with one more edit; one that has no place in its state does nothing."""
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
        # Whoever asked for a pause meanwhile resumes it.
        resume_ms = edit.resume_ms if job.state == "running" else None
        return replace(after, reason=edit.reason, resume_ms=resume_ms, failures=job.failures + 1)
    return replace(after, failures=0, offset=edit.offset if edit.version >= job.version else job.offset)
