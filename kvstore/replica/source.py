"""What a replica has, as of one moment: for whoever makes something of it.

* A hole is never crossed: who asks for what lies behind one is told where it is.
* Whatever is read is verified before it is handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from io import BytesIO
from itertools import takewhile

import msgspec

from kvstore.errors import CorruptData, MissingVersion, NotAStore, ReplicaBehind
from kvstore.meta import image
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.replica.check import Listing, read_object
from kvstore.replica.client import Client
from kvstore.replica.consistent_cut import BucketHistory, Committed
from kvstore.replica.contents import batches_along, edits_of, snapshot_parts
from kvstore.replica.coverage import ShippedPath, path_from, path_to, reached
from kvstore.table.definition import BUCKETS_MAX
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.edits import Edit
from logformat.catalog.image import Head, Reader
from logformat.catalog.replicas import CATALOG, Shipped, Stream
from logformat.catalog.store_file import StoreFile
from logformat.ids import WriterId
from logformat.log.batch import BatchHeader
from logformat.log.snapshot_manifest import Manifest, decode_manifest, decode_writers
from logformat.replica import manifest as replica_told
from logformat.replica.manifest import ReplicaManifest
from logformat.replica.object_file import FoundObject, ObjectName

_TRIES = 20
_OBJECTS_KEPT = 4
"""In memory: where a bucket ends is looked for before it is written."""


class Source:
    """A replica, as of when this was made.

    Args:
        progress: Called with the bytes of each object once it is read.

    Attributes:
        store: The store it is of.
        told: What it was told.

    Raises:
        NotAStore: There is no replica.
        MissingVersion: It does not say up to where it goes.
        ReplicaBehind: It changes all the time.
        CorruptData: What it says is damaged.
        Unavailable: It can't be reached; so for every method.
    """

    store: StoreFile
    told: ReplicaManifest

    def __init__(self, client: Client, progress: Callable[[int], None] = lambda _: None) -> None:
        self._client = client
        self._progress = progress
        try:
            self.store = store_file.decode(bytes(client.get(paths.STORE_FILE, bytes_max=store_file.STORE_BYTES_MAX)))
        except FileNotFoundError as error:
            raise NotAStore("There is no replica here; see whether the URL is right.") from error
        self.told, listing = self._as_of_now()
        self._sizes: dict[Stream, dict[ObjectName, int]] = {}
        for name, size in listing.sizes.items():
            self._sizes.setdefault(name.stream, {})[name] = size
        self._shipped = {each.stream: each for each in self.told.shipped}
        self._read_last: dict[ObjectName, FoundObject] = {}

    def objects(self, stream: Stream) -> list[ObjectName]:
        """Of a track, in no order."""
        return list(self.sizes(stream))

    def sizes(self, stream: Stream) -> dict[ObjectName, int]:
        """Of these, the bytes of each as they were listed."""
        return self._sizes.get(stream, {})

    def shipped(self, stream: Stream) -> Shipped:
        """What the replica was told of a track; of a table that was dropped since, what is there."""
        if stream in self._shipped:
            return self._shipped[stream]
        named = self.objects(stream)
        starts = sorted(each.start for each in named if each.kind == "snapshot")
        start = 0 if any(each.start == 0 for each in named) or not starts else starts[0]
        furthest = max((each.end for each in named), default=0)
        told = Shipped(stream=stream, start=start, end=furthest, snapshots=starts)
        return msgspec.structs.replace(told, end=reached(told, named))

    def way(self, stream: Stream, end: int) -> ShippedPath:
        """The way to an offset, from as early as there is one.

        Raises:
            MissingVersion: There is none.
        """
        found = path_to(end, self.shipped(stream), self.objects(stream))
        if found is None:
            raise self._hole(stream, reached(self.shipped(stream), self.objects(stream)), end)
        return found

    def way_from(self, stream: Stream, start: int, end: int) -> ShippedPath:
        """The way from an offset to another.

        Raises:
            MissingVersion: There is none.
        """
        found = path_from(start, end, self.objects(stream))
        if (found.pieces[-1].until if found.pieces else start) < end:
            raise self._hole(stream, found.pieces[-1].until if found.pieces else start, end)
        return found

    def batches(self, way: ShippedPath, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Batches of a way that end at or before an offset, each once.

        Raises:
            CorruptData: An object is not what it should be.
        """
        found = batches_along(((self.read(piece.name), piece.until) for piece in way.pieces), way.start)
        return takewhile(lambda each: each[0].next_offset <= end, found)

    def history(
        self,
        way: ShippedPath,
        end: int,
        writers: Set[WriterId],
        before: Mapping[WriterId, int],
        goes_on: Callable[[BatchHeader], bool],
    ) -> BucketHistory:
        """What a bucket has at the end of a way, or before the first batch that is not to be taken.

        Args:
            writers: Whose batches are told.
            before: Of each writer the last sequence before the way; its snapshot knows better, if it has one.
            goes_on: Whether a batch is to be taken.

        Raises:
            CorruptData: An object is not what it should be.
        """
        if way.snapshot is not None:
            before = self.last_sequences(way.snapshot)
        found, at = [], way.start
        for header, _ in self.batches(way, end):
            if not goes_on(header):
                break
            if header.writer_id in writers:
                found.append(Committed(header.writer_id, header.batch_sequence, header.base_offset))
            at = header.next_offset
        return BucketHistory(before, found, at)

    def edits(self, way: ShippedPath) -> Iterator[Edit]:
        """Edits of a way of the catalog, in order, each once.

        Raises:
            CorruptData: An object is not what it should be.
        """
        at = way.start
        for piece in way.pieces:
            for edit in edits_of(self.read(piece.name)):
                if edit.txid > piece.until:
                    break
                if edit.txid > at:
                    yield edit
                    at = edit.txid

    def image(self, name: ObjectName) -> tuple[Head, CatalogState]:
        """The image of the catalog in an object.

        Raises:
            CorruptData: It is not what it should be.
        """
        (data,) = snapshot_parts(self.read(name))
        reader = Reader(BytesIO(data).read, len(data))
        return reader.head, image.state_of(reader.head, reader.items())

    def manifest(self, name: ObjectName) -> Manifest:
        """Of a bucket's snapshot."""
        return decode_manifest(bytes(snapshot_parts(self.read(name))[0]))

    def last_sequences(self, name: ObjectName) -> dict[WriterId, int]:
        """Of each writer that is in a bucket's snapshot."""
        entries = decode_writers(bytes(snapshot_parts(self.read(name))[1]))
        return {id: entry.batches[-1].sequence for id, entry in entries.items()}

    def read(self, name: ObjectName) -> FoundObject:
        """An object, verified.

        Raises:
            CorruptData: It is not what it should be.
        """
        if name not in self._read_last:
            size = self._sizes[name.stream][name]
            self._read_last[name] = read_object(self._client, self.store.store_id, name, size)
            self._progress(size)
        if len(self._read_last) > _OBJECTS_KEPT:
            del self._read_last[next(iter(self._read_last))]
        return self._read_last[name]

    def _hole(self, stream: Stream, begin: int, end: int) -> MissingVersion:
        where = "the catalog" if stream == CATALOG else f"bucket {stream.bucket} of table {stream.table_id}"
        return MissingVersion(
            f"The replica has a hole in {where}; run `kvstore replica repair` where its leader is.",
            missing_from=begin,
            before=end,
        )

    def _as_of_now(self) -> tuple[ReplicaManifest, Listing]:
        """What the replica was told, and what it lists: all of it and maybe more, for its leader goes on."""
        for _ in range(_TRIES):
            before = what_was_told(self._client)
            listing = Listing.of(self._client)
            told = replica_told.decode(before, self.store.store_id)
            # A listing may take longer than what is told stays the same: it needs only be gone on with.
            if (after := what_was_told(self._client)) == before or _goes_on(
                told, replica_told.decode(after, self.store.store_id)
            ):
                return told, listing
        raise ReplicaBehind("The replica changes all the time; try again.")


