"""Images of the catalog: its state as of one edit in a file, so that the edits before it need no replay.

* An image gets its name only when it is complete, was read back, and is durable: a named file that is not valid is
  damaged.
* A reader uses nothing of an image before it has verified all of it.
* Only the holder of the image lock writes images; see ``kvstore/checkpoint``.
* Records and objects of the state have the same fields, but for the names in ``_TABLE`` to ``_CONSUMER``: both
  directions, :func:`items_of` and :func:`state_of`, use these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from msgspec import UNSET

from kvstore.disk.files import Files, names_in, open_file, size_of
from kvstore.errors import CorruptImage, StoreError
from kvstore.meta.consumers import NamedConsumer, NamedConsumers, TableConsumers
from kvstore.meta.jobs import Jobs
from kvstore.meta.persistent_map import PersistentMap
from kvstore.meta.state import CatalogState, TableDefinition, Tables
from kvstore.meta.writers import NamedWriter, NamedWriters, OpenCommit, TableWriters
from logformat import paths
from logformat.catalog.image import (
    IMAGE_BYTES_MAX,
    Commit,
    Consumer,
    Former,
    Head,
    Item,
    Job,
    Leader,
    Reader,
    Replica,
    Schema,
    Table,
    Writer,
    counts_of,
    encode_image,
)
from logformat.catalog.replicas import ReplicaStatus
from logformat.ids import Epoch, SchemaId, TableId, Txid, WriterId
from logformat.rows import schema as schemas

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TXID_MAX = Txid(2**63 - 1)
"""Greater than the txid of any edit: txids are signed integers of 64 bits."""
BUFFER_BYTES = 1 << 20
"""Records are written together once they have this many bytes."""


@dataclass(frozen=True)
class Image:
    """A state and the head of its file."""

    head: Head
    state: CatalogState


def txids(directory: Path) -> list[Txid]:
    """Txids of the images in a directory, the newest first."""
    return sorted((txid for txid in map(paths.image_txid, names_in(directory)) if txid is not None), reverse=True)


def image_of(state: CatalogState, store_id: UUID, *, epoch: Epoch, now_ms: int) -> Image:
    """An image of a state, not written yet."""
    head = Head(
        store_id=store_id,
        epoch=epoch,
        txid=state.txid,
        leader=Leader(epoch=state.leader_epoch, name=state.leader, lost_to=state.lost_to),
        created_ms=now_ms,
        next_table_id=state.next_table_id,
        next_writer_id=state.next_writer_id,
        counts=counts_of(items_of(state)),
    )
    return Image(head, state)


def save(path: Path, made: Image, files: Files) -> None:
    """Write an image to a new file, read it back, and make its bytes durable, but not its name.

    After an error there is no such file, unless the disk refuses to remove it, too.

    Raises:
        FileExistsError: The file exists; it stays.
        OSError: The disk failed.
        CorruptImage: The image that was read back differs.
    """
    descriptor = files.open(path, create=True)
    try:
        position = 0
        for block in _blocks(encode_image(made.head, items_of(made.state))):
            files.write(descriptor, [memoryview(block)], position)
            position += len(block)
        loaded = load(path)
        if loaded.head != made.head or not loaded.state.is_same(made.state):
            raise CorruptImage("A new image differs from the catalog when it is read back; try again.", path=path)
        files.sync(descriptor)
    except BaseException:
        with suppress(OSError):
            files.remove(path)
        raise
    finally:
        files.close(descriptor)


def load(path: Path, store_id: UUID | None = None) -> Image:
    """Read an image.

    Args:
        store_id: The store that the image must belong to; None for any.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: The file can't be read.
        CorruptImage: The image is damaged, or belongs to another store.
        UnsupportedVersion: A newer version wrote it.
    """
    with _reading(path, store_id) as reader:
        return Image(reader.head, state_of(reader.head, reader.items()))


def verify(path: Path, store_id: UUID | None = None) -> Head:
    """Verify an image without building its state; raises what :func:`load` raises."""
    with _reading(path, store_id) as reader:
        for _ in reader.items():
            pass
        return reader.head


def head_of(path: Path) -> Head:
    """Head of an image, verified by its own checksum; the rest is not read. Raises what :func:`load` raises."""
    with _reading(path, None) as reader:
        return reader.head


@contextmanager
def _reading(path: Path, store_id: UUID | None) -> Iterator[Reader]:
    with open_file(path) as file:
        try:
            size = size_of(file.fileno(), path, bytes_max=IMAGE_BYTES_MAX, error=CorruptImage)
            reader = Reader(file.read, size)
            if store_id is not None and reader.head.store_id != store_id:
                raise CorruptImage("This image belongs to another store; move it away.", of=reader.head.store_id)
            named = paths.image_txid(path.name)
            if named is not None and named != reader.head.txid:
                raise CorruptImage("An image has the name of another one; move it away.", txid=reader.head.txid)
            yield reader
        except StoreError as error:
            raise type(error)(error.message, **{**error.where, "path": path}) from error


@dataclass
class Images:
    """The images of one store.

    Attributes:
        damaged: Errors of the images that the last call of :meth:`usable` skipped.
    """

    directory: Path
    store_id: UUID
    damaged: list[CorruptImage] = field(default_factory=list)

    def usable(self, before: Txid = TXID_MAX) -> Iterator[Image]:
        """Valid images, the newest first.

        Args:
            before: Only images whose txid is lower than this one.

        Raises:
            UnsupportedVersion: A newer version wrote one of them.
        """
        self.damaged = []
        for txid in (each for each in txids(self.directory) if each < before):
            path = paths.image_file(self.directory, txid)
            try:
                yield load(path, self.store_id)
            except FileNotFoundError:
                continue  # a checkpoint removed it after it made two newer ones
            except OSError as error:
                self.damaged.append(CorruptImage("An image can't be read.", path=path, reason=error.strerror))
            except CorruptImage as error:
                self.damaged.append(error)

    def newest(self) -> Image | None:
        """The newest valid image; None if there is none."""
        return next(self.usable(), None)


Value = TypeVar("Value", bound="DataclassInstance")
Record = TypeVar("Record")


class _Mapping(Generic[Value, Record]):
    """Conversion of one kind of object to its record and back, field by field.

    Args:
        value: Class of the object; each of its fields is stored, so that none can be forgotten.
        record: Class of the record. Its other fields, such as the object's name, are given by the caller.
        elsewhere: Fields of the object that other records have.
        renamed: Names of fields in the record that differ from those in the object.
    """

    def __init__(
        self, value: type[Value], record: Callable[..., Record], *, elsewhere: tuple[str, ...] = (), **renamed: str
    ) -> None:
        self._value: Callable[..., Value] = value
        self._record = record
        self._names = {each.name: renamed.get(each.name, each.name) for each in fields(value)}
        for name in elsewhere:
            del self._names[name]

    def record(self, value: Value, **others: Any) -> Record:
        """The record of an object, with its fields that the object does not have."""
        return self._record(**others, **{theirs: getattr(value, ours) for ours, theirs in self._names.items()})

    def value(self, record: Record, **elsewhere: Any) -> Value:
        """The object of a record, with its fields that other records have."""
        return self._value(**elsewhere, **{ours: getattr(record, theirs) for ours, theirs in self._names.items()})


_TABLE = _Mapping(TableDefinition, Table, elsewhere=("schemas",), id="table_id")
_WRITER = _Mapping(NamedWriter, Writer, epoch="writer_epoch", kind="type")
_COMMIT = _Mapping(OpenCommit, Commit)
_CONSUMER = _Mapping(NamedConsumer, Consumer)


def items_of(state: CatalogState) -> Iterator[Item]:
    """Records of a state between head and foot; equal states have equal records in the same order."""
    for id, table in sorted(state.tables.items()):
        yield _TABLE.record(table)
        for schema_id, schema in sorted(table.schemas.items()):
            columns, altered = schemas.to_json(schema), table.is_altered(schema_id)
            yield Schema(table_id=id, schema_id=schema_id, columns=columns, altered=altered or UNSET)
    for id, writers in sorted(state.writers.items()):
        for name, writer in sorted(writers.named.items()):
            yield _WRITER.record(writer, table_id=id, name=name)
        for former in sorted(writers.former):
            yield Former(table_id=id, writer_id=former)
        for commit in writers.commits:
            yield _COMMIT.record(commit, table_id=id)
    for id, consumers in sorted(state.consumers.items()):
        for name, consumer in sorted(consumers.named.items()):
            yield _CONSUMER.record(consumer, table_id=id, name=name)
    for id, jobs in sorted(state.jobs.items()):
        for job_id, job in sorted(jobs.items()):
            yield Job(table_id=id, job_id=job_id, job=job)
    for name, replica in sorted(state.replicas.items()):
        yield Replica(name=name, replica=replica)


def state_of(head: Head, items: Iterable[Item]) -> CatalogState:
    """The state that has these records; the inverse of :func:`items_of`.

    Raises:
        CorruptImage: A record names a table that has no record.
    """
    tables: dict[TableId, TableDefinition] = {}
    named: dict[TableId, dict[str, NamedWriter]] = {}
    former: dict[TableId, set[WriterId]] = {}
    commits: dict[TableId, list[OpenCommit]] = {}
    consumers: dict[TableId, dict[str, NamedConsumer]] = {}
    jobs: dict[TableId, Jobs] = {}
    replicas: dict[str, ReplicaStatus] = {}
    for item in items:
        if isinstance(item, Replica):
            replicas[item.name] = item.replica
            continue
        id = item.table_id
        if not isinstance(item, Table) and id not in tables:
            raise CorruptImage("An image has a record of a table it does not have.", table_id=id)
        match item:
            case Table():
                tables[id] = _TABLE.value(item, schemas={})
            case Schema():
                tables[id].schemas[SchemaId(item.schema_id)] = schemas.from_json(item.columns)
            case Writer():
                named.setdefault(id, {})[item.name] = _WRITER.value(item)
            case Former():
                former.setdefault(id, set()).add(item.writer_id)
            case Commit():
                commits.setdefault(id, []).append(_COMMIT.value(item))
            case Consumer():
                consumers.setdefault(id, {})[item.name] = _CONSUMER.value(item)
            case Job():
                jobs[id] = {**jobs.get(id, {}), item.job_id: item.job}
    return CatalogState(
        head.txid,
        head.leader.epoch,
        head.leader.name,
        head.leader.lost_to,
        head.next_table_id,
        head.next_writer_id,
        Tables(tables),
        PersistentMap(
            {
                id: TableWriters(NamedWriters(named.get(id)), frozenset(former.get(id, ())), tuple(commits.get(id, ())))
                for id in {*named, *former, *commits}
            }
        ),
        PersistentMap({id: TableConsumers(NamedConsumers(names)) for id, names in consumers.items()}),
        PersistentMap(jobs),
        replicas,
    )


def _blocks(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in larger blocks."""
    waiting = bytearray()
    for part in parts:
        waiting += part
        if len(waiting) >= BUFFER_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)
