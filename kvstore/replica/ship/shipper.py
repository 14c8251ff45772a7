"""Ships what a store has and a replica lacks.

* Only what is durable and published is shipped. In the process that writes, all that was acknowledged is published
  first; of what another process writes, the rest is shipped once that process has published it.
* An object is created under its name, or found to be there as it should be: to be killed, or told twice, is harmless.
* What was shipped is reported in the catalog once all of it is there: from then on its absence is a finding.
* A leader that was replaced finds the epoch of the new one in the replica, and ships no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvstore.bucket import snapshot
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    OffsetOutOfRange,
    ReplicaBehind,
    StoreError,
    Unavailable,
    WriterFenced,
)
from kvstore.files import read_file
from kvstore.meta.journal import Journal
from kvstore.replica.client import Client
from kvstore.replica.leadership import replaced_by
from kvstore.replica.ship.merging import RANGE_BYTES
from kvstore.runtime import StoreRuntime
from logformat import paths
from logformat.catalog import edits, store_file
from logformat.catalog.edits import FindReplica, ReportReplica, TellReplica
from logformat.catalog.image import IMAGE_BYTES_MAX
from logformat.catalog.replicas import CATALOG, ReplicaStatus, Shipped, Stream
from logformat.ids import BucketId, Epoch, Offset, Txid
from logformat.log.snapshot_manifest import MANIFEST_BYTES_MAX
from logformat.replica import manifest as replica_told
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
)
from logformat.urls import shown_url


@dataclass(frozen=True, slots=True)
class Shipment:
    """What one round shipped.

    Attributes:
        objects: How many there are now that were not reported before.
        bytes: Of these.
        behind: How many offsets of buckets the replica lacked before.
    """

    objects: int
    bytes: int
    behind: int


def status_of(runtime: StoreRuntime, name: str) -> ReplicaStatus:
    """What the catalog knows of a replica.

    Raises:
        InvalidRequest: There is none of that name.
    """
    return runtime.catalog().replicas[stored_name(runtime, name)]


def stored_name(runtime: StoreRuntime, name: str) -> str:
    """The name of a replica as the catalog has it, from how it is shown: one that is a URL may have credentials.

    Raises:
        InvalidRequest: There is none of that name.
    """
    replicas = runtime.catalog().replicas
    found = name if name in replicas else next((each for each in replicas if shown_url(each) == name), None)
    if found is None:
        raise InvalidRequest("There is no such replica; see Store.replicas.", replica=name)
    return found


def edits_pushed(journal: Journal, status: ReplicaStatus) -> tuple[int, int]:
    """How many edits of the catalog a replica was told, of how many; reports behind the others don't count."""
    shipped = told.end if (told := status.of(CATALOG)) is not None else 0
    behind = journal.behind(Txid(shipped))
    if behind is None:
        return shipped, journal.state().txid
    worth = (place for place in range(len(behind), 0, -1) if not is_report(behind[place - 1]))
    return shipped, shipped + next(worth, 0)


def _is_bare(catalog: Shipped) -> bool:
    """Whether there is nothing behind its image: who follows needs an edit, for a journal begins with one."""
    return catalog.end in catalog.snapshots


def is_report(edit: bytes) -> bool:
    """Whether an edit only says how a replica is: to ship that would be news again, for ever."""
    return isinstance(edits.decode(edit).payload, ReportReplica | TellReplica | FindReplica)


