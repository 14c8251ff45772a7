"""Images of the catalog: its state as of one edit in a file, so that edits before it need not be replayed.

* One has its name only once it is whole, was read back, and is durable: a name that is there and not right is damage.
* Nothing of one is believed before its end was reached and found right.
* Only who holds the lock of the images writes one; see ``kvstore/checkpoint``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from kvstore.errors import CorruptImage, StoreError
from kvstore.files import Files, names_in, open_file, size_of
from kvstore.meta.consumers import NamedConsumer, TableConsumers
from kvstore.meta.jobs import Jobs
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.writers import NamedWriter, OpenCommit, TableWriters
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

TXID_MAX = Txid(2**63 - 1)
"""No edit has it: txids are signed integers of 64 bits."""
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Image:
    """A state, and what stands before it in its file."""

    head: Head
    state: CatalogState


def txids(directory: Path) -> list[Txid]:
    """Last edits of the images that a directory lists, the newest first."""
    return sorted((txid for txid in map(paths.image_txid, names_in(directory)) if txid is not None), reverse=True)


def image_of(state: CatalogState, store_id: UUID, *, epoch: Epoch, now_ms: int) -> Image:
    """A state as an image, not written yet."""
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
    """Write an image to a new file, read it back, and make its bytes durable; not its name.

    Raises:
        FileExistsError: There is a file of that name.
        OSError: The disk refuses. What the file holds is no image.
        CorruptImage: What was read back is something else.
    """
    descriptor = files.open(path, create=True)
    try:
        position = 0
        for piece in _pieces(encode_image(made.head, items_of(made.state))):
            files.write(descriptor, [memoryview(piece)], position)
            position += len(piece)
        found = load(path)
        if found.head != made.head or not found.state.is_same(made.state):
            raise CorruptImage("An image that was just written is not what was to be written.", path=path)
        files.sync(descriptor)
    finally:
        files.close(descriptor)


def load(path: Path, store_id: UUID | None = None) -> Image:
    """Read an image.

    Args:
        store_id: Of the store it must be of; None for any.

    Raises:
        FileNotFoundError: It is not there.
        OSError: It can't be read.
        CorruptImage: It is damaged, or another's.
        UnsupportedVersion: A newer version wrote it.
    """
    with _reading(path, store_id) as reader:
        return Image(reader.head, state_of(reader.head, reader.items()))


def verify(path: Path, store_id: UUID | None = None) -> Head:
    """Read an image, and make no catalog of it; see :func:`load`."""
    with _reading(path, store_id) as reader:
        for _ in reader.items():
            pass
        return reader.head


def head_of(path: Path) -> Head:
    """The first record of an image, by its own checksum; the rest is not looked at. See :func:`load`."""
    with _reading(path, None) as reader:
        return reader.head


@contextmanager
def _reading(path: Path, store_id: UUID | None) -> Iterator[Reader]:
    with open_file(path) as file:
        try:
            size = size_of(file.fileno(), path, bytes_max=IMAGE_BYTES_MAX, error=CorruptImage)
            reader = Reader(file.read, size)
            if store_id is not None and reader.head.store_id != store_id:
                raise CorruptImage("This is an image of another store; move it away.", of=reader.head.store_id)
            named = paths.image_txid(path.name)
            if named is not None and named != reader.head.txid:
                raise CorruptImage("An image has the name of another; move it away.", txid=reader.head.txid)
            yield reader
        except StoreError as error:
            raise type(error)(error.message, **{**error.where, "path": path}) from error


@dataclass
class Images:
    """The images of one store.

    Attributes:
        damaged: What was wrong with those that could not be used, when last there was a look for one.
    """

    directory: Path
    store_id: UUID
    damaged: list[CorruptImage] = field(default_factory=list)

    def usable(self, before: Txid = TXID_MAX) -> Iterator[Image]:
        """Those that are right, the newest first.

        Args:
            before: Only those of edits before this one.

        Raises:
            UnsupportedVersion: A newer version wrote one.
        """
        self.damaged = []
        for txid in (each for each in txids(self.directory) if each < before):
            path = paths.image_file(self.directory, txid)
            try:
                yield load(path, self.store_id)
            except FileNotFoundError:
                continue  # two newer ones have taken its place meanwhile
            except OSError as error:
                self.damaged.append(CorruptImage("An image can't be read.", path=path, reason=error.strerror))
            except CorruptImage as error:
                self.damaged.append(error)

    def newest(self) -> Image | None:
        """The newest one that is right."""
        return next(self.usable(), None)


def items_of(state: CatalogState) -> Iterator[Item]:
    """The records of an image, in an order that equal states have in common."""
    for id, table in sorted(state.tables.items()):
        yield Table(
            table_id=id,
            name=table.name,
            primary_key=_listed(table.primary_key),
            bucket_key=_listed(table.bucket_key),
            buckets=table.buckets,
            options=table.options,
        )
        for schema_id, schema in sorted(table.schemas.items()):
            yield Schema(table_id=id, schema_id=schema_id, columns=schemas.to_json(schema))
    for id, writers in sorted(state.writers.items()):
        for name, writer in sorted(writers.named.items()):
            yield Writer(
                table_id=id,
                name=name,
                writer_id=writer.writer_id,
                writer_epoch=writer.epoch,
                type=writer.kind,
                run=writer.run,
                first_epoch=writer.first_epoch,
            )
        for former in sorted(writers.former):
            yield Former(table_id=id, writer_id=former)
        for commit in writers.commits:
            yield Commit(
                table_id=id,
                commit_id=commit.commit_id,
                writer_id=commit.writer_id,
                writer_epoch=commit.writer_epoch,
                sequence=commit.sequence,
            )
    for id, consumers in sorted(state.consumers.items()):
        for name, consumer in sorted(consumers.named.items()):
            yield Consumer(table_id=id, name=name, offsets=list(consumer.offsets), until_ms=consumer.until_ms)
    for of, jobs in sorted(state.jobs.items()):
        for job_id, job in sorted(jobs.items()):
            yield Job(table_id=of, job_id=job_id, job=job)
    for name, replica in sorted(state.replicas.items()):
        yield Replica(name=name, replica=replica)


def state_of(head: Head, items: Iterable[Item]) -> CatalogState:
    """The state that records are of.

    Raises:
        CorruptImage: One is about a table that is not there.
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
                tables[id] = TableDefinition(
                    id,
                    item.name,
                    {},
                    _tupled(item.primary_key),
                    item.buckets,
                    item.options,
                    _tupled(item.bucket_key),
                )
            case Schema():
                tables[id].schemas[SchemaId(item.schema_id)] = schemas.from_json(item.columns)
            case Writer():
                opened = NamedWriter(item.writer_id, item.writer_epoch, item.type, item.run, item.first_epoch)
                named.setdefault(id, {})[item.name] = opened
            case Former():
                former.setdefault(id, set()).add(item.writer_id)
            case Commit():
                begun = OpenCommit(item.commit_id, item.writer_id, item.writer_epoch, item.sequence)
                commits.setdefault(id, []).append(begun)
            case Consumer():
                consumers.setdefault(id, {})[item.name] = NamedConsumer(tuple(item.offsets), item.until_ms)
            case Job():
                jobs[id] = {**jobs.get(id, {}), item.job_id: item.job}
    return CatalogState(
        head.txid,
        head.leader.epoch,
        head.leader.name,
        head.leader.lost_to,
        head.next_table_id,
        head.next_writer_id,
        tables,
        {
            id: TableWriters(named.get(id, {}), frozenset(former.get(id, ())), tuple(commits.get(id, ())))
            for id in sorted({*named, *former, *commits})
        },
        {id: TableConsumers(names) for id, names in consumers.items()},
        jobs,
        replicas,
    )


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def _tupled(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _pieces(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in larger pieces."""
    waiting = bytearray()
    for part in parts:
        waiting += part
        if len(waiting) >= _BUFFER_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)