def _goes_on(before: ReplicaManifest, after: ReplicaManifest) -> bool:
    """Whether what was told first is there still: nothing began anew, and nobody else leads."""
    now = {each.stream: each for each in after.shipped}
    return before.leader_epoch == after.leader_epoch and all(
        (to := now.get(each.stream)) is not None and to.start == each.start and to.end >= each.end
        for each in before.shipped
    )


def what_was_told(client: Client) -> bytes:
    """The object that says up to where a replica goes.

    Raises:
        MissingVersion: There is none.
    """
    try:
        return bytes(client.get(replica_told.NAME, bytes_max=replica_told.TOLD_BYTES_MAX))
    except FileNotFoundError as error:
        raise MissingVersion(
            "The replica does not say up to where it goes; run `kvstore replica repair` where its leader is."
        ) from error


def check_table(definition: TableDefinition) -> None:
    """See whether a table can be: what comes from a replica may be made to harm.

    Raises:
        CorruptData: It can't.
    """
    names = {name for schema in definition.schemas.values() for name in schema.names}
    keys = {*(definition.primary_key or ()), *(definition.bucket_key or ())}
    if definition.id < 1 or not 1 <= definition.buckets <= BUCKETS_MAX or not names or not keys <= names:
        raise CorruptData("The catalog of the replica has a table that can't be.", table_id=definition.id)
