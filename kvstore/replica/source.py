"""A replica as of one moment, for everything that is made from it.

* A hole is never crossed: a request for what lies after one is refused, and the error names the hole.
* Everything that is read is verified before it is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from io import BytesIO
from itertools import takewhile
from typing import NamedTuple

import msgspec

from kvstore.errors import CorruptData, MissingVersion, NotAStore, ReplicaBehind
from kvstore.meta import image
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.replica.check import Listing, read_listed
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
from logformat.ids import TableId, WriterId
from logformat.log.batch import BatchHeader
from logformat.log.snapshot_manifest import Manifest, decode_manifest, decode_writers
from logformat.replica import manifest as replica_manifest
from logformat.replica.manifest import ReplicaManifest
from logformat.replica.object_file import CATALOG_PREFIX, TABLES_PREFIX, FoundObject, ObjectName, place_of_stream

_TRIES = 20
SLACK_MS = 60_000
"""How far the clock of a leader may have been set back during one commit."""
_OBJECTS_KEPT = 4
"""Objects kept in memory, because the end of a bucket is looked for before the bucket is written."""


class ShippedCatalog(NamedTuple):
    """The catalog of a replica.

    Attributes:
        image_ms: Creation time of the image that ``base`` comes from; None if ``base`` is empty.
        base: The catalog before ``edits``.
        edits: Edits after ``base``, up to the end in the replica manifest; read as they are iterated over.
    """

    image_ms: int | None
    base: CatalogState
    edits: Iterator[Edit]


class Source:
    """A replica as of the creation of this object.

    Args:
        progress: Called with the bytes of each object after it is read.
        only_catalog: Whether only the catalog's objects are listed; see :meth:`add_table`.

    Attributes:
        store: Identity of the store that the replica belongs to.
        manifest: The replica manifest.

    Raises:
        NotAStore: There is no replica.
        MissingVersion: The replica manifest is missing.
        ReplicaBehind: The replica changes all the time.
        CorruptData: The store file or the manifest is damaged.
        Unavailable: The replica can't be reached. Every method may raise this.
    """

    store: StoreFile
    manifest: ReplicaManifest

    def __init__(
        self, client: Client, progress: Callable[[int], None] = lambda _: None, *, only_catalog: bool = False
    ) -> None:
        self._client = client
        self._progress = progress
        self._only_catalog = only_catalog
        self.store = read_store(client)
        self._sizes: dict[Stream, dict[ObjectName, int]] = {}
        self.manifest, listing = self._as_of_now(f"{CATALOG_PREFIX}/" if only_catalog else "")
        self._add(listing)
        self._shipped = {each.stream: each for each in self.manifest.shipped}
        self._read_last: dict[ObjectName, FoundObject] = {}

    def add_table(self, table_id: TableId) -> bool:
        """List the objects of a table, if only the catalog's were listed.

        Returns:
            Whether the replica still has everything in the manifest; if not, create another object of this class.
        """
        self._add(Listing.of(self._client, f"{TABLES_PREFIX}/{table_id}/"))
        return self._extends_ours(read_manifest(self._client))

    def renew(self, streams: Iterable[Stream]) -> bool:
        """Take the newest manifest; of each stream that has grown, list only what comes after its end known so far.

        Args:
            streams: The catalog, and streams of tables that were listed.

        Returns:
            Whether this object has a path from the ends known so far to the new ones. If not, nothing has changed in
            it; create another object of this class.
        """
        manifest = replica_manifest.decode(read_manifest(self._client), self.store.store_id)
        if manifest.leader_epoch != self.manifest.leader_epoch:
            return False
        shipped = {each.stream: each for each in manifest.shipped}
        if not all(
            self._has_new(stream, self.shipped(stream).end, shipped[stream].end)
            and (stream == CATALOG or self._has_new_starts(self.shipped(stream), shipped[stream]))
            for stream in streams
            if stream in shipped
        ):
            return False
        # The manifest lacks the streams of a dropped table, which the catalog in it may still have.
        self.manifest, self._shipped = manifest, self._shipped | shipped
        return True

    def forget(self, stream: Stream, before: int) -> None:
        """Forget the names of objects that end at or before an offset, from which on the stream is read."""
        sizes = self._sizes.get(stream, {})
        for name in [name for name in sizes if name.end <= before]:
            del sizes[name]

    def _has_new(self, stream: Stream, start: int, end: int) -> bool:
        """Whether there is a path from one offset to another, also among objects that are listed for this."""
        prefix = place_of_stream(stream)
        # Small ranges may have been merged since into one that begins before `start`, and then been removed.
        for after in (f"{prefix}/{start:020d}", ""):
            if self._reaches(stream, start, end):
                return True
            self._add(Listing.of(self._client, f"{prefix}/", after))
        return self._reaches(stream, start, end)

    def _has_new_starts(self, before: Shipped, after: Shipped) -> bool:
        """Whether the snapshots that a manifest newly names are there, also if they have to be listed."""
        # The retention ships them at offsets before the end, so they are not among the names after it.
        new = {after.start, *after.snapshots} - {before.start, *before.snapshots, 0}
        if new <= self._snapshots(after.stream):
            return True
        self._add(Listing.of(self._client, f"{place_of_stream(after.stream)}/"))
        return new <= self._snapshots(after.stream)

    def _snapshots(self, stream: Stream) -> set[int]:
        return {name.start for name in self.objects(stream) if name.kind == "snapshot"}

    def _reaches(self, stream: Stream, start: int, end: int) -> bool:
        pieces = path_from(start, end, self.objects(stream)).pieces if start < end else []
        return start >= end or (bool(pieces) and pieces[-1].until >= end)

    def objects(self, stream: Stream) -> list[ObjectName]:
        """Names of a stream's objects, in no order."""
        return list(self.sizes(stream))

    def object_count(self) -> int:
        """Number of objects that were listed and not forgotten."""
        return sum(map(len, self._sizes.values()))

    def sizes(self, stream: Stream) -> dict[ObjectName, int]:
        """Sizes of a stream's objects in bytes, as listed."""
        return self._sizes.get(stream, {})

    def has_all_of(self, earlier: Source) -> bool:
        """Whether every object that an earlier source listed is still there."""
        return all(earlier._sizes[stream].keys() <= self.sizes(stream).keys() for stream in earlier._sizes)

    def size(self, name: ObjectName) -> int:
        """Size of an object in bytes, as listed."""
        return self._sizes[name.stream][name]

    def shipped(self, stream: Stream) -> Shipped:
        """What the manifest has of a stream; for a table that was dropped since, what the listed objects cover.

        If only the catalog's objects were listed at first, a stream that was in no manifest has nothing: it is of a new
        table, and its objects may have a part of a commit only.
        """
        if stream in self._shipped:
            return self._shipped[stream]
        if self._only_catalog:
            return Shipped(stream=stream, start=0, end=0, snapshots=[])
        named = self.objects(stream)
        starts = sorted(each.start for each in named if each.kind == "snapshot")
        start = 0 if any(each.start == 0 for each in named) or not starts else starts[0]
        furthest = max((each.end for each in named), default=0)
        listed = Shipped(stream=stream, start=start, end=furthest, snapshots=starts)
        return msgspec.structs.replace(listed, end=reached(listed, named))

    def path(self, stream: Stream, end: int, *, newest_before: int | None = None) -> ShippedPath:
        """The path to an offset that starts earliest.

        Args:
            newest_before: See :func:`path_to`.

        Raises:
            MissingVersion: There is none.
            ReplicaBehind: The replica starts after it.
        """
        shipped = path_to(end, self.shipped(stream), self.objects(stream), newest_before=newest_before)
        if shipped is None and end < self.shipped(stream).start:
            raise ReplicaBehind(
                "The replica starts after this offset: its retention has removed what was before.",
                table_id=stream.table_id,
                bucket=stream.bucket,
                offset=end,
                start=self.shipped(stream).start,
            )
        if shipped is None:
            raise self._hole(stream, reached(self.shipped(stream), self.objects(stream)), end)
        return shipped

    def path_from(self, stream: Stream, start: int, end: int) -> ShippedPath:
        """The path from one offset to another.

        Raises:
            MissingVersion: There is none.
        """
        shipped = path_from(start, end, self.objects(stream))
        if (shipped.pieces[-1].until if shipped.pieces else start) < end:
            raise self._hole(stream, shipped.pieces[-1].until if shipped.pieces else start, end)
        return shipped

    def batches(self, path: ShippedPath, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Batches along a path that end at or before an offset, each once.

        Raises:
            CorruptData: An object is damaged.
        """
        batches = batches_along(((self.read(piece.name), piece.until) for piece in path.pieces), path.start)
        return takewhile(lambda each: each[0].next_offset <= end, batches)

    def batches_backwards(self, path: ShippedPath, end: int) -> Iterator[BatchHeader]:
        """Headers of the same batches, the last one first.

        Raises:
            CorruptData: An object is damaged.
        """
        starts = [path.start, *(piece.until for piece in path.pieces)]
        for start, piece in reversed(list(zip(starts, path.pieces, strict=False))):
            objects = [(self.read(piece.name), min(end, piece.until))]
            yield from reversed([header for header, _ in batches_along(objects, start)])

    def history(
        self,
        path: ShippedPath,
        end: int,
        writers: Set[WriterId],
        before: Mapping[WriterId, int],
        is_wanted: Callable[[BatchHeader], bool],
    ) -> BucketHistory:
        """The history of a bucket at the end of a path, or before the first batch that is not wanted.

        Args:
            writers: Writers whose batches the history has.
            before: The last sequence of each writer before the path. If the path has a snapshot, its writers are used.
            is_wanted: Whether a batch may be taken.

        Raises:
            CorruptData: An object is damaged.
        """
        if path.snapshot is not None:
            before = self.last_sequences(path.snapshot)
        committed, at = [], path.start
        for header, _ in self.batches(path, end):
            if not is_wanted(header):
                break
            if header.writer_id in writers:
                committed.append(Committed(header.writer_id, header.batch_sequence, header.base_offset))
            at = header.next_offset
        return BucketHistory(before, committed, at)

    def recent_catalog(self) -> ShippedCatalog:
        """The same as :meth:`catalog`, from the newest image that was made before the time of the manifest.

        It has every commit that may be in some of the buckets only, up to their ends in the manifest.
        """
        end = self.shipped(CATALOG).end
        for offset in sorted(self.shipped(CATALOG).snapshots, reverse=True):
            path = self.path(CATALOG, end, newest_before=offset)
            if path.start == offset < end and path.snapshot is not None:
                head, state = self.image(path.snapshot)
                if head.created_ms < self.manifest.as_of_ms - SLACK_MS:
                    return ShippedCatalog(head.created_ms, state, self.edits(path))
        return self.catalog()

    def catalog(self) -> ShippedCatalog:
        """The catalog, up to its end in the manifest.

        Raises:
            MissingVersion: There is a hole.
            CorruptData: The image is damaged.
        """
        path = self.path(CATALOG, self.shipped(CATALOG).end)
        if path.snapshot is None:
            return ShippedCatalog(None, CatalogState(), self.edits(path))
        head, state = self.image(path.snapshot)
        return ShippedCatalog(head.created_ms, state, self.edits(path))

    def edits(self, path: ShippedPath) -> Iterator[Edit]:
        """Edits along a path of the catalog, in order, each once.

        Raises:
            CorruptData: An object is damaged.
        """
        at = path.start
        for piece in path.pieces:
            for edit in edits_of(self.read(piece.name)):
                if edit.txid > piece.until:
                    break
                if edit.txid > at:
                    yield edit
                    at = edit.txid

    def image(self, name: ObjectName) -> tuple[Head, CatalogState]:
        """The image of the catalog in an object.

        Raises:
            CorruptData: The object is damaged.
        """
        (data,) = snapshot_parts(self.read(name))
        reader = Reader(BytesIO(data).read, len(data))
        return reader.head, image.state_of(reader.head, reader.items())

    def snapshot_manifest(self, name: ObjectName) -> Manifest:
        """The manifest of a bucket's snapshot."""
        return decode_manifest(bytes(snapshot_parts(self.read(name))[0]))

    def last_sequences(self, name: ObjectName) -> dict[WriterId, int]:
        """The last sequence of each writer in a bucket's snapshot."""
        entries = decode_writers(bytes(snapshot_parts(self.read(name))[1]))
        return {id: entry.batches[-1].sequence for id, entry in entries.items()}

    def read(self, name: ObjectName) -> FoundObject:
        """Read and verify an object.

        Raises:
            CorruptData: The object is damaged.
            ReplicaBehind: It is gone; another object of this class, made now, knows what the replica has instead.
        """
        if name not in self._read_last:
            size = self.size(name)
            self._read_last[name] = read_listed(self._client, self.store.store_id, name, size)
            self._progress(size)
        if len(self._read_last) > _OBJECTS_KEPT:
            del self._read_last[next(iter(self._read_last))]
        return self._read_last[name]

    def release(self) -> None:
        """Free the objects that are kept in memory; they are read again if they are needed."""
        self._read_last.clear()

    def _hole(self, stream: Stream, begin: int, end: int) -> MissingVersion:
        where = "the catalog" if stream == CATALOG else f"bucket {stream.bucket} of table {stream.table_id}"
        return MissingVersion(
            f"The replica has a hole in {where}; run `kvstore replica repair` on its leader.",
            missing_from=begin,
            before=end,
        )

    def _as_of_now(self, prefix: str) -> tuple[ReplicaManifest, Listing]:
        """The manifest, and a listing that has everything in the manifest and maybe more, as the leader continues."""
        for _ in range(_TRIES):
            self.manifest = replica_manifest.decode(read_manifest(self._client), self.store.store_id)
            listing = Listing.of(self._client, prefix)
            if self._extends_ours(read_manifest(self._client)):
                return self.manifest, listing
        raise ReplicaBehind("The replica changes all the time; try again.")

    def _extends_ours(self, data: bytes) -> bool:
        """Whether an encoded manifest has everything of ours: listing takes longer than a manifest stays unchanged."""
        after = replica_manifest.decode(data, self.store.store_id)
        return after == self.manifest or _extends(after, self.manifest)

    def _add(self, listing: Listing) -> None:
        for name, size in listing.sizes.items():
            self._sizes.setdefault(name.stream, {})[name] = size


def _extends(after: ReplicaManifest, before: ReplicaManifest) -> bool:
    """Whether a manifest has everything of an earlier one: no stream was restarted, and the leader is the same."""
    now = {each.stream: each for each in after.shipped}
    return before.leader_epoch == after.leader_epoch and all(
        (later := now.get(each.stream)) is not None and later.start == each.start and later.end >= each.end
        for each in before.shipped
    )


def read_store(client: Client) -> StoreFile:
    """The identity of the store that a replica belongs to.

    Raises:
        NotAStore: There is no replica.
        CorruptData: The object is damaged.
    """
    try:
        return store_file.decode(bytes(client.get(paths.STORE_FILE, bytes_max=store_file.STORE_BYTES_MAX)))
    except FileNotFoundError as error:
        raise NotAStore(
            "There is no replica here, or nothing was shipped yet; and no shared table. See whether the URL is right."
        ) from error


def read_manifest(client: Client) -> bytes:
    """The encoded replica manifest.

    Raises:
        MissingVersion: There is none.
    """
    try:
        return bytes(client.get(replica_manifest.NAME, bytes_max=replica_manifest.MANIFEST_BYTES_MAX))
    except FileNotFoundError as error:
        raise MissingVersion(
            "The manifest of the replica is missing; run `kvstore replica repair` on its leader."
        ) from error


def check_table(definition: TableDefinition) -> None:
    """Check that a table is possible: data from a replica may be malicious.

    Raises:
        CorruptData: It is not.
    """
    names = {name for schema in definition.schemas.values() for name in schema.names}
    keys = {*(definition.primary_key or ()), *(definition.bucket_key or ())}
    if definition.id < 1 or not 1 <= definition.buckets <= BUCKETS_MAX or not names or not keys <= names:
        raise CorruptData("The catalog of the replica has an impossible table.", table_id=definition.id)
