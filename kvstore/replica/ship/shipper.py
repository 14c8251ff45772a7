"""Ships what a store has and a replica lacks.

* Only durable and published batches are shipped. The process that ships publishes its own acknowledged writes first;
  writes of other processes are shipped after those have published them.
* An object is created under its name, or exists with the same content, so a kill or a repeated call is harmless.
* What was shipped is recorded in the catalog after all of it is in the replica. From then on its absence is a finding.
* A leader that was replaced finds the epoch of the new leader in the replica, and stops shipping.
* A store that lacks what it has shipped, such as an older copy in its own place, ships nothing: it would contradict it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kvstore.bucket.commit_lock import pause
from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.snapshots import snapshot
from kvstore.disk.files import read_file
from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    OffsetOutOfRange,
    ReplicaBehind,
    StoreError,
    Unavailable,
    UnsupportedVersion,
    WriterFenced,
)
from kvstore.log.writer_state import WriterStates
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState
from kvstore.replica.check import Listing, read_object
from kvstore.replica.client import Client, content_of, store_id_of
from kvstore.replica.leadership import replaced_by
from kvstore.replica.ship.merging import RANGE_BYTES
from kvstore.store.runtime import StoreRuntime
from logformat import paths
from logformat.catalog import edits, store_file
from logformat.catalog.edits import FindReplica, ReportReplica, TellReplica
from logformat.catalog.image import IMAGE_BYTES_MAX
from logformat.catalog.replicas import CATALOG, ReplicaStatus, Shipped, Stream
from logformat.ids import BucketId, Epoch, Offset, Txid
from logformat.log.snapshot_manifest import MANIFEST_BYTES_MAX
from logformat.replica import manifest as replica_manifest
from logformat.replica.manifest import ReplicaManifest
from logformat.replica.object_file import (
    LEADER_BYTES_MAX,
    Kind,
    ObjectName,
    claimed_by,
    decode_object,
    encode_object,
    is_claim,
    leader_epoch,
    leader_name,
    place_of_stream,
)
from logformat.urls import shown_url

CUT_LOOKS = 100
"""How often a round looks for a moment without a commit; one takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class Shipment:
    """The result of one round.

    Attributes:
        objects: Number of objects that were shipped.
        bytes: Size of these objects.
        behind: Number of offsets of buckets that the replica lacked before.
    """

    objects: int
    bytes: int
    behind: int


def status_of(runtime: StoreRuntime, name: str) -> ReplicaStatus:
    """The entry of a replica in the catalog.

    Raises:
        InvalidRequest: There is no replica of this name.
    """
    return runtime.catalog().replicas[stored_name(runtime, name)]


def stored_name(runtime: StoreRuntime, name: str) -> str:
    """The name of a replica in the catalog for a shown name. A name that is a URL may have credentials, not shown.

    Raises:
        InvalidRequest: There is no replica of this name.
    """
    replicas = runtime.catalog().replicas
    stored = name if name in replicas else next((each for each in replicas if shown_url(each) == name), None)
    if stored is None:
        raise InvalidRequest("There is no such replica; see Store.replicas.", replica=name)
    return stored


def edits_pushed(journal: Journal, status: ReplicaStatus) -> tuple[int, int]:
    """Number of edits of the catalog that were shipped, and that are worth shipping: trailing reports don't count."""
    shipped = catalog.end if (catalog := status.of(CATALOG)) is not None else 0
    edits_left = journal.edits_after(Txid(shipped))
    if edits_left is None:
        return shipped, journal.state().txid
    worth = (count for count in range(len(edits_left), 0, -1) if not is_report(edits_left[count - 1]))
    return shipped, shipped + next(worth, 0)


def _is_bare(catalog: Shipped) -> bool:
    """Whether there is no edit after its image. A follower needs one, because a journal begins with an edit."""
    return catalog.end in catalog.snapshots


def is_report(edit: bytes) -> bool:
    """Whether an edit only has the status of a replica: to ship it would cause another such edit, and so on."""
    return isinstance(edits.decode(edit).payload, ReportReplica | TellReplica | FindReplica)