class Shipper:
    """Ships to one replica of an open store.

    Args:
        name: Of the replica.
    """

    def __init__(self, runtime: StoreRuntime, name: str, client: Client) -> None:
        self._runtime = runtime
        self._name = name
        self._client = client
        self._objects = self._bytes = 0
        self._as_of_ms = runtime.clock.now_ms()

    def ship(self, *, tells: bool = True) -> Shipment:
        """Ship what was not reported yet: all that was acknowledged in this process, and all that others published.

        Args:
            tells: Say in the replica that it is so as of now, also if there is nothing new: otherwise it is left alone.

        Raises:
            WriterFenced: Another leader ships to this replica, or another store does.
            Unavailable: The replica can't be reached. What was created stays, and is found there next time.
            ReplicaBehind: The log expired, or an image was replaced, just now; the next round begins with a newer one.
            CorruptData: What is to be shipped is damaged.
            StoreFull, LogFailed: What was acknowledged can't be published. Nothing was shipped.
        """
        told = status_of(self._runtime, self._name)
        self._objects = self._bytes = 0
        self._runtime.flush()
        self._as_of_ms = self._runtime.clock.now_ms()
        # In this order: whatever schema a batch has, the catalog that is shipped knows it.
        ends = {stream: (handle, handle.committed().applied_offset) for stream, handle in self._handles()}
        if not tells and not self._has_news(told, {stream: end for stream, (_, end) in ends.items()}):
            self._glance()
            return Shipment(0, 0, 0)
        self.lead()
        catalog = self._ship_catalog(told.of(CATALOG))
        shipped, behind = [], 0
        for stream, (handle, end) in ends.items():
            before = told.of(stream)
            if before is None or before.end < end:
                behind += end - (before.end if before is not None else 0)
                try:
                    shipped.append(self._ship_bucket(stream, handle, before, end))
                except StoreError:
                    if stream.table_id in self._runtime.catalog().tables:
                        raise
                    # It was dropped meanwhile.
        if catalog is not None:
            shipped.append(catalog)
        self.report(shipped)
        if catalog is not None and _is_bare(catalog):
            catalog = self._ship_catalog(catalog)  # there is the edit of the report now
            self.report([] if catalog is None else [catalog])
        return Shipment(self._objects, self._bytes, behind)

    def _has_news(self, told: ReplicaStatus, ends: Mapping[Stream, Offset]) -> bool:
        reported = {each.stream: each.end for each in told.shipped}
        if any(end > reported.get(stream, -1) for stream, end in ends.items()):
            return True
        behind = self._runtime.journal.behind(Txid(reported.get(CATALOG, 0)))
        return behind is None or not all(map(is_report, behind))

    def report(self, shipped: list[Shipped]) -> None:
        """Say what the replica has of some tracks: first there, then in the catalog.

        Raises:
            WriterFenced: Another leads by now.
        """
        self.lead()
        told = {each.stream: each for each in (*status_of(self._runtime, self._name).shipped, *shipped)}
        of = ReplicaManifest(
            store_id=self._runtime.store_id,
            leader_epoch=self.epoch,
            as_of_ms=self._as_of_ms,
            shipped=[told[stream] for stream in sorted(told)],
        )
        self._client.replace(replica_told.NAME, [replica_told.encode(of)])
        if shipped:
            tell = TellReplica(name=self._name, as_of_ms=self._as_of_ms, shipped=shipped)
            self._runtime.journal.append(lambda _: tell)

    def range_parts(self, name: ObjectName) -> list[bytes | memoryview] | None:
        """What a range has to hold, from the store itself; None if that does not have it any more.

        Raises:
            CorruptData: It does not begin or end with a batch.
        """
        if name.stream == CATALOG:
            behind = self._runtime.journal.behind(Txid(name.start))
            return None if behind is None else list(behind[: name.end - name.start])
        handle = self._handle(name.stream)
        try:
            found = [(each.header, each.data) for each in handle.log.batches(Offset(name.start), Offset(name.end))]
        except OffsetOutOfRange:
            return None
        if not found or (found[0][0].base_offset, found[-1][0].next_offset) != (name.start, name.end):
            raise CorruptData("No such range was shipped: it ends within a batch.", object=str(name))
        return [data for _, data in found]

    def ship_range(self, stream: Stream, start: int, end: int, epoch: Epoch | None = None) -> None:
        """Ship offsets from the store's own log, in objects of about ``RANGE_BYTES``.

        Args:
            epoch: As if a leader before had; None for one's own.

        Raises:
            ReplicaBehind: The log does not have them any more.
        """
        for first, last, parts in self._ranges(stream, start, end):
            name = self._named(stream, "range", first, last)
            self._create(name if epoch is None else replace(name, epoch=epoch), parts)

    def ship_snapshot(self, stream: Stream) -> int:
        """Ship the newest snapshot that is right; returns its offset.

        Raises:
            ReplicaBehind: There is none.
        """
        if stream == CATALOG:
            newest = self._runtime.journal.images.newest()
            if newest is None:
                raise ReplicaBehind("The catalog has no image to begin a replica with; run `kvstore meta checkpoint`.")
            offset = newest.head.txid
            path = paths.image_file(self._runtime.path / paths.IMAGES, offset)
            self._create(self._named(stream, "snapshot", offset, offset), [_read(path, IMAGE_BYTES_MAX)])
            return offset
        handle = self._handle(stream)
        found = snapshot.newest_valid(handle.place.directory, handle.place.identity)
        if found is None:
            raise ReplicaBehind("The bucket has no snapshot to begin a replica with; take one.", bucket=stream.bucket)
        sizes = {paths.SNAPSHOT_MANIFEST: MANIFEST_BYTES_MAX}
        sizes |= {name: found.manifest.files[name].bytes for name in (paths.SNAPSHOT_WRITERS, paths.SNAPSHOT_ROWS)}
        parts = [_read(found.directory / name, size) for name, size in sizes.items()]
        self._create(self._named(stream, "snapshot", found.offset, found.offset), parts)
        return found.offset

    def replace(self, name: ObjectName, parts: Sequence[bytes | memoryview]) -> None:
        """Put an object that is bad anew."""
        self._client.replace(str(name), self._encoded(name, parts))

    def _ship_catalog(self, before: Shipped | None) -> Shipped | None:
        journal = self._runtime.journal
        journal.flush()
        start = before.end if before is not None else 0
        behind = journal.behind(Txid(start))
        snapshots = list(before.snapshots) if before is not None else []
        if behind is None:
            start = self.ship_snapshot(CATALOG)
            snapshots = [start]
            before = None
            behind = journal.behind(Txid(start)) or []
        # Else each round would have something to ship, for ever.
        if before is not None and not _is_bare(before) and all(map(is_report, behind)):
            return None
        end = start + len(behind)
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
        self.ship_range(stream, start, end)
        return Shipped(stream=stream, start=before.start, end=end, snapshots=before.snapshots)

    def _ranges(self, stream: Stream, start: int, end: int) -> Iterator[tuple[int, int, list[bytes | memoryview]]]:
        parts: list[bytes | memoryview] = []
        first = last = start
        for data, following in self._pieces(stream, start, end):
            parts.append(data)
            last = following
            if sum(map(len, parts)) >= RANGE_BYTES:
                yield first, last, parts
                parts, first = [], last
        if parts:
            yield first, last, parts

    def _pieces(self, stream: Stream, start: int, end: int) -> Iterator[tuple[bytes | memoryview, int]]:
        """Batches or edits, each with the offset behind it."""
        if stream == CATALOG:
            behind = self._runtime.journal.behind(Txid(start))
            if behind is None:
                raise ReplicaBehind("The catalog's journal does not have these edits any more.", start=start)
            yield from ((edit, start + place) for place, edit in enumerate(behind[: end - start], 1))
            return
        try:
            for found in self._handle(stream).log.batches(Offset(start), Offset(end)):
                yield found.data, found.header.next_offset
        except OffsetOutOfRange as error:
            raise ReplicaBehind("The log does not have these changes any more.", bucket=stream.bucket) from error

    def _create(self, name: ObjectName, parts: Sequence[bytes | memoryview]) -> None:
        pieces = self._encoded(name, parts)
        self._objects += 1
        self._bytes += sum(map(len, pieces))
        if self._client.create(str(name), pieces):
            return
        # Whoever created it may have died before it was reported, or was told that it failed.
        try:
            found = decode_object(
                self._client.get(str(name), bytes_max=sum(map(len, pieces))), name, self._runtime.store_id
            )
        except (CorruptData, FileNotFoundError):
            self.replace(name, parts)
            return
        if list(map(bytes, found.parts)) != list(map(bytes, parts)):
            raise self._fenced(self.epoch)

    def _named(self, stream: Stream, kind: Kind, start: int, end: int) -> ObjectName:
        return ObjectName(stream, kind, start, end, self.epoch)

    def _encoded(self, name: ObjectName, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        return encode_object(name, self._runtime.store_id, parts)

    @property
    def epoch(self) -> Epoch:
        """Of this leader."""
        return self._runtime.catalog().leader_epoch

    def lead(self) -> None:
        """Say in the replica who ships; see whether it is another.

        Raises:
            WriterFenced: It is.
            CorruptData: Who it is can't be known any more.
        """
        file = read_file(self._runtime.path / paths.STORE_FILE, bytes_max=store_file.STORE_BYTES_MAX)
        if not self._client.create(paths.STORE_FILE, [file]):
            try:
                theirs = store_file.decode(
                    bytes(self._client.get(paths.STORE_FILE, bytes_max=store_file.STORE_BYTES_MAX))
                ).store_id
            except (CorruptData, FileNotFoundError):
                self._client.replace(paths.STORE_FILE, [file])
            else:
                if theirs != self._runtime.store_id:
                    raise WriterFenced("The replica is of another store; choose another place.", of=theirs)
        leaders = {epoch: name for name, _ in self._client.list("leader/") if (epoch := leader_epoch(name)) is not None}
        ours = self._runtime.catalog()
        if max(leaders, default=0) > ours.leader_epoch:
            raise self._fenced(max(leaders))
        name, leader = leader_name(ours.leader_epoch), ours.leader.encode()
        if ours.leader_epoch not in leaders:
            if leaders and not status_of(self._runtime, self._name).shipped:
                raise WriterFenced(
                    "This place has what another leader shipped; choose one that is empty.", replica=self._name
                )
            self._client.create(name, [leader])
        # A leader of an epoch between asks for the one after its own only.
        for between in range(min(leaders, default=ours.leader_epoch), ours.leader_epoch):
            if between not in leaders:
                self._client.create(leader_name(Epoch(between)), [leader])
        try:
            found = bytes(self._client.get(name, bytes_max=LEADER_BYTES_MAX))
        except FileNotFoundError as error:
            raise Unavailable("The replica has lost what says who leads it; try again.", replica=self._name) from error
        if leader and not found:  # not taken as one's own: it may have been that of a leader who fenced this one
            raise CorruptData(
                "What says who leads is empty, as a disk may leave it that lost power; remove it if no other store"
                " ships there.",
                replica=self._name,
                object=name,
            )
        if found == claimed_by(ours.leader):
            self._client.replace(name, [leader])  # its promotion could not say so
        elif is_claim(found):
            raise Unavailable(
                "A copy of the store is being promoted, or its promotion died: then promote that copy again, or remove"
                " the object. Try again.",
                replica=self._name,
                object=name,
            )
        elif found != leader:
            raise self._fenced(ours.leader_epoch)

    def _glance(self) -> None:
        """See whether another leads by now, which costs next to nothing.

        Raises:
            WriterFenced: It does.
        """
        told = status_of(self._runtime, self._name)
        by = replaced_by(
            self._client, self._runtime.catalog(), self._runtime.store_id, was_shipped_to=bool(told.shipped)
        )
        if by:
            raise self._fenced(by)

    def _fenced(self, epoch: Epoch) -> WriterFenced:
        """Have it known in every process of this store that nothing is to be written any more."""
        if not self._runtime.catalog().lost_to:
            self._runtime.journal.lose_lead(Epoch(max(1, epoch)))
        return WriterFenced(
            "Another leader has taken this store's place: write there, and follow the replica anew.",
            replica=self._name,
            leader_epoch=epoch,
            ours=self.epoch,
        )

    def _handles(self) -> Iterator[tuple[Stream, BucketHandle]]:
        for definition in self._runtime.catalog().tables.values():
            for bucket, handle in enumerate(self._runtime.open_table(definition).handles):
                yield Stream(definition.id, BucketId(bucket)), handle

    def _handle(self, stream: Stream) -> BucketHandle:
        tables = self._runtime.catalog().tables
        if stream.table_id not in tables:
            raise ReplicaBehind("The table was dropped.", table_id=stream.table_id)
        return self._runtime.open_table(tables[stream.table_id]).handles[stream.bucket]


def _read(path: Path, bytes_max: int) -> bytes:
    """A file that another process may put another in place of.

    Raises:
        ReplicaBehind: It did.
    """
    try:
        return read_file(path, bytes_max=bytes_max)
    except FileNotFoundError as error:
        raise ReplicaBehind("A newer one has taken this file's place; try again.", path=path) from error
