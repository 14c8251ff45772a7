"""Transactions that another process commits: the owner of the first bucket of their tables.

Theory of operation. A commit needs all buckets of its tables. So a process that does not own the first one sends what
the transaction has read and changed to the process that does. That one commits it as one of its own; buckets that it
lacks are handed over to it, and it keeps them. So after a few transactions over the same tables one process owns them
all, and nothing is handed over any more. The sender holds nothing meanwhile: if it stops or dies, no process waits.

* A transaction has an id, which becomes that of its commit. If the answer is lost, it is sent again, or committed by
  the sender. Before a transaction is decided, its buckets wait, and the edits of the catalog since it was begun say
  whether one of the same id was decided: so it is committed once.
* Rows are checked as those of callers of the process; there is no code in them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from kvstore.bucket.handle import BucketHandle
from kvstore.commit.named_writers import writer_name
from kvstore.errors import InvalidRequest, NotAcknowledged, StoreClosed, StoreError, TransactionConflict
from kvstore.log.segments import LogFiles
from kvstore.process.calls import Reply
from kvstore.request.encoded import SmallRequest, encoded_writes
from kvstore.request.results import AppendResult, WriteResult
from kvstore.sending import requests
from kvstore.sending.frames import BadFrame, Kind, encode_error
from kvstore.sending.requests import Altered
from kvstore.table.open_table import OpenTable
from kvstore.transaction.table_changes import TableChanges
from logformat.catalog import edits
from logformat.catalog.edits import BeginCommit
from logformat.ids import OFFSET_MAX, BucketId, Offset, TableId, Txid
from logformat.rows.keys import KEY_BYTES_MAX

_HEAD = struct.Struct("<16sqqHH")
_TABLE = struct.Struct("<IIH")
_READ = struct.Struct("<III")
_PART = struct.Struct("<?I")
_CHANGED = struct.Struct("<HI")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a transaction is known by.

    Attributes:
        begun: The last edit of the catalog when it was begun.
        writer, epoch: See :meth:`kvstore.Store.transaction`.
    """

    writer: str | None
    epoch: int | None
    begun: Txid
    id: UUID = field(default_factory=uuid4)

    def commit_id(self, table: TableId) -> str:
        """Id of the commit to one of its tables."""
        return f"{table}-{self.id.hex}"


class DecidedBefore(Exception):
    """The transaction was decided before.

    Attributes:
        commits: The edits that did.
    """

    def __init__(self, commits: Sequence[BeginCommit]) -> None:
        super().__init__("The transaction was committed before.")
        self.commits = commits


def check_undecided(identity: Identity, tables: Sequence[TableChanges]) -> None:
    """Return if the transaction was not decided; the buckets of its tables wait.

    Raises:
        DecidedBefore: It was.
        NotAcknowledged: It is not known any more.
    """
    journal = tables[0].opened.catalog.journal
    ids = {identity.commit_id(changes.definition.id) for changes in tables}
    kept = journal.edits_after(identity.begun)
    if kept is None:
        raise NotAcknowledged(
            "This transaction was sent to another process, and whether it was committed is not known any more. Read the"
            " rows before you run it again."
        )
    payloads = [edits.decode(each).payload for each in kept if edits.op_of(each) == BeginCommit.op]
    decided = [each for each in payloads if isinstance(each, BeginCommit) and each.commit_id in ids]
    if decided:
        raise DecidedBefore(decided)


def first_results(tables: Sequence[TableChanges], decided: DecidedBefore) -> list[WriteResult]:
    """The answer of a transaction that was decided before."""
    commits = {each.table_id: each for each in decided.commits}
    results = []
    for changes in tables:
        commit = commits.get(changes.definition.id)
        handles = enumerate(changes.opened.handles) if commit is not None else ()
        results.append(WriteResult({BucketId(bucket): _appended(handle, commit) for bucket, handle in handles}))
    return results


def _appended(handle: BucketHandle, commit: BeginCommit | None) -> AppendResult:
    assert commit is not None
    with handle.latest() as view:
        entry = view.writers_of([commit.writer_id]).get(commit.writer_id)
        end = view.state().applied_offset
    for batch in () if entry is None else entry.batches:
        if batch.sequence == commit.sequence:
            return AppendResult(batch.base_offset, batch.last_offset, True, batch.timestamp)
    return _in_log(handle.log, end, commit)


def _in_log(log: LogFiles, end: Offset, commit: BeginCommit) -> AppendResult:
    for batch in log.batches(log.start(), end):
        header = batch.header
        if (header.writer_id, header.batch_sequence) == (commit.writer_id, commit.sequence):
            return AppendResult(header.base_offset, header.last_offset, True, header.commit_timestamp)
    raise NotAcknowledged("This transaction was committed, and its changes have expired; offsets are not known.")


