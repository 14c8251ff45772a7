"""Edits of the catalog: what can be done to it, and how one edit is written (docs/format.md, Catalog edit).

* An op code is never used for anything else, and never removed: an edit that was written once can be read for ever.
* An edit of an unknown op code, or with a field this version does not know, is refused: guessing loses tables.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from logformat.catalog.jobs import FileFormat, JobOptions, JobStatistics, SourceFile, TaskCounts
from logformat.catalog.replicas import Finding, Shipped
from logformat.checksum import crc32c
from logformat.errors import CorruptImage, UnsupportedVersion
from logformat.ids import Epoch, JobId, Offset, SchemaId, Sequence, TableId, Txid, WriterId
from logformat.log.arrow_message import Compression
from logformat.urls import shown_text

ChangelogImage = Literal["full", "wal"]
DeleteBehavior = Literal["allow", "ignore", "disable"]
WriterKind = Literal["batches", "epochs"]
"""What a named writer sends: numbered batches to buckets, or epochs to the whole table."""

_HEAD = "<IHHqqq"
_HEAD_BYTES = struct.calcsize(_HEAD)


class Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an edit does. Subclasses have an op code each."""

    op: ClassVar[int]

    def __repr__(self) -> str:
        return shown_text(super().__repr__())


class TableOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a table behaves; set when it is created."""

    merge_engine: str | dict[str, Any] = "last_row"
    changelog_image: ChangelogImage = "full"
    compression: Compression = "lz4"
    delete_behavior: DeleteBehavior = "allow"
    auto_increment: str | None = None
    skip_identical_updates: bool = False
    retention_ms: int | None = None


class CreateTable(Payload, frozen=True, kw_only=True):
    """A table begins, with schema 1."""

    op: ClassVar[int] = 1
    table_id: TableId
    name: str
    columns: list[dict[str, Any]]
    primary_key: list[str] | None
    buckets: int
    bucket_key: list[str] | None = None
    options: TableOptions


class DropTable(Payload, frozen=True, kw_only=True):
    """A table ends; its id is never used again."""

    op: ClassVar[int] = 2
    table_id: TableId


class AllocateWriter(Payload, frozen=True, kw_only=True):
    """A writer id is given out; it is never given out again."""

    op: ClassVar[int] = 3
    writer_id: WriterId


class AddSchema(Payload, frozen=True, kw_only=True):
    """A table's columns change: those before, and new nullable ones behind."""

    op: ClassVar[int] = 4
    table_id: TableId
    schema_id: SchemaId
    columns: list[dict[str, Any]]


class OpenWriter(Payload, frozen=True, kw_only=True):
    """A table has a named writer, or a new incarnation of it; others of that name are fenced."""

    op: ClassVar[int] = 5
    table_id: TableId
    name: str
    writer_id: WriterId
    writer_epoch: Epoch
    kind: WriterKind
    run: str | None = None
    first_epoch: int | None = None


class DropWriter(Payload, frozen=True, kw_only=True):
    """A named writer ends, and is fenced; the name may be given anew."""

    op: ClassVar[int] = 6
    table_id: TableId
    name: str


class BeginCommit(Payload, frozen=True, kw_only=True):
    """Staged batches of a writer, one for each bucket, are committed: a bucket that lacks its batch gets it first."""

    op: ClassVar[int] = 7
    table_id: TableId
    commit_id: str
    writer_id: WriterId
    writer_epoch: Epoch
    sequence: Sequence


class EndCommit(Payload, frozen=True, kw_only=True):
    """Every bucket has its batch of a commit."""

    op: ClassVar[int] = 8
    table_id: TableId
    commit_id: str


class SetConsumer(Payload, frozen=True, kw_only=True):
    """Somebody reads a table on from these offsets, one for each bucket in order; until a time (ms), or for ever."""

    op: ClassVar[int] = 9
    table_id: TableId
    name: str
    offsets: list[Offset]
    until_ms: int | None = None


class DropConsumer(Payload, frozen=True, kw_only=True):
    """Nobody reads a table under a name any more."""

    op: ClassVar[int] = 10
    table_id: TableId
    name: str


class BeginEpoch(Payload, frozen=True, kw_only=True):
    """The catalog goes on under a new leader, with the edit's epoch: what others do from here on is of no account.

    Edits may be missing before it. What they gave out is not given out again: ids and writers' epochs go on far behind.
    ``leader`` is a text that no other leader has: two copies of a store may begin an epoch of one number.
    """

    op: ClassVar[int] = 11
    leader: str


class AddReplica(Payload, frozen=True, kw_only=True):
    """The store has a replica; one of that name begins anew."""

    op: ClassVar[int] = 12
    name: str
    url: str


class DropReplica(Payload, frozen=True, kw_only=True):
    """A replica is none any more."""

    op: ClassVar[int] = 13
    name: str


class ReportReplica(Payload, frozen=True, kw_only=True):
    """TellReplica as it was written before there was that: without its time."""

    op: ClassVar[int] = 14
    name: str
    shipped: list[Shipped]


class FindReplica(Payload, frozen=True, kw_only=True):
    """A replica was checked; what was found replaces what was found before."""

    op: ClassVar[int] = 15
    name: str
    checked_ms: int
    findings: list[Finding]


