"""Edits of the catalog: the operations on it, and the bytes of one edit (docs/format.md, Catalog edit).

* An op code is never reused and never removed: an edit, once written, stays readable forever.
* Decoding rejects an edit with an unknown op code or an unknown field: guessing would lose tables.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from logformat.catalog.jobs import FileFormat, JobOptions, JobStatistics, SourceFile, TaskCounts
from logformat.catalog.replicas import Finding, Shipped
from logformat.checksum import crc32c
from logformat.errors import CorruptImage, InvalidRequest, UnsupportedVersion
from logformat.ids import Epoch, JobId, Offset, SchemaId, Sequence, TableId, Txid, WriterId
from logformat.log.arrow_message import Compression
from logformat.urls import shown_text

ChangelogImage = Literal["full", "wal"]
DeleteBehavior = Literal["allow", "ignore", "disable"]
WriterKind = Literal["batches", "epochs"]
"""Kind of a named writer: it sends numbered batches to buckets, or epochs to the whole table."""

EDIT_BYTES_MAX = 1 << 27

HEAD = "<IHHqqq"
"""Layout of the head of an edit, for ``struct``."""
_HEAD_BYTES = struct.calcsize(HEAD)


class Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The operation of an edit. Each subclass has its own op code."""

    op: ClassVar[int]

    def __repr__(self) -> str:
        return shown_text(super().__repr__())


class SecondaryIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An index of a table on some of its columns.

    Attributes:
        index_id: Of one table; none is given out twice, also not after a drop.
        columns: Places of its columns in the stored schema, so they may be renamed.
    """

    index_id: int
    name: str
    columns: list[int]
    unique: bool = False


class SecondaryIndexes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The indexes of a table on other columns than its key, and the id of the next one."""

    next_id: int
    known: list[SecondaryIndex]


class TableOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a table.

    Attributes:
        indexes: Not there before the first index was created: an older version refuses a table that has it.
    """

    merge_engine: str | dict[str, Any] = "last_row"
    changelog_image: ChangelogImage = "full"
    compression: Compression = "lz4"
    delete_behavior: DeleteBehavior = "allow"
    auto_increment: str | None = None
    skip_identical_updates: bool = False
    retention_ms: int | None = None
    indexes: SecondaryIndexes | msgspec.UnsetType = msgspec.UNSET


class CreateTable(Payload, frozen=True, kw_only=True):
    """Creates a table, with schema 1."""

    op: ClassVar[int] = 1
    table_id: TableId
    name: str
    columns: list[dict[str, Any]]
    primary_key: list[str] | None
    buckets: int
    bucket_key: list[str] | None = None
    options: TableOptions


class DropTable(Payload, frozen=True, kw_only=True):
    """Drops a table; its id is never reused."""

    op: ClassVar[int] = 2
    table_id: TableId


class AllocateWriter(Payload, frozen=True, kw_only=True):
    """Allocates a writer id; it is never allocated again."""

    op: ClassVar[int] = 3
    writer_id: WriterId


class AddSchema(Payload, frozen=True, kw_only=True):
    """Adds a schema to a table: the columns of the one before, then new nullable columns."""

    op: ClassVar[int] = 4
    table_id: TableId
    schema_id: SchemaId
    columns: list[dict[str, Any]]


class OpenWriter(Payload, frozen=True, kw_only=True):
    """Opens a named writer of a table, or a new incarnation of it; earlier incarnations are fenced."""

    op: ClassVar[int] = 5
    table_id: TableId
    name: str
    writer_id: WriterId
    writer_epoch: Epoch
    kind: WriterKind
    run: str | None = None
    first_epoch: int | None = None


class DropWriter(Payload, frozen=True, kw_only=True):
    """Drops a named writer and fences it; the name may be used again."""

    op: ClassVar[int] = 6
    table_id: TableId
    name: str


class BeginCommit(Payload, frozen=True, kw_only=True, omit_defaults=True):
    """Begins the commit of a writer's staged batches, one for each bucket: a bucket without its batch gets it first.

    ``staged`` has the batches if they are few bytes; else they are in a file.
    """

    op: ClassVar[int] = 7
    table_id: TableId
    commit_id: str
    writer_id: WriterId
    writer_epoch: Epoch
    sequence: Sequence
    staged: bytes | None = None


class EndCommit(Payload, frozen=True, kw_only=True):
    """Ends a commit: every bucket has its batch."""

    op: ClassVar[int] = 8
    table_id: TableId
    commit_id: str


class SetConsumer(Payload, frozen=True, kw_only=True, omit_defaults=True):
    """Sets a consumer's positions: one offset for each bucket, in order; valid until a time (ms), or without limit.

    ``filter`` says which rows a subscription reads; None if that is not known.
    """

    op: ClassVar[int] = 9
    table_id: TableId
    name: str
    offsets: list[Offset]
    until_ms: int | None = None
    filter: str | None = None


class DropConsumer(Payload, frozen=True, kw_only=True):
    """Drops a consumer."""

    op: ClassVar[int] = 10
    table_id: TableId
    name: str


class BeginEpoch(Payload, frozen=True, kw_only=True):
    """Begins the epoch of a new leader, the epoch of this edit; later edits of other leaders don't count.

    Edits before it may be missing. Their ids must not be reused: table ids, writer ids and writer epochs continue after
    a large gap. ``leader`` is a text unique to this leader: two copies of a store may begin an epoch of the same
    number.
    """

    op: ClassVar[int] = 11
    leader: str


class AddReplica(Payload, frozen=True, kw_only=True):
    """Adds a replica to the store; a replica of that name starts over."""

    op: ClassVar[int] = 12
    name: str
    url: str


class DropReplica(Payload, frozen=True, kw_only=True):
    """Drops a replica."""

    op: ClassVar[int] = 13
    name: str


class ReportReplica(Payload, frozen=True, kw_only=True):
    """TellReplica without a time. A promotion writes it for replicas whose report it does not know."""

    op: ClassVar[int] = 14
    name: str
    shipped: list[Shipped]


class FindReplica(Payload, frozen=True, kw_only=True):
    """Records the findings of a check of a replica; they replace the earlier ones."""

    op: ClassVar[int] = 15
    name: str
    checked_ms: int
    findings: list[Finding]


class LoseLead(Payload, frozen=True, kw_only=True):
    """Ends this leader's lead: another leader has replaced it and does not know the edits made here from now on.

    ``by``: Epoch of the other leader.
    """

    op: ClassVar[int] = 16
    by: Epoch


class TellReplica(Payload, frozen=True, kw_only=True):
    """Records what was shipped to a replica: replaces the entries of these tracks; all published at ``as_of_ms``."""

    op: ClassVar[int] = 17
    name: str
    as_of_ms: int
    shipped: list[Shipped]


class CreateJob(Payload, frozen=True, kw_only=True):
    """Creates an ingestion job; its id is the txid of this edit. ``offset``: the job takes files after it."""

    op: ClassVar[int] = 20
    table_id: TableId
    name: str
    source: str
    format: FileFormat
    options: JobOptions
    offset: str | None = None


class BeginTask(Payload, frozen=True, kw_only=True):
    """Begins a task of a job with these files."""

    op: ClassVar[int] = 21
    table_id: TableId
    job_id: JobId
    task: int
    version: int
    files: list[SourceFile]


class ReadTask(Payload, frozen=True, kw_only=True):
    """Records that a task has read its files; none of its rows are applied yet."""

    op: ClassVar[int] = 22
    table_id: TableId
    job_id: JobId
    task: int
    counts: TaskCounts


class EndTask(Payload, frozen=True, kw_only=True):
    """Ends a task whose rows are applied; ``statistics`` are the job's totals after it."""

    op: ClassVar[int] = 23
    table_id: TableId
    job_id: JobId
    task: int
    version: int
    offset: str
    statistics: JobStatistics


class FailTask(Payload, frozen=True, kw_only=True):
    """Ends a task that failed, none of whose rows were applied; ``statistics`` are the job's totals after it."""

    op: ClassVar[int] = 24
    table_id: TableId
    job_id: JobId
    task: int
    reason: str
    statistics: JobStatistics
    resume_ms: int | None = None


class PauseJob(Payload, frozen=True, kw_only=True):
    """Pauses a job: it begins no more tasks."""

    op: ClassVar[int] = 25
    table_id: TableId
    job_id: JobId
    reason: str


class ResumeJob(Payload, frozen=True, kw_only=True):
    """Resumes a job."""

    op: ClassVar[int] = 26
    table_id: TableId
    job_id: JobId


class AlterJob(Payload, frozen=True, kw_only=True):
    """Changes the offset or the options of a job."""

    op: ClassVar[int] = 27
    table_id: TableId
    job_id: JobId
    version: int
    offset: str | None
    options: JobOptions