def encode(identity: Identity, tables: Sequence[TableChanges], *, as_columns: bool = False) -> bytes:
    """A transaction as the content of a frame.

    Args:
        as_columns: Whether few rows are not sent as they are stored, because the table was altered.
    """
    name = (identity.writer or "").encode()
    epoch = -1 if identity.epoch is None else identity.epoch
    pieces = [_HEAD.pack(identity.id.bytes, identity.begun, epoch, len(name), len(tables)), name]
    for changes in tables:
        parts = changes.parts()
        pieces.append(_TABLE.pack(changes.definition.id, len(changes.read), len(parts)))
        for (bucket, code), value in changes.read.items():
            pieces += _READ.pack(bucket, len(code), len(value)), code, value
        for part in parts:
            is_few = isinstance(part, SmallRequest) and not as_columns
            if isinstance(part, SmallRequest):
                data = requests.encode_few(part) if is_few else requests.encode(part.request(), changes.definition)
            else:
                data = requests.encode(part, changes.definition)
            pieces += _PART.pack(is_few, len(data)), data
    return b"".join(pieces)


def decode(content: bytes, opened: Callable[[TableId], OpenTable]) -> tuple[Identity, list[TableChanges]]:
    """The transaction in such a content, checked as one of this process.

    Raises:
        Altered: A table was altered since; few rows have to be sent as columns.
        NoSuchTable, InvalidRequest: It is refused.
        BadFrame: The bytes are no transaction.
    """
    try:
        id, begun, epoch, name_bytes, count = _HEAD.unpack_from(content)
        position = _HEAD.size + name_bytes
        name = content[_HEAD.size : position].decode()
        if (epoch < 0) is bool(name) or epoch > OFFSET_MAX or not count:
            raise BadFrame
        tables: list[TableChanges] = []
        for _ in range(count):
            table, reads, parts = _TABLE.unpack_from(content, position)
            position += _TABLE.size
            if tables and table <= tables[-1].definition.id:
                raise BadFrame
            changes = TableChanges(opened(TableId(table)))
            for _ in range(reads):
                bucket, code_bytes, value_bytes = _READ.unpack_from(content, position)
                position += _READ.size
                if not (0 < code_bytes <= KEY_BYTES_MAX and bucket < changes.definition.buckets):
                    raise BadFrame
                code = content[position : position + code_bytes]
                position += code_bytes
                changes.read[BucketId(bucket), code] = content[position : position + value_bytes]
                position += value_bytes
            for _ in range(parts):
                is_few, length = _PART.unpack_from(content, position)
                position += _PART.size
                _add(changes, content[position : position + length], is_few=is_few)
                position += length
            tables.append(changes)
        if position != len(content):
            raise BadFrame
    except (struct.error, ValueError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise BadFrame from error
    return Identity(writer_name(name) if name else None, epoch if name else None, Txid(begun), UUID(bytes=id)), tables


def _add(changes: TableChanges, data: bytes, *, is_few: bool) -> None:
    definition = changes.definition
    decode = requests.decode_few if is_few else requests.decode
    request = decode(data, definition, Reply())
    if isinstance(request, SmallRequest) and encoded_writes(definition) is request.writes:
        changes.add_few(request.operations)
    elif hasattr(request, "changes"):
        changes.add(request.changes)
    else:
        raise BadFrame


def answer(content: bytes, opened: Callable[[TableId], OpenTable], commit: Commit) -> tuple[Kind, bytes]:
    """Commit a transaction of another process; see :class:`kvstore.sending.receiver.Receiver`.

    Raises:
        BadFrame: The bytes are no transaction.
    """
    try:
        identity, tables = decode(content, opened)
        return Kind.TRANSACTED, json.dumps([_listed(each) for each in commit(identity, tables)]).encode()
    except Altered:
        return Kind.ALTERED, b""
    except TransactionConflict as error:
        number = [changes.definition.name for changes in tables].index(str(error.where["table"]))
        code = tables[number].code_of(error.where["key"])
        return Kind.CHANGED, _CHANGED.pack(number, len(code)) + code
    except StoreClosed:
        return Kind.NOT_OWNER, b""
    except StoreError as error:
        return Kind.FAILED, encode_error(error)


Commit = Callable[[Identity, list[TableChanges]], Sequence[WriteResult]]
"""Commits a transaction in this process."""


def _listed(result: WriteResult) -> list[tuple[int, int, int, bool, int]]:
    return [
        (bucket, each.first_offset, each.last_offset, each.duplicated, each.timestamp_ms)
        for bucket, each in result.by_bucket.items()
    ]


def results_in(content: bytes) -> list[WriteResult]:
    """The results in an answer.

    Raises:
        BadFrame: There are none.
    """
    try:
        return [
            WriteResult(
                {
                    BucketId(bucket): AppendResult(Offset(first), Offset(last), bool(duplicated), timestamp)
                    for bucket, first, last, duplicated, timestamp in table
                }
            )
            for table in json.loads(content)
        ]
    except (ValueError, TypeError) as error:
        raise BadFrame from error


def conflict_in(content: bytes, tables: Sequence[TableChanges]) -> StoreError:
    """The conflict in an answer.

    Raises:
        BadFrame: There is none.
    """
    try:
        number, length = _CHANGED.unpack_from(content)
        code = content[_CHANGED.size :]
        if length != len(code):
            raise BadFrame
        return tables[number].conflict(code)
    except (struct.error, IndexError) as error:
        raise BadFrame from error