class LoseLead(Payload, frozen=True, kw_only=True):
    """Another leader has taken this one's place: of what is written here from now on, it knows nothing.

    ``by``: Its epoch.
    """

    op: ClassVar[int] = 16
    by: Epoch


class TellReplica(Payload, frozen=True, kw_only=True):
    """What a replica was told: it replaces what was known of these tracks; everything published at ``as_of_ms``."""

    op: ClassVar[int] = 17
    name: str
    as_of_ms: int
    shipped: list[Shipped]


class CreateJob(Payload, frozen=True, kw_only=True):
    """A job of ingestion begins; its id is the txid of this edit. ``offset``: behind which files are taken."""

    op: ClassVar[int] = 20
    table_id: TableId
    name: str
    source: str
    format: FileFormat
    options: JobOptions
    offset: str | None = None


class BeginTask(Payload, frozen=True, kw_only=True):
    """A job takes files for a task."""

    op: ClassVar[int] = 21
    table_id: TableId
    job_id: JobId
    task: int
    version: int
    files: list[SourceFile]


class ReadTask(Payload, frozen=True, kw_only=True):
    """The files of a task are read; nothing of it is applied yet."""

    op: ClassVar[int] = 22
    table_id: TableId
    job_id: JobId
    task: int
    counts: TaskCounts


class EndTask(Payload, frozen=True, kw_only=True):
    """A task is applied; ``statistics`` are the job's totals after it."""

    op: ClassVar[int] = 23
    table_id: TableId
    job_id: JobId
    task: int
    version: int
    offset: str
    statistics: JobStatistics


class FailTask(Payload, frozen=True, kw_only=True):
    """A task failed and nothing of it was applied; ``statistics`` are the job's totals after it."""

    op: ClassVar[int] = 24
    table_id: TableId
    job_id: JobId
    task: int
    reason: str
    statistics: JobStatistics
    resume_ms: int | None = None


class PauseJob(Payload, frozen=True, kw_only=True):
    """A job is to begin no more tasks."""

    op: ClassVar[int] = 25
    table_id: TableId
    job_id: JobId
    reason: str


class ResumeJob(Payload, frozen=True, kw_only=True):
    """A job is to go on."""

    op: ClassVar[int] = 26
    table_id: TableId
    job_id: JobId


class AlterJob(Payload, frozen=True, kw_only=True):
    """A job goes on from elsewhere, or otherwise."""

    op: ClassVar[int] = 27
    table_id: TableId
    job_id: JobId
    version: int
    offset: str | None
    options: JobOptions


class DropJob(Payload, frozen=True, kw_only=True):
    """A job ends; its id is never used again."""

    op: ClassVar[int] = 28
    table_id: TableId
    job_id: JobId


AboutJob: TypeAlias = BeginTask | ReadTask | EndTask | FailTask | PauseJob | ResumeJob | AlterJob | DropJob
"""What is about a job that is there."""

_PAYLOADS: dict[int, type[Payload]] = {
    kind.op: kind
    for kind in (
        *(CreateTable, DropTable, AllocateWriter, AddSchema, OpenWriter, DropWriter, BeginCommit, EndCommit),
        *(SetConsumer, DropConsumer, BeginEpoch),
        *(AddReplica, DropReplica, ReportReplica, FindReplica, LoseLead, TellReplica),
        *(CreateJob, BeginTask, ReadTask, EndTask, FailTask, PauseJob, ResumeJob, AlterJob, DropJob),
    )
}


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """One edit: its number, who made it, when (ms), and what it does."""

    txid: Txid
    epoch: Epoch
    time_ms: int
    payload: Payload


def encode(edit: Edit) -> bytes:
    """The edit as the journal holds it."""
    body = struct.pack(_HEAD[0] + _HEAD[2:], edit.payload.op, 1, edit.txid, edit.epoch, edit.time_ms)
    body += msgspec.json.encode(edit.payload)
    return struct.pack("<I", crc32c(body)) + body


def decode(data: bytes) -> Edit:
    """The edit that :func:`encode` wrote.

    Raises:
        CorruptImage: It is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    if len(data) < _HEAD_BYTES or struct.unpack_from("<I", data)[0] != crc32c(memoryview(data)[4:]):
        raise CorruptImage("An edit of the catalog fails its checksum; run `kvstore check`.")
    _, op, version, txid, epoch, time_ms = struct.unpack_from(_HEAD, data)
    if version != 1 or op not in _PAYLOADS:
        raise UnsupportedVersion(
            "The catalog holds an edit of a newer kvstore; upgrade.", op=op, version=version, txid=txid
        )
    try:
        payload = msgspec.json.decode(data[_HEAD_BYTES:], type=_PAYLOADS[op])
    except msgspec.ValidationError as error:
        raise UnsupportedVersion(
            "The catalog holds an edit this kvstore can't read; upgrade.", op=op, txid=txid, reason=str(error)
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptImage("An edit of the catalog is no JSON; run `kvstore check`.", op=op, txid=txid) from error
    return Edit(txid=Txid(txid), epoch=Epoch(epoch), time_ms=time_ms, payload=payload)