class Shipper:
    """Ships to one replica of an open store.

    Args:
        name: Name of the replica.
    """

    def __init__(self, runtime: StoreRuntime, name: str, client: Client) -> None:
        self._runtime = runtime
        self._name = name
        self._client = client
        self._objects = self._bytes = 0
        self._as_of_ms = runtime.clock.now_ms()

    def ship(self, *, reports: bool = True) -> Shipment:
        """Ship what was acknowledged in this process and what other processes have published since the last report.

        Args:
            reports: Whether to write a new replica manifest also if there is nothing to ship.

        Raises:
            WriterFenced: Another leader, or another store, ships to this replica; or see :meth:`check_continues`.
            Unavailable: The replica can't be reached. Objects that were created stay, and are used next time.
            ReplicaBehind: The log or an image has just been removed; the next round starts with a newer one.
            CorruptData: The data to be shipped is damaged.
            StoreFull, LogFailed: Acknowledged writes can't be published. Nothing was shipped.
        """
        status = status_of(self._runtime, self._name)
        self._objects = self._bytes = 0
        self._runtime.flush()
        self._as_of_ms = self._runtime.clock.now_ms()
        # Before the catalog, so that the shipped catalog has the schemas of all shipped batches.
        ends = self._ends_at_a_cut()
        offsets = {stream: end for stream, (_, end) in ends.items()}
        self._check_continues(offsets, asks=reports)  # the manifest costs a request
        if not reports and not self._has_news(status, offsets):
            self._check_not_replaced()
            return Shipment(0, 0, 0)
        self.lead()
        catalog: Shipped | None = None
        streams, shipped, lag = set[Stream](), list[Shipped](), 0
        while True:
            catalog = self._ship_catalog(catalog or status.of(CATALOG)) or catalog
            for stream, (handle, end) in ends.items():
                before = status.of(stream)
                if before is None or before.end < end:
                    lag += end - (before.end if before is not None else 0)
                    with self.unless_dropped(stream):
                        shipped.append(self._ship_bucket(stream, handle, before, end))
            streams |= ends.keys()
            # A table may have come with rows meanwhile, perhaps in the place of another: it never was without them.
            if not (ends := self._ends(streams)):
                break
        if catalog is not None:
            shipped.append(catalog)
        self.report(shipped)
        if catalog is not None and _is_bare(catalog):
            catalog = self._ship_catalog(catalog)  # the report has added an edit
            self.report([] if catalog is None else [catalog])
        return Shipment(self._objects, self._bytes, lag)

    def _has_news(self, status: ReplicaStatus, ends: Mapping[Stream, Offset]) -> bool:
        reported = {each.stream: each.end for each in status.shipped}
        if any(end > reported.get(stream, -1) for stream, end in ends.items()):
            return True
        edits_left = self._runtime.journal.edits_after(Txid(reported.get(CATALOG, 0)))
        return edits_left is None or not all(map(is_report, edits_left))

    def report(self, shipped: list[Shipped]) -> None:
        """Record what was shipped of some streams, first in the replica manifest, then in the catalog.

        Raises:
            WriterFenced: Another leader has taken this one's place.
        """
        self.lead()
        all_shipped = {each.stream: each for each in (*status_of(self._runtime, self._name).shipped, *shipped)}
        manifest = ReplicaManifest(
            store_id=self._runtime.store_id,
            leader_epoch=self.epoch,
            as_of_ms=self._as_of_ms,
            shipped=[all_shipped[stream] for stream in sorted(all_shipped)],
        )
        self._client.replace(replica_manifest.NAME, [replica_manifest.encode(manifest)])
        if shipped:
            edit = TellReplica(name=self._name, as_of_ms=self._as_of_ms, shipped=shipped)
            self._runtime.journal.append(lambda _: edit)

    def check_continues(self) -> None:
        """Check that the store has what was reported as shipped, and what the replica has beyond.

        A shipper that died before its report leaves something there, and then the store has the same. If it has not, it
        is an older copy that was put in the store's place, or it has lost what was durable.

        Raises:
            WriterFenced: It lacks some of it, or has something else there. Nothing was shipped.
            Unavailable: The replica can't be reached.
            CorruptData: The store is damaged there.
            UnsupportedVersion: A newer version ships to the replica.
        """
        self._check_continues({stream: end for stream, (_, end) in self._ends().items()}, asks=True)

    def _check_continues(self, ends: dict[Stream, Offset], *, asks: bool) -> None:
        """See :meth:`check_continues`.

        Args:
            ends: The ends of all buckets.
            asks: Whether to ask the replica; else only what the catalog says is compared.
        """
        status = status_of(self._runtime, self._name)
        # A table that is not there was dropped; or the catalog ends before its creation.
        there: dict[Stream, int] = {CATALOG: self._runtime.journal.state().txid, **ends}
        for each in status.shipped:
            if each.end > there.get(each.stream, each.end):
                raise self._lacks(each, there[each.stream])
        for each in self._manifest() if asks else ():
            before, end = status.of(each.stream), there.get(each.stream)
            is_beyond = each.end > (0 if before is None else before.end)
            if is_beyond and end is not None and not self._has_last(each.stream, end):
                raise self._lacks(each, end)

    def _manifest(self) -> Sequence[Shipped]:
        """What the manifest of this leader says; nothing if it is another's, or damaged, which a check finds."""
        try:
            data = content_of(self._client, replica_manifest.NAME, replica_manifest.MANIFEST_BYTES_MAX)
            manifest = None if data is None else replica_manifest.decode(data, self._runtime.store_id)
        except UnsupportedVersion:
            raise
        except CorruptData:
            return ()
        return () if manifest is None or manifest.leader_epoch != self.epoch else manifest.shipped

    def _has_last(self, stream: Stream, end: int) -> bool:
        """Whether the store has the last range of this leader; then it has those before: batches have their time.

        Args:
            end: Where the store's own stream ends.
        """
        listed = Listing.of(self._client, f"{place_of_stream(stream)}/").sizes
        ranges = [name for name in listed if name.kind == "range" and name.epoch == self.epoch]
        for name in sorted(ranges, key=lambda name: (name.end, name.start), reverse=True):
            if name.end > end:
                return False
            try:
                theirs = read_object(self._client, self._runtime.store_id, name, listed[name]).parts
            except UnsupportedVersion:
                raise
            except CorruptData:  # a check finds it
                continue
            ours: list[bytes] = []
            with self.unless_dropped(stream):
                ours = self._last_parts(name)
            return list(map(bytes, theirs[len(theirs) - len(ours) :])) == ours
        return True

    def _last_parts(self, name: ObjectName) -> list[bytes]:
        """The batches or edits of a range that the store still has."""
        if name.stream == CATALOG:
            edits_left = self._runtime.journal.edits_after(Txid(name.end - 1))
            return [] if edits_left is None else list(edits_left[:1])
        log = self._handle(name.stream).log
        begin = max(name.start, log.start())
        return [bytes(each.data) for each in log.batches(Offset(begin), Offset(name.end))] if begin < name.end else []

    def _lacks(self, shipped: Shipped, end: int) -> WriterFenced:
        return WriterFenced(
            "The replica has changes that this store lacks: the store is an older copy of what it was, or has lost"
            " them. To have them, restore the replica into a new directory, and go on there. To go on without them,"
            " run `kvstore meta recover --metadata-failure-recovery`.",
            replica=shown_url(self._name),
            table_id=shipped.stream.table_id,
            bucket=shipped.stream.bucket,
            ours=end,
            theirs=shipped.end,
        )

    def range_parts(self, name: ObjectName) -> list[bytes | memoryview] | None:
        """The correct parts of a range, from the store itself; None if the store does not have them any more.

        Raises:
            CorruptData: The range starts or ends within a batch.
        """
        if name.stream == CATALOG:
            edits_left = self._runtime.journal.edits_after(Txid(name.start))
            return None if edits_left is None else list(edits_left[: name.end - name.start])
        handle = self._handle(name.stream)
        try:
            batches = [(each.header, each.data) for each in handle.log.batches(Offset(name.start), Offset(name.end))]
        except OffsetOutOfRange:
            return None
        if not batches or (batches[0][0].base_offset, batches[-1][0].next_offset) != (name.start, name.end):
            raise CorruptData("No such range was shipped: it starts or ends within a batch.", object=str(name))
        return [data for _, data in batches]

    def ship_range(self, stream: Stream, start: int, end: int, epoch: Epoch | None = None) -> None:
        """Ship offsets from the store's own log or journal, in objects of about ``RANGE_BYTES``.

        Args:
            epoch: Epoch in the names of the objects; None for the epoch of this leader.

        Raises:
            ReplicaBehind: The log or journal does not have them any more.
        """
        for begin, stop, parts in self._ranges(stream, start, end):
            name = self._named(stream, "range", begin, stop)
            self._create(name if epoch is None else replace(name, epoch=epoch), parts)

    def ship_snapshot(self, stream: Stream) -> int:
        """Ship the newest valid snapshot or image; returns its offset.

        Raises:
            ReplicaBehind: There is none.
        """
        if stream == CATALOG:
            newest = self._runtime.journal.images.newest()
            if newest is None:
                raise ReplicaBehind(
                    "The catalog has no image from which a replica can start; run `kvstore meta checkpoint`."
                )
            offset = newest.head.txid
            path = paths.image_file(self._runtime.path / paths.IMAGES, offset)
            self._create(self._named(stream, "snapshot", offset, offset), [_read(path, IMAGE_BYTES_MAX)])
            return offset
        handle = self._handle(stream)
        taken = snapshot.newest_valid(handle.paths.directory, handle.identity)
        if taken is None:
            raise ReplicaBehind(
                "The bucket has no snapshot from which a replica can start; take one.", bucket=stream.bucket
            )
        sizes = {paths.SNAPSHOT_MANIFEST: MANIFEST_BYTES_MAX}
        sizes |= {name: taken.manifest.files[name].bytes for name in (paths.SNAPSHOT_WRITERS, paths.SNAPSHOT_ROWS)}
        parts = [_read(taken.directory / name, size) for name, size in sizes.items()]
        self._create(self._named(stream, "snapshot", taken.offset, taken.offset), parts)
        return taken.offset

    def replace(self, name: ObjectName, parts: Sequence[bytes | memoryview]) -> None:
        """Replace a bad object."""
        self._client.replace(str(name), self._encoded(name, parts))

    def ship_edits(self) -> None:
        """Ship all edits of the catalog, also those that only have the status of a replica.

        Raises:
            WriterFenced: Another leader has taken this one's place.
        """
        self.lead()
        before = status_of(self._runtime, self._name).of(CATALOG)
        catalog = self._ship_catalog(before, with_reports=True)
        if catalog is not None and catalog != before:
            self.report([catalog])

    def _ship_catalog(self, before: Shipped | None, *, with_reports: bool = False) -> Shipped | None:
        journal = self._runtime.journal
        journal.flush()
        start = before.end if before is not None else 0
        edits_left = journal.edits_after(Txid(start))
        snapshots = list(before.snapshots) if before is not None else []
        if edits_left is None:
            start = self.ship_snapshot(CATALOG)
            snapshots = [start]
            before = None
            edits_left = journal.edits_after(Txid(start)) or []
        # Otherwise each round would cause another report to ship.
        if before is not None and not _is_bare(before) and not with_reports and all(map(is_report, edits_left)):
            return None
        end = start + len(edits_left)
        journal.flush()  # of other processes, too, which may have added some meanwhile
        self.ship_range(CATALOG, start, end)
        return Shipped(stream=CATALOG, start=before.start if before else start, end=end, snapshots=snapshots)

    def _ship_bucket(self, stream: Stream, handle: BucketHandle, before: Shipped | None, end: Offset) -> Shipped:
        start = before.end if before is not None else 0
        if start < handle.log.start():
            offset = self.ship_snapshot(stream)
            before = Shipped(stream=stream, start=offset, end=offset, snapshots=[offset])
            start = offset
        if before is None:
            before = Shipped(stream=stream, start=0, end=0, snapshots=[])
        if end > start:
            # A power cut may take the last batches of commits that are open; what is appended then has another time.
            handle.log.sync(Offset(start))
        self.ship_range(stream, start, end)
        return Shipped(stream=stream, start=before.start, end=end, snapshots=before.snapshots)

    def _ranges(self, stream: Stream, start: int, end: int) -> Iterator[tuple[int, int, list[bytes | memoryview]]]:
        parts: list[bytes | memoryview] = []
        begin = stop = start
        for data, following in self._pieces(stream, start, end):
            parts.append(data)
            stop = following
            if sum(map(len, parts)) >= RANGE_BYTES:
                yield begin, stop, parts
                parts, begin = [], stop
        if parts:
            yield begin, stop, parts

    def _pieces(self, stream: Stream, start: int, end: int) -> Iterator[tuple[bytes | memoryview, int]]:
        """Batches or edits, each with the offset after it."""
        if stream == CATALOG:
            edits_left = self._runtime.journal.edits_after(Txid(start))
            if edits_left is None:
                raise ReplicaBehind("The catalog's journal does not have these edits any more.", start=start)
            yield from ((edit, start + count) for count, edit in enumerate(edits_left[: end - start], 1))
            return
        try:
            for batch in self._handle(stream).log.batches(Offset(start), Offset(end)):
                yield batch.data, batch.header.next_offset
        except OffsetOutOfRange as error:
            raise ReplicaBehind("The log does not have these changes any more.", bucket=stream.bucket) from error

    def _create(self, name: ObjectName, parts: Sequence[bytes | memoryview]) -> None:
        pieces = self._encoded(name, parts)
        self._objects += 1
        self._bytes += sum(map(len, pieces))
        if self._client.create(str(name), pieces):
            return
        # An earlier call may have created it, and died before the report or got an error.
        try:
            content = decode_object(
                self._client.get(str(name), bytes_max=sum(map(len, pieces))), name, self._runtime.store_id
            )
        except (CorruptData, FileNotFoundError):
            self.replace(name, parts)
            return
        if list(map(bytes, content.parts)) != list(map(bytes, parts)):
            raise self._fenced(self.epoch)

    def _named(self, stream: Stream, kind: Kind, start: int, end: int) -> ObjectName:
        return ObjectName(stream, kind, start, end, self.epoch)

    def _encoded(self, name: ObjectName, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        return encode_object(name, self._runtime.store_id, parts)

    @property
    def epoch(self) -> Epoch:
        """Epoch of this leader."""
        return self._runtime.catalog().leader_epoch

    def lead(self) -> None:
        """Write the store file and this leader's object to the replica; check that no other leader ships there.

        Raises:
            WriterFenced: Another leader, or another store, ships there.
            Unavailable: A promotion has claimed the replica, or the replica can't be reached.
            CorruptData: The leader object is empty.
        """
        file = read_file(self._runtime.path / paths.STORE_FILE, bytes_max=store_file.STORE_BYTES_MAX)
        if not self._client.create(paths.STORE_FILE, [file]):
            theirs = store_id_of(self._client)
            if theirs is None:
                self._client.replace(paths.STORE_FILE, [file])
            elif theirs != self._runtime.store_id:
                raise WriterFenced("The replica belongs to another store; choose another place.", of=theirs)
        leaders = {epoch: name for name, _ in self._client.list("leader/") if (epoch := leader_epoch(name)) is not None}
        ours = self._runtime.catalog()
        if max(leaders, default=0) > ours.leader_epoch:
            raise self._fenced(max(leaders))
        name, leader = leader_name(ours.leader_epoch), ours.leader.encode()
        if ours.leader_epoch not in leaders:
            if leaders and not status_of(self._runtime, self._name).shipped:
                raise WriterFenced(
                    "The replica has objects of another leader; choose an empty place.", replica=self._name
                )
            self._client.create(name, [leader])
        # A leader of an epoch between asks only for the epoch after its own.
        for between in range(min(leaders, default=ours.leader_epoch), ours.leader_epoch):
            if between not in leaders:
                self._client.create(leader_name(Epoch(between)), [leader])
        try:
            claim = bytes(self._client.get(name, bytes_max=LEADER_BYTES_MAX))
        except FileNotFoundError as error:
            raise Unavailable(
                "The leader object of the replica has disappeared; try again.", replica=self._name
            ) from error
        if leader and not claim:  # not taken for this leader's: it may have been that of a leader that fenced this one
            raise CorruptData(
                "The leader object is empty; a disk that lost power may cause this. Remove it if no other store ships"
                " there.",
                replica=self._name,
                object=name,
            )
        if claim == claimed_by(ours.leader):
            self._client.replace(name, [leader])  # its promotion could not replace the claim
        elif is_claim(claim):
            raise Unavailable(
                "A copy of the store is being promoted: try again. If its promotion died, promote that copy again, or"
                " remove the object.",
                replica=self._name,
                object=name,
            )
        elif claim != leader:
            raise self._fenced(ours.leader_epoch)

    def _check_not_replaced(self) -> None:
        """Check that no other leader has taken the place, with few requests.

        Raises:
            WriterFenced: Another leader has.
        """
        status = status_of(self._runtime, self._name)
        by = replaced_by(
            self._client, self._runtime.catalog(), self._runtime.store_id, was_shipped_to=bool(status.shipped)
        )
        if by:
            raise self._fenced(by)

    def _fenced(self, epoch: Epoch) -> WriterFenced:
        """Record that this store is replaced, so that all its processes refuse writes; returns the error to raise."""
        if not self._runtime.catalog().lost_to:
            self._runtime.journal.lose_lead(Epoch(max(1, epoch)))
        return WriterFenced(
            "Another leader has taken this store's place: write to that store. To keep a copy here, follow the replica"
            " into a new directory.",
            replica=self._name,
            leader_epoch=epoch,
            ours=self.epoch,
        )

    def _ends_at_a_cut(self) -> dict[Stream, tuple[BucketHandle, Offset]]:
        """The ends of all buckets, where no transaction over several tables is in only one of them.

        A commit that does not end is not waited for: then a copy may end between its tables.
        """
        for _ in range(CUT_LOOKS):
            before = self._runtime.catalog()
            ends = self._ends()
            if self._have_open_commits(ends, before) and self._runtime.catalog().txid == before.txid:
                return ends
            pause()
        return ends

    def _have_open_commits(self, ends: Mapping[Stream, tuple[BucketHandle, Offset]], state: CatalogState) -> bool:
        """Whether each bucket has its batches of the commits that are open before its end."""
        for stream, (handle, end) in ends.items():
            if commits := state.writers_of(stream.table_id).commits:
                with self.unless_dropped(stream), handle.latest() as view:
                    entries = view.writers_of(commit.writer_id for commit in commits)
                    known = WriterStates({id: each for id, entry in entries.items() if (each := entry.before(end))})
                    if not all(known.has(commit.writer_id, commit.sequence) for commit in commits):
                        return False
        return True

    def _ends(self, known: Container[Stream] = ()) -> dict[Stream, tuple[BucketHandle, Offset]]:
        """The ends of all buckets but those that are known."""
        ends = {}
        for stream, handle in self.handles():
            if stream not in known:
                with self.unless_dropped(stream):
                    ends[stream] = handle, handle.committed().applied_offset
        return ends

    def handles(self) -> Iterator[tuple[Stream, BucketHandle]]:
        """All buckets of the store."""
        for definition in self._runtime.catalog().tables.values():
            for bucket, handle in enumerate(self._runtime.open_table(definition).handles):
                yield Stream(definition.id, BucketId(bucket)), handle

    @contextmanager
    def unless_dropped(self, stream: Stream) -> Iterator[None]:
        """Ignore errors that come from a table that another process drops meanwhile."""
        try:
            yield
        except StoreError:
            if stream == CATALOG or stream.table_id in self._runtime.catalog().tables:
                raise

    def _handle(self, stream: Stream) -> BucketHandle:
        tables = self._runtime.catalog().tables
        if stream.table_id not in tables:
            raise ReplicaBehind("The table was dropped.", table_id=stream.table_id)
        return self._runtime.open_table(tables[stream.table_id]).handles[stream.bucket]


def _read(path: Path, bytes_max: int) -> bytes:
    """Read a file that another process may remove because it has a newer one.

    Raises:
        ReplicaBehind: The file was removed.
    """
    try:
        return read_file(path, bytes_max=bytes_max)
    except FileNotFoundError as error:
        raise ReplicaBehind("The file was removed because there is a newer one; try again.", path=path) from error
