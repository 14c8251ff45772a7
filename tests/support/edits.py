"""Random edits of a catalog: what a store does to it, and what races may make of that."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa

from kvstore.meta.state import CatalogState, TableDefinition
from logformat.catalog.edits import (
    AddReplica,
    AddSchema,
    AllocateWriter,
    AlterColumns,
    AlterJob,
    AlterJobOptions,
    AlterTable,
    BeginCommit,
    BeginTask,
    CreateJob,
    CreateTable,
    DropConsumer,
    DropJob,
    DropReplica,
    DropTable,
    DropWriter,
    EndCommit,
    EndTask,
    FailTask,
    FindReplica,
    OpenWriter,
    PauseJob,
    Payload,
    ReadTask,
    RenameTable,
    ReportReplica,
    ResumeJob,
    SetConsumer,
    TableOptions,
    TellReplica,
)
from logformat.catalog.jobs import JobOptions, JobStatistics, SourceFile, TaskCounts
from logformat.catalog.replicas import CATALOG, Finding, Shipped, Stream
from logformat.ids import BucketId, Epoch, JobId, Offset, SchemaId, Sequence, TableId
from logformat.rows import schema as schemas

_NAMES = ("a", "b", "ü")
RANDOM_KINDS = (
    *(CreateTable, DropTable, AllocateWriter, AddSchema, OpenWriter, OpenWriter, DropWriter, BeginCommit, BeginCommit),
    *(RenameTable, AlterTable, AlterColumns, EndCommit, SetConsumer, SetConsumer, SetConsumer, DropConsumer),
    *(AddReplica, DropReplica, ReportReplica, TellReplica, TellReplica, FindReplica),
    *(CreateJob, BeginTask, BeginTask, ReadTask, EndTask, EndTask, FailTask, PauseJob, ResumeJob, AlterJob),
    *(AlterJobOptions, DropJob),
)
TABLES_MAX = 6


def columns(count: int) -> list[dict[str, Any]]:
    """So many columns."""
    return schemas.to_json(
        pa.schema([pa.field(f"c{n}", pa.list_(pa.int16()) if n else pa.int64()) for n in range(count)])
    )


def payload(random: Random, state: CatalogState) -> Payload:
    """An edit to come next; one in ten is about a table that is gone, or never was."""
    kind = random.choice(RANDOM_KINDS)
    if len(state.tables) >= TABLES_MAX and kind is CreateTable:
        kind = DropTable
    there = sorted(state.tables)
    if not there and random.random() < 0.5:
        kind = CreateTable
    id = random.choice(there) if there and random.random() < 0.9 else TableId(random.randrange(1, 99))
    name = random.choice(_NAMES)
    writer = state.next_writer_id
    if kind is CreateTable:
        key = random.choice((["c0"], None))
        return CreateTable(
            table_id=state.next_table_id,
            name=f"t{state.next_table_id}",
            columns=columns(2),
            primary_key=key,
            buckets=random.randrange(1, 4),
            options=TableOptions(retention_ms=random.choice((None, 7)), merge_engine=random.choice(_ENGINES)),
        )
    if kind is DropTable:
        return DropTable(table_id=id)
    if kind is AllocateWriter:
        return AllocateWriter(writer_id=writer)
    if kind is AddSchema:
        table = state.tables.get(id)
        now = SchemaId(1) if table is None else table.schema_id
        before = columns(2) if table is None else schemas.to_json(table.stored)
        return AddSchema(table_id=id, schema_id=SchemaId(now + 1), columns=[*before, columns(now + 2)[-1]])
    if kind is AlterColumns:
        return _of_columns(random, id, state.tables.get(id))
    if kind is RenameTable:
        return RenameTable(table_id=id, name=f"t{id} {random.randrange(9)}")
    if kind is AlterTable:
        return AlterTable(table_id=id, options=TableOptions(retention_ms=random.choice((None, 7, 8))))
    if kind is OpenWriter:
        epochs = random.random() < 0.5
        return OpenWriter(
            table_id=id,
            name=name,
            writer_id=writer,
            writer_epoch=Epoch(random.randrange(3)),
            kind="epochs" if epochs else "batches",
            run="r" if epochs else None,
            first_epoch=random.randrange(9) if epochs else None,
        )
    if kind is DropWriter:
        return DropWriter(table_id=id, name=name)
    if kind is BeginCommit:
        return BeginCommit(
            table_id=id,
            commit_id=f"{id}-{random.randrange(4):032x}",
            writer_id=writer,
            writer_epoch=Epoch(0),
            sequence=Sequence(random.randrange(9)),
            staged=random.choice([None, b"", b"\0\xff"]),
        )
    if kind is EndCommit:
        return EndCommit(table_id=id, commit_id=f"{id}-{random.randrange(4):032x}")
    if kind is SetConsumer:
        return SetConsumer(
            table_id=id,
            name=name,
            offsets=[Offset(random.randrange(9))],
            until_ms=random.choice((None, 1_000_000 + random.randrange(600))),
            filter=random.choice((None, "", "0a (v > 1)")),
        )
    if kind is DropConsumer:
        return DropConsumer(table_id=id, name=name)
    if issubclass(kind, AddReplica | DropReplica | ReportReplica | TellReplica | FindReplica):
        return _about_a_replica(random, kind, id, name)
    return _about_a_job(random, state, kind, id, name)


def _of_columns(random: Random, id: TableId, table: TableDefinition | None) -> AlterColumns:
    """Another column has another name, or is dropped."""
    now = columns(2) if table is None else schemas.to_json(table.stored)
    place = random.randrange(1, len(now))
    renamed = now[place] | {"name": random.choice((None, f"r{random.randrange(99)}")), "nullable": True}
    return AlterColumns(
        table_id=id,
        schema_id=SchemaId(1 if table is None else table.schema_id + 1),
        columns=[*now[:place], renamed, *now[place + 1 :]],
        primary_key=random.choice((["c0"], None)) if table is None else table.primary_key and list(table.primary_key),
        bucket_key=None if table is None else table.bucket_key and list(table.bucket_key),
        options=TableOptions() if table is None else table.options,
    )


def _about_a_replica(random: Random, kind: type[Payload], id: TableId, name: str) -> Payload:
    if kind is AddReplica:
        return AddReplica(name=name, url="memory:///")
    if kind is DropReplica:
        return DropReplica(name=name)
    stream = random.choice((CATALOG, Stream(id, BucketId(random.randrange(2)))))
    start, end = sorted(random.sample(range(99), 2))
    shipped = [Shipped(stream=stream, start=start, end=end, snapshots=[start])]
    if kind is ReportReplica:
        return ReportReplica(name=name, shipped=shipped)
    if kind is TellReplica:
        return TellReplica(name=name, as_of_ms=random.randrange(99), shipped=shipped)
    finding = Finding(kind=random.choice(("BAD", "MISSING_VERSION")), stream=stream, start=start, end=end)
    return FindReplica(name=name, checked_ms=start, findings=random.choice(([], [finding])))


def _about_a_job(random: Random, state: CatalogState, kind: type[Payload], id: TableId, name: str) -> Payload:
    """Numbers are mostly those that fit the job as it stands."""
    if kind is CreateJob:
        return CreateJob(table_id=id, name=name, source="/in", format="csv", options=JobOptions(max_files=3))
    jobs = state.jobs.get(id, {})
    job_id = random.choice(sorted(jobs)) if jobs and random.random() < 0.9 else JobId(random.randrange(99))
    job = jobs.get(job_id)
    task = (job.statistics.succeeded_tasks if job else 0) + random.choice((1, 1, 1, 2))
    version = (job.version if job else 0) + random.choice((0, 0, 1))
    statistics = JobStatistics(succeeded_tasks=task, filtered_rows=random.randrange(9))
    about = {"table_id": id, "job_id": job_id}
    made: dict[type[Payload], dict[str, Any]] = {
        BeginTask: {"task": task, "version": version, "files": [SourceFile(path=name, size=3, tag="t")]},
        ReadTask: {"task": task, "counts": TaskCounts(filtered_rows=random.randrange(9))},
        EndTask: {"task": task, "version": version, "offset": name, "statistics": statistics},
        FailTask: {"task": task, "reason": "r", "statistics": statistics, "resume_ms": random.choice((None, 5))},
        PauseJob: {"reason": "r"},
        AlterJobOptions: {"options": JobOptions(max_files=random.randrange(1, 9))},
        AlterJob: {"version": version, "offset": random.choice((None, name)), "options": JobOptions()},
    }
    return kind(**about, **made.get(kind, {}))


_ENGINES: tuple[str | dict[str, Any], ...] = ("last_row", "first_row", {"versioned": "c1"})
