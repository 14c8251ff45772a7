"""``kvstore job run``: loads the current files of a job's source, or follows the source."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from kvstore.cli.arguments import AsJson, Directory, opened_store
from kvstore.cli.job.command import JobName, task_of
from kvstore.cli.printing import print_json, print_line
from kvstore.cli.progress import Bar
from kvstore.errors import UnsupportedOperation
from kvstore.ingest.engine import EmbeddedEngine, Engine
from kvstore.ingest.job import Job
from logformat.catalog.jobs import EndedTask


class EngineName(StrEnum):
    """Engine that reads the files."""

    EMBEDDED = "embedded"
    SPARK = "spark"


def run(
    path: Directory,
    name: JobName,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Continue with new files until interrupted, or end.")
    ] = False,
    engine: Annotated[EngineName, typer.Option(help="Engine that reads the files.")] = EngineName.EMBEDDED,
    as_json: AsJson = False,
) -> None:
    """Run a job: finish the task that an earlier run left open, then load the files of the source, task by task.

    However a run ends, the next one continues where it ended: each file is loaded once.

    Exit code 1 if a task failed, or if files came late or changed after they were loaded.
    """
    with opened_store(path, write=True) as store, Bar(name, "bytes") as bar:
        job = store.job(name)

        def ended(task: EndedTask) -> None:
            if as_json:
                print_json(task_of(job, task))
            elif not bar.print(_in_words(job, task)):
                print_line(_in_words(job, task))

        done = job.run(
            follow=follow,
            engine=_engine(engine),
            progress=bar.to,
            ended=ended,
        )
    if done.overlooked:
        raise typer.Exit(1)


def _engine(name: EngineName) -> Engine:
    if name is EngineName.EMBEDDED:
        return EmbeddedEngine()
    try:
        from kvstore.spark.engine import engine
    except ModuleNotFoundError as error:
        raise UnsupportedOperation(
            "Spark is not installed; `pip install -e '.[spark]'` from a checkout, or leave --engine out."
        ) from error
    return engine()


def _in_words(job: Job, task: EndedTask) -> str:
    counts = task.counts
    assert counts is not None
    files = task.first if task.files == 1 else f"{task.files} files, {task.first} to {task.last}"
    left_out = f", {counts.filtered_rows:,} left out: {job.rejected(task.number)}" if counts.filtered_rows else ""
    return f"task {task.number}: {counts.loaded_rows:,} rows of {files}{left_out}"
