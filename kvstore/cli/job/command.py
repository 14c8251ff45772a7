"""``kvstore job``: definition and status of ingestion jobs; ``run.py`` has the command that runs them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from kvstore.cli.arguments import AsJson, Directory, opened_store
from kvstore.cli.printing import print_facts, print_json, print_line, print_table
from kvstore.clock import time_text
from kvstore.errors import InvalidRequest
from kvstore.ingest.formats import FORMATS
from kvstore.ingest.job import Job
from logformat.catalog.jobs import EndedTask, JobOptions
from logformat.urls import without_credentials

_OPTIONS = JobOptions()
JobName = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.", show_default=False)]
Offset = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Load only files after this one; a path below the source.", show_default=False),
]
MaxFiles = Annotated[int | None, typer.Option(metavar="N", help="Files of a task.", show_default=False)]
MaxBytes = Annotated[int | None, typer.Option(metavar="N", help="Bytes of a task's files.", show_default=False)]
MaxFilterRatio = Annotated[
    float | None,
    typer.Option(metavar="X", help="Fraction of a task's rows that may be left out, 0 to 1.", show_default=False),
]


def create(
    path: Directory,
    name: JobName,
    source: Annotated[
        str, typer.Option(metavar="SOURCE", help="A directory, a pattern, or a URL of either.", show_default=False)
    ],
    format: Annotated[str, typer.Option(metavar="|".join(FORMATS), help="Format of the files.", show_default=False)],
    table: Annotated[str, typer.Option(metavar="TABLE", help="Name of the table.", show_default=False)],
    offset: Offset = None,
    max_files: MaxFiles = _OPTIONS.max_files,
    max_bytes: MaxBytes = _OPTIONS.max_bytes,
    max_filter_ratio: MaxFilterRatio = _OPTIONS.max_filter_ratio,
    as_json: AsJson = False,
) -> None:
    """Create a job that loads every file of a source into a table, once.

    It does nothing by itself; run it with `kvstore job run`.
    """
    given = _given(max_files, max_bytes, max_filter_ratio)
    with opened_store(path, write=True) as store:
        _print_job(
            store.create_job(name, source=source, format=format, table=table, offset=offset, **given), as_json=as_json
        )


def ls(path: Directory, as_json: AsJson = False) -> None:
    """List the jobs with their offsets and counts."""
    with opened_store(path) as store:
        jobs = [facts_of(store.job(name)) for name in store.list_jobs()]
    if as_json:
        print_json(jobs)
        return
    names = ["job", "table", "state", "offset"]
    counts = ["file_number", "loaded_rows", "filtered_rows", "failed_tasks"]
    rows = [[*(each[name] for name in names), *(each["statistics"][name] for name in counts)] for each in jobs]
    print_table([*names, *counts], rows)


def show(path: Directory, name: JobName, as_json: AsJson = False) -> None:
    """Show a job: its offset, statistics, open task, and last tasks."""
    with opened_store(path) as store:
        facts = facts_of(store.job(name))
    if as_json:
        print_json(facts)
        return
    tasks, task = facts.pop("history"), facts.pop("task")
    options, statistics = facts.pop("options"), facts.pop("statistics")
    print_facts({**facts, **options, **statistics})
    if task is not None:
        print_line("")
        print_facts({"open task": task["number"], "begun": task["begun"], "files": len(task["files"])})
    print_line("")
    columns = ["task", "ended", "files", "bytes", "first", "last", "loaded_rows", "filtered_rows", "error"]
    print_table(columns, [[line_of(each)[column] for column in columns] for each in tasks])


def pause(
    path: Directory,
    name: JobName,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason, which `show` prints.")] = "paused by hand",
    as_json: AsJson = False,
) -> None:
    """Pause a job, in this or another process: it begins no more tasks."""
    with opened_store(path, write=True) as store:
        (job := store.job(name)).pause(reason)
        _print_job(job, as_json=as_json)


def resume(path: Directory, name: JobName, as_json: AsJson = False) -> None:
    """Resume a job that was paused by a user or by a failed task."""
    with opened_store(path, write=True) as store:
        (job := store.job(name)).resume()
        _print_job(job, as_json=as_json)


def alter(
    path: Directory,
    name: JobName,
    offset: Offset = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Load all files again.")] = False,
    max_files: MaxFiles = None,
    max_bytes: MaxBytes = None,
    max_filter_ratio: MaxFilterRatio = None,
    as_json: AsJson = False,
) -> None:
    """Set the offset or options of a paused job."""
    if offset is not None and from_start:
        raise InvalidRequest("Give --offset or --from-start, not both.")
    given = _given(max_files, max_bytes, max_filter_ratio)
    if offset is not None or from_start:
        given["offset"] = offset
    if not given:
        raise InvalidRequest("Nothing to change; give --offset, --from-start, or an option.")
    with opened_store(path, write=True) as store:
        (job := store.job(name)).alter(**given)
        _print_job(job, as_json=as_json)


def drop(path: Directory, name: JobName, as_json: AsJson = False) -> None:
    """Remove a job; the rows that it loaded stay in the table."""
    with opened_store(path, write=True) as store:
        facts = facts_of(job := store.job(name))
        job.drop()
    if as_json:
        print_json(facts)


def facts_of(job: Job) -> dict[str, Any]:
    """JSON form of a job: times are text, and ``rejected`` is the directory of the side files."""
    status = _with_times(without_credentials(msgspec.to_builtins(job.show())))
    status["history"] = [_with_times(each) for each in status["history"]]
    status["task"] = None if status["task"] is None else _with_times(status["task"])
    rejected = str(job.rejected(1).parent)
    return {"job": status.pop("name"), "table": job.table, **status, "rejected": rejected}


def task_of(job: Job, ended: EndedTask) -> dict[str, Any]:
    """JSON form of an ended task, with the path of its side file if it left rows out."""
    left_out = ended.counts is not None and ended.counts.filtered_rows
    rejected = str(job.rejected(ended.number)) if left_out else None
    return {**_with_times(msgspec.to_builtins(ended)), "rejected": rejected}


def _with_times(facts: dict[str, Any]) -> dict[str, Any]:
    return {name.removesuffix("_ms"): _time(value) if name.endswith("_ms") else value for name, value in facts.items()}


def line_of(task: dict[str, Any]) -> dict[str, Any]:
    """A task as a line of a table."""
    return {**task, "task": task["number"], **(task["counts"] or {"loaded_rows": None, "filtered_rows": None})}


def _print_job(job: Job, *, as_json: bool) -> None:
    """Print a job after a command has changed it, with ``--json`` only."""
    if as_json:
        print_json(facts_of(job))


def _time(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else time_text(milliseconds)


def _given(max_files: int | None, max_bytes: int | None, max_filter_ratio: float | None) -> dict[str, Any]:
    options = {"max_files": max_files, "max_bytes": max_bytes, "max_filter_ratio": max_filter_ratio}
    return {name: value for name, value in options.items() if value is not None}
