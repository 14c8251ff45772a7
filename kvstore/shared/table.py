"""A shared table: its epochs are objects, and a write is committed by creating the next one.

* An epoch names every range of every bucket. A range that no epoch names does not exist for readers.
* Ranges are uploaded before the epoch is created, so what an epoch names is there.
* The number of an epoch is noted after the epoch is created, so a number without an epoch from there on is a loss. It
  is never passed over: a read would lack a write that was committed, and the next write would take its number.
* A committer whose request had no answer finds out by the id of the commit whether it was the one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import uuid4

from kvstore.clock import Clock
from kvstore.errors import CorruptImage, MissingVersion, NoSuchTable, TableExists, Unavailable, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.replica.client import Client, content_of
from kvstore.replica.read.table import ReplicaTable
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.edits import CreateTable
from logformat.catalog.replicas import Shipped, Stream
from logformat.catalog.store_file import StoreFile
from logformat.ids import BucketId, TableId
from logformat.replica import manifest as replica_manifest, shared_table
from logformat.replica.object_file import ObjectName, encode_object
from logformat.replica.shared_table import EpochObject, SharedDefinition, SharedEpoch, SharedRange, SharedSnapshot

_TABLE_ID_BITS = 62
_TRIES = 20


class Content(NamedTuple):
    """What a table begins with.

    Attributes:
        ranges: For each bucket its ranges, which were uploaded.
        writers: Names under which something was written once, each with epoch 0.
        last_ms: Time of the last commit (ms).
    """

    ranges: list[list[SharedRange]]
    writers: dict[str, int]
    last_ms: int


@dataclass(frozen=True)
class SharedTable:
    """A shared table at a URL.

    Attributes:
        described: Its definition as it is stored.
        definition: The same, as reads and writes use it.
    """

    url: str
    client: Client
    described: SharedDefinition
    definition: TableDefinition = field(init=False)

    def __post_init__(self) -> None:
        of = self.described
        create = CreateTable(
            table_id=of.table_id,
            name=of.name,
            columns=of.columns,
            primary_key=of.primary_key,
            buckets=of.buckets,
            bucket_key=of.bucket_key,
            options=of.options,
        )
        object.__setattr__(self, "definition", TableDefinition.of(create))

    @classmethod
    def create(
        cls,
        url: str,
        client: Client,
        table: CreateTable,
        clock: Clock,
        content: Callable[[SharedTable], Content] | None = None,
    ) -> SharedTable:
        """Create a table. The id in ``table`` is replaced.

        Args:
            content: Uploads what the table begins with, and returns it; nothing if None. The table is not there yet.

        Raises:
            TableExists: There is a table of that name. No table was changed; objects of ``content`` may be left.
            UnsupportedOperation: There is a replica at the URL, or its object store can't hold shared tables. No table
                was changed.
            Unavailable: The object store can't be reached. The table may exist; find it to know.
        """
        if any(True for _ in client.list("leader/")) or content_of(client, replica_manifest.NAME, 1 << 30) is not None:
            raise UnsupportedOperation("There is a replica at this URL; choose another for shared tables.", url=url)
        if content_of(client, shared_table.definition_name(table.name), shared_table.DEFINITION_BYTES_MAX) is not None:
            raise TableExists("There is a shared table of that name; choose another.", table=table.name, url=url)
        store = _store_at(client, clock, url)
        described = SharedDefinition(
            store_id=store.store_id,
            created_ms=clock.now_ms(),
            table_id=TableId(uuid4().int >> 128 - _TABLE_ID_BITS),
            name=table.name,
            columns=table.columns,
            primary_key=table.primary_key,
            buckets=table.buckets,
            bucket_key=table.bucket_key,
            options=table.options,
        )
        shared = cls(url, client, described)
        first = Content([[] for _ in range(table.buckets)], {}, 0) if content is None else content(shared)
        # The epoch first: a table that is found has one.
        shared._put(
            SharedEpoch(
                store_id=store.store_id,
                table_id=described.table_id,
                epoch=0,
                commit=uuid4(),
                committed_ms=max(clock.now_ms(), first.last_ms),
                writers=first.writers,
                ranges=first.ranges,
                snapshots=[[] for _ in range(table.buckets)],
                full=0,
                in_full=[len(ranges) for ranges in first.ranges],
            )
        )
        name = shared_table.definition_name(table.name)
        if not client.create(name, [shared_table.encode(described)]):
            existing = cls.find(url, client, table.name)
            if existing.described != described:  # else the answer to an earlier request was lost
                raise TableExists("There is a shared table of that name; choose another.", table=table.name, url=url)
        shared._note(0)  # also shows a vacuum that the table was created
        return shared

    @classmethod
    def find(cls, url: str, client: Client, name: str) -> SharedTable:
        """The table of a name.

        Raises:
            NoSuchTable: There is none.
            CorruptData: Its definition is damaged.
            Unavailable: The object store can't be reached, or has no such bucket.
        """
        data = content_of(client, shared_table.definition_name(name), shared_table.DEFINITION_BYTES_MAX)
        if data is None and not has_shared_tables(client):
            raise NoSuchTable(
                "There are no shared tables at this URL; see whether it is right, or create the table first.",
                table=name,
                url=url,
            )
        if data is None:
            raise NoSuchTable("There is no shared table of that name at this URL.", table=name, url=url)
        return cls(url, client, shared_table.decode_definition(data, name))

    def newest(self) -> SharedEpoch:
        """The newest epoch: two requests for its number, two for the epoch.

        Raises:
            MissingVersion: Its object is gone, or all epochs are.
            CorruptData: The epoch is damaged.
            Unavailable: The object store can't be reached.
        """
        number = self.newest_number()
        epoch = self.epoch(number)
        if epoch is None:  # removed since it was listed: by a vacuum, if there are later ones
            number = self.newest_number(number)
            epoch = self.epoch(number)
        if epoch is None:
            raise self._lost(number)
        return epoch

    def newest_number(self, known: int = 0) -> int:
        """The number of the newest epoch: one request for a number that was noted, one for what is there from it on.

        Args:
            known: Number of an epoch that the table had.

        Raises:
            MissingVersion: None is there from the number on that was noted or is known.
            Unavailable: The object store can't be reached.
        """
        # Noted first, then listed: an epoch is noted when it is there, and later ones only add to it.
        noted = self.noted()
        least = max(known, noted or 0)
        prefix = shared_table.epochs_prefix(self.described.table_id)
        # A list begins after a name.
        after = shared_table.epoch_name(self.described.table_id, least - 1) if least else ""
        newest = max((name for name, _ in self.client.list(prefix, after)), default=None)
        if newest is not None:
            return int(newest.removeprefix(prefix))
        if noted is None and not known:
            raise MissingVersion("The epochs of the shared table are gone.", table=self.described.name, url=self.url)
        raise self._lost(least)

    def noted(self) -> int | None:
        """The number of an epoch that was there, as noted; later ones may be, too. None if none is noted.

        Raises:
            Unavailable: The object store can't be reached.
        """
        data = content_of(self.client, shared_table.newest_name(self.described.table_id), shared_table.NEWEST_BYTES_MAX)
        return int(data) if data is not None and data.isdigit() else None

    def epoch(self, number: int) -> SharedEpoch | None:
        """An epoch, or None if there is none of this number.

        Raises:
            MissingVersion: The full epoch to which it adds is gone.
            CorruptData: One of the two is damaged.
            Unavailable: The object store can't be reached.
        """
        added = self.stored(number)
        if added is None or added.full is None:
            return None if added is None else shared_table.epoch_of(added, added)
        full = self.stored(added.full)
        if full is None:
            name = shared_table.epoch_name(added.table_id, added.full)
            raise MissingVersion("The full epoch to which an epoch adds is gone.", object=name, epoch=number)
        return shared_table.epoch_of(added, full)

    def stored(self, number: int) -> EpochObject | None:
        """The object of an epoch, or None if there is none of this number.

        Raises:
            CorruptData: It is damaged.
            Unavailable: The object store can't be reached.
        """
        name = shared_table.epoch_name(self.described.table_id, number)
        data = content_of(self.client, name, shared_table.EPOCH_BYTES_MAX)
        return None if data is None else shared_table.decode_epoch(data, self.described, number)

    def upload(self, name: Callable[[int], ObjectName], parts: Sequence[bytes]) -> tuple[ObjectName, int]:
        """Create an object under a name that no other has; its name and its size in bytes.

        Args:
            name: A name by a random number.

        Raises:
            Unavailable: The object store can't be reached, or has objects of all names that were tried.
        """
        for _ in range(_TRIES):
            chosen = name(uuid4().int)
            pieces = encode_object(chosen, self.described.store_id, parts)
            if self.client.create(str(chosen), pieces):
                return chosen, sum(map(len, pieces))
        raise Unavailable("No name is free for an object; try again.", object=str(chosen))

    def commit(
        self,
        base: SharedEpoch,
        ranges: Mapping[BucketId, SharedRange],
        writer: str | None,
        at_ms: int,
        snapshots: Mapping[BucketId, list[SharedSnapshot]] | None = None,
        starts: Mapping[BucketId, int] | None = None,
    ) -> SharedEpoch | None:
        """Commit new ranges by creating the epoch after ``base``; None if another commit has taken its place.

        Args:
            ranges: For each bucket that was written, its range, which was uploaded and begins where ``base`` ends.
            writer: Name under which this is written once; None for no name.
            at_ms: Time of the commit (ms), which its ranges bear; later than that of ``base``.
            snapshots: For each bucket that gets other snapshots, all of them.
            starts: For each bucket of which changes expire, the start of the first range that stays; with a snapshot.

        Raises:
            Unavailable: It is not known whether the commit took place. A name tells: write again under it.
        """
        made = self._after(base, ranges, writer, at_ms)
        if snapshots:
            taken = [snapshots.get(BucketId(bucket), before) for bucket, before in enumerate(base.snapshots)]
            first = [(starts or {}).get(BucketId(bucket), 0) for bucket in range(len(made.ranges))]
            left = [
                [each for each in had if each.start >= start] for had, start in zip(made.ranges, first, strict=True)
            ]
            made = replace(made, snapshots=taken, ranges=left).as_full()
        if (self.noted() or 0) >= made.epoch:
            return None  # another commit has taken its place, and its object may be lost: then the number is not free
        is_there = self._created(made)
        if self._is_removed(base.epoch):
            # A vacuum may have removed this one, too; or the name was free because it had removed the one that had it.
            is_there = self._has(made, base, writer)
        if not is_there:
            return None
        self._note(made.epoch)
        return made

    def at(self, epoch: SharedEpoch) -> ReplicaTable:
        """The table as of an epoch, to be read as a table of a replica."""
        buckets = []
        for bucket in map(BucketId, range(self.definition.buckets)):
            stream, snapshots = Stream(self.definition.id, bucket), [each.offset for each in epoch.snapshots[bucket]]
            start, end = epoch.start(bucket), epoch.end(bucket)
            shipped = Shipped(stream=stream, start=start, end=end, snapshots=snapshots)
            buckets.append((shipped, epoch.sizes(bucket)))
        return ReplicaTable.of_ranges(self.url, epoch.store_id, self.definition, epoch.committed_ms, buckets)

    def _after(
        self, base: SharedEpoch, ranges: Mapping[BucketId, SharedRange], writer: str | None, at_ms: int
    ) -> SharedEpoch:
        number = base.epoch + 1
        made = replace(
            base,
            epoch=number,
            commit=uuid4(),
            committed_ms=at_ms,
            writers=shared_table.last_writers({**base.writers, **({} if writer is None else {writer: number})}),
            ranges=[
                [*before, ranges[BucketId(bucket)]] if BucketId(bucket) in ranges else before
                for bucket, before in enumerate(base.ranges)
            ],
        )
        return made.in_fewer_bytes()

    def _created(self, made: SharedEpoch) -> bool:
        """Create the object of an epoch; False if there is one of another commit.

        Raises:
            Unavailable: There was no answer, and there is no object; the request may yet be carried out.
        """
        try:
            if self._put(made):
                return True
            stored = self.stored(made.epoch)
        except Unavailable:
            stored = self.stored(made.epoch)
            if stored is None:
                raise
        # The client may have repeated a request whose answer was lost.
        return stored is not None and stored.commit == made.commit

    def _is_removed(self, number: int) -> bool:
        try:
            self.client.get_first(shared_table.epoch_name(self.described.table_id, number), 1)
        except FileNotFoundError:
            return True
        return False

    def _has(self, made: SharedEpoch, base: SharedEpoch, writer: str | None) -> bool:
        """Whether an epoch that added something is one of the table: the newest one is that, or comes after it."""
        newest = self.newest()
        if newest.epoch <= made.epoch:
            return newest.commit == made.commit
        follows = all(map(shared_table.has_ranges, newest.ranges, made.ranges))
        return follows and (made.ranges != base.ranges or newest.writers.get(writer or "") == made.epoch)

    def _put(self, epoch: SharedEpoch) -> bool:
        data = shared_table.encode(epoch.stored())
        if len(data) > shared_table.EPOCH_BYTES_MAX:  # nobody could read it, and it would be the newest for ever
            raise UnsupportedOperation(
                "The shared table has as many ranges as an epoch can name, some two million; write its rows to a new "
                "one. Nothing was written.",
                table=self.described.name,
                bytes=len(data),
                bytes_max=shared_table.EPOCH_BYTES_MAX,
            )
        return self.client.create(shared_table.epoch_name(self.described.table_id, epoch.epoch), [data])

    def _lost(self, number: int) -> MissingVersion:
        return MissingVersion(
            "The newest epoch of the shared table is gone, and with it the last write; put its object back. "
            'docs/how-to/shared-tables.md, "A lost object", says how, and how to go on without it.',
            object=shared_table.epoch_name(self.described.table_id, number),
            table=self.described.name,
            url=self.url,
        )

    def _note(self, epoch: int) -> None:
        """Note the number of an epoch, which saves readers from listing all; an older number does no harm."""
        with suppress(Unavailable):
            self.client.replace(shared_table.newest_name(self.described.table_id), [str(epoch).encode()])


def _store_at(client: Client, clock: Clock, url: str) -> StoreFile:
    """The store of which all tables at a URL are.

    Raises:
        UnsupportedOperation: The object store replaces what is to be created only: two writes would both be committed.
    """
    if content_of(client, paths.STORE_FILE, store_file.STORE_BYTES_MAX) is None:
        # If it was lost, the tables that are there say of which store they are.
        store_id = next((each.store_id for each in described_in(client)), None) or uuid4()
        client.create(paths.STORE_FILE, [store_file.encode(StoreFile(store_id=store_id, created_ms=clock.now_ms()))])
    store = store_of(client, url)
    if client.create(paths.STORE_FILE, [store_file.encode(store)]):  # the same bytes: nothing is lost
        raise UnsupportedOperation(
            "This object store replaces an object that is to be created only if there is none of its name, so it can't "
            "hold shared tables; see docs/spark.md, Object stores.",
            url=url,
        )
    return store


def store_of(client: Client, url: str) -> StoreFile:
    """The store of which all tables at a URL are, by the object STORE.

    Raises:
        MissingVersion: The object is gone.
        CorruptImage: It is damaged.
        UnsupportedVersion: A newer version wrote it.
        Unavailable: The object store can't be reached.
    """
    data = content_of(client, paths.STORE_FILE, store_file.STORE_BYTES_MAX)
    if data is None:
        raise MissingVersion(
            "The object STORE of the shared tables is gone; put it back, or create a table of any name at this URL, "
            "which writes STORE again.",
            object=paths.STORE_FILE,
            url=url,
        )
    try:
        return store_file.decode(data)
    except CorruptImage as error:
        raise CorruptImage(
            "The object STORE of the shared tables is damaged; put it back, or remove it and create a table of any "
            "name at this URL, which writes STORE again.",
            object=paths.STORE_FILE,
            url=url,
        ) from error


def described_in(client: Client) -> list[SharedDefinition]:
    """Definitions of all shared tables at the place of a client.

    Raises:
        CorruptData: One is damaged.
        Unavailable: The object store can't be reached.
    """
    definitions = []
    for name, _ in client.list(f"{shared_table.DEFINITIONS_PREFIX}/"):
        data = content_of(client, name, shared_table.DEFINITION_BYTES_MAX)
        if data is not None:
            definitions.append(shared_table.decode_named_definition(data, name))
    return definitions


def has_shared_tables(client: Client) -> bool:
    """Whether there are shared tables at the place of a client."""
    return next(client.list(f"{shared_table.DEFINITIONS_PREFIX}/"), None) is not None