class AlterJobOptions(Payload, frozen=True, kw_only=True):
    """Changes the options of a job, and nothing else: a task that is open goes on."""

    op: ClassVar[int] = 32
    table_id: TableId
    job_id: JobId
    options: JobOptions


class DropJob(Payload, frozen=True, kw_only=True):
    """Drops a job; its id is never reused."""

    op: ClassVar[int] = 28
    table_id: TableId
    job_id: JobId


class RenameTable(Payload, frozen=True, kw_only=True):
    """Gives a table another name, which no other table has."""

    op: ClassVar[int] = 29
    table_id: TableId
    name: str


class AlterTable(Payload, frozen=True, kw_only=True):
    """Replaces the options of a table; those that say what stored rows and changes mean stay the same."""

    op: ClassVar[int] = 30
    table_id: TableId
    options: TableOptions


class AlterColumns(Payload, frozen=True, kw_only=True):
    """Adds a schema with the columns of the one before, of which some have other names or are dropped.

    The other fields have the names of the new schema.
    """

    op: ClassVar[int] = 31
    table_id: TableId
    schema_id: SchemaId
    columns: list[dict[str, Any]]
    primary_key: list[str] | None
    bucket_key: list[str] | None
    options: TableOptions


AboutJob: TypeAlias = (
    BeginTask | ReadTask | EndTask | FailTask | PauseJob | ResumeJob | AlterJob | AlterJobOptions | DropJob
)
"""Edits of an existing job."""

PAYLOADS: dict[int, type[Payload]] = {
    kind.op: kind
    for kind in (
        *(CreateTable, DropTable, AllocateWriter, AddSchema, OpenWriter, DropWriter, BeginCommit, EndCommit),
        *(SetConsumer, DropConsumer, BeginEpoch),
        *(AddReplica, DropReplica, ReportReplica, FindReplica, LoseLead, TellReplica),
        *(CreateJob, BeginTask, ReadTask, EndTask, FailTask, PauseJob, ResumeJob, AlterJob, DropJob),
        *(RenameTable, AlterTable, AlterColumns, AlterJobOptions),
    )
}


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """One edit: its number, the epoch of its leader, its time (ms), and its operation."""

    txid: Txid
    epoch: Epoch
    time_ms: int
    payload: Payload


def encode(edit: Edit) -> bytes:
    """The edit as the journal holds it.

    Raises:
        InvalidRequest: It is too large.
    """
    body = struct.pack(HEAD[0] + HEAD[2:], edit.payload.op, 1, edit.txid, edit.epoch, edit.time_ms)
    body += msgspec.json.encode(edit.payload)
    if len(body) >= EDIT_BYTES_MAX:
        raise InvalidRequest(
            f"An edit of the catalog has at most {EDIT_BYTES_MAX} bytes; give a task of a job fewer files.",
            bytes=len(body),
        )
    return struct.pack("<I", crc32c(body)) + body


def op_of(data: bytes) -> int:
    """Op code of an encoded edit, which may be damaged; -1 if it is too short."""
    return int(struct.unpack_from(HEAD, data)[1]) if len(data) >= _HEAD_BYTES else -1


def decode(data: bytes) -> Edit:
    """Decode an edit.

    Raises:
        CorruptImage: The edit is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    if len(data) < _HEAD_BYTES or struct.unpack_from("<I", data)[0] != crc32c(memoryview(data)[4:]):
        raise CorruptImage("An edit of the catalog fails its checksum; run `kvstore check`.")
    _, op, version, txid, epoch, time_ms = struct.unpack_from(HEAD, data)
    if version != 1 or op not in PAYLOADS:
        raise UnsupportedVersion(
            "The catalog holds an edit of a newer version; upgrade kvstore.", op=op, version=version, txid=txid
        )
    try:
        payload = msgspec.json.decode(data[_HEAD_BYTES:], type=PAYLOADS[op])
    except msgspec.ValidationError as error:
        raise UnsupportedVersion(
            "The catalog holds an edit this version can't read; upgrade kvstore.", op=op, txid=txid, reason=str(error)
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptImage("An edit of the catalog is not JSON; run `kvstore check`.", op=op, txid=txid) from error
    return Edit(txid=Txid(txid), epoch=Epoch(epoch), time_ms=time_ms, payload=payload)
