"""Retention of a replica: it begins where its tables' logs begin, or earlier if it has a retention of its own.

* A stream begins with a snapshot. So the store's snapshots are shipped, and the stream begins with the newest one that
  is old enough.
* Objects that the manifest no longer names are removed by the next call. So readers of the manifest before have some
  time, and what a process leaves that dies in between is removed, too.
* Nothing is removed before the catalog in the replica says so: a copy that is promoted has that catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO

import msgspec

from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.snapshots import snapshot
from kvstore.errors import CorruptData
from kvstore.meta import image
from kvstore.replica.check import Listing, first_part_of, read_object
from kvstore.replica.client import Client, content_of
from kvstore.replica.contents import snapshot_parts
from kvstore.replica.ship.shipper import Shipper
from kvstore.store.runtime import StoreRuntime
from logformat import paths
from logformat.catalog.image import Reader
from logformat.catalog.replicas import CATALOG, ReplicaStatus, Shipped, Stream
from logformat.log.snapshot_manifest import decode_manifest
from logformat.replica import retention as retention_object
from logformat.replica.object_file import ObjectName
from logformat.replica.retention import RETENTION_BYTES_MAX

_IMAGES = 2
"""Images of a catalog of which everything is kept."""
_NEVER_MS = -(2**63)


class Retention:
    """Retention of one replica, for the process that ships to it.

    Args:
        shipper: Its shipper; no other process ships meanwhile.
        times: Known times of snapshots (ms); more are added.
    """

    def __init__(
        self, runtime: StoreRuntime, client: Client, shipper: Shipper, times: dict[tuple[Stream, int], int]
    ) -> None:
        self._runtime = runtime
        self._client = client
        self._shipper = shipper
        self._times = times

    def apply(self, status: ReplicaStatus, keep_ms: int) -> int:
        """Remove what the manifest no longer names, then move the beginnings of the streams.

        Args:
            status: What was shipped.
            keep_ms: See :meth:`kept_ms`.

        Returns:
            The number of removed objects.

        Raises:
            WriterFenced: Another leader ships to the replica.
            Unavailable: The replica can't be reached. It is valid as it is, and the next call continues.
            CorruptData: An object is damaged; nothing that is needed was removed.
        """
        listed = Listing.of(self._client).sizes
        unnamed = [*self._unnamed(status, listed), *self._dropped(status, listed)]
        if unnamed:
            self._shipper.ship_edits()
            for name in unnamed:
                self._client.delete(str(name))
                listed.pop(name)
        moved = list(self._moved(status, listed, keep_ms))
        if moved:
            self._shipper.report(moved)
        return len(unnamed)

    def kept_ms(self) -> int:
        """How long the replica keeps what the tables no longer keep.

        Raises:
            CorruptData: The object that says it is damaged; `Store.add_replica` writes another one.
            Unavailable: The replica can't be reached.
        """
        data = content_of(self._client, retention_object.NAME, RETENTION_BYTES_MAX)
        return 0 if data is None else retention_object.decode(data).retention_ms

    def _unnamed(self, status: ReplicaStatus, listed: dict[ObjectName, int]) -> Iterator[ObjectName]:
        """Objects before the beginning of their stream, and snapshots that it does not have."""
        for name in listed:
            shipped = status.of(name.stream)
            if shipped is None:
                continue
            if name.end <= shipped.start if name.kind == "range" else name.start not in shipped.snapshots:
                yield name

    def _dropped(self, status: ReplicaStatus, listed: dict[ObjectName, int]) -> list[ObjectName]:
        """Objects of tables that were dropped before the beginning of the catalog."""
        tables = self._runtime.catalog().tables
        gone = [name for name in listed if name.stream != CATALOG and name.stream.table_id not in tables]
        catalog = status.of(CATALOG)
        if not gone or catalog is None or not catalog.start:
            return []
        begin = next((name for name in listed if _is_at(name, CATALOG, catalog.start)), None)
        if begin is None:
            return []  # a check finds that
        reader = self._image(begin, listed)
        first = image.state_of(reader.head, reader.items())
        return [
            name
            for name in gone
            if name.stream.table_id < first.next_table_id and name.stream.table_id not in first.tables
        ]

    def _moved(self, status: ReplicaStatus, listed: dict[ObjectName, int], keep_ms: int) -> Iterator[Shipped]:
        """What changes of the manifest: later beginnings, and further snapshots, which are shipped here."""
        before_ms = self._runtime.clock.now_ms() - keep_ms
        begins: list[int] = []
        for stream, handle in self._shipper.handles():
            shipped = status.of(stream)
            with self._shipper.unless_dropped(stream):
                if shipped is None or not self._expires(stream, handle):
                    continue
                now = self._begun(shipped, handle, before_ms if keep_ms else None, listed)
                if now.start:
                    begins.append(self._time(stream, now.start, listed))
                if now != shipped:
                    yield now
        catalog = status.of(CATALOG)
        if catalog is None:
            return
        restorable_ms = before_ms if keep_ms else max(begins, default=_NEVER_MS)
        images, now = self._runtime.path / paths.IMAGES, catalog
        for newest in image.txids(images)[:1]:
            now = self._with_snapshot(
                catalog, newest, image.head_of(paths.image_file(images, newest)).created_ms, listed
            )
        now = _from(now, (each for each in now.snapshots if self._time(CATALOG, each, listed) <= restorable_ms))
        if restorable_ms == _NEVER_MS:  # the newest images are for readers, which need not read all edits
            first = [each for each in now.snapshots if each == now.start]
            now = msgspec.structs.replace(now, snapshots=sorted({*first, *now.snapshots[-_IMAGES:]}))
        if now != catalog:
            yield now

    def _expires(self, stream: Stream, handle: BucketHandle) -> bool:
        definition = self._runtime.catalog().tables.get(stream.table_id)
        return definition is not None and (definition.options.retention_ms is not None or handle.log.start() > 0)

    def _begun(
        self, shipped: Shipped, handle: BucketHandle, before_ms: int | None, listed: dict[ObjectName, int]
    ) -> Shipped:
        """What was shipped of a bucket, with its newest snapshot, from the last one on that is old enough.

        Args:
            before_ms: The time (ms) up to which the replica keeps nothing; None if it keeps no longer than the table.
        """
        now = shipped
        taken = next(snapshot.readable(handle.paths.directory, handle.identity), None)
        if taken is not None:
            now = self._with_snapshot(shipped, taken.offset, taken.manifest.last_timestamp, listed)
        log_start = handle.log.start()
        return _from(
            now,
            (
                each
                for each in now.snapshots
                if each <= log_start and (before_ms is None or self._time(now.stream, each, listed) <= before_ms)
            ),
        )

    def _with_snapshot(self, shipped: Shipped, newest: int, time_ms: int, listed: dict[ObjectName, int]) -> Shipped:
        """What was shipped of a stream, with the store's newest snapshot, which is shipped if the replica lacks it."""
        epoch = self._shipper.epoch
        own = [name.start for name in listed if (name.stream, name.epoch) == (shipped.stream, epoch)]
        # Where a later leader's objects begin, those of earlier leaders end: its snapshot must not be its first object.
        if not max(shipped.start, *shipped.snapshots, min(own, default=newest)) < newest < shipped.end:
            return shipped
        offset = self._shipper.ship_snapshot(shipped.stream)
        if offset != newest:
            return shipped  # a newer one has just been taken, or this one is damaged
        self._times[shipped.stream, offset] = time_ms
        return Shipped(
            stream=shipped.stream, start=shipped.start, end=shipped.end, snapshots=[*shipped.snapshots, offset]
        )

    def _time(self, stream: Stream, offset: int, listed: dict[ObjectName, int]) -> int:
        """The time of a snapshot (ms): that of its last change, or of the creation of an image."""
        if (stream, offset) in self._times:
            return self._times[stream, offset]
        name = max((name for name in listed if _is_at(name, stream, offset)), key=lambda name: name.epoch, default=None)
        if name is None:
            raise CorruptData(
                "A snapshot of the replica is missing; run `kvstore replica repair`.",
                table_id=stream.table_id,
                bucket=stream.bucket,
                offset=offset,
            )
        if stream == CATALOG:
            self._times[stream, offset] = self._image(name, listed).head.created_ms
        else:
            manifest = first_part_of(self._client, self._runtime.store_id, name, listed[name])
            self._times[stream, offset] = decode_manifest(bytes(manifest)).last_timestamp
        return self._times[stream, offset]

    def _image(self, name: ObjectName, listed: dict[ObjectName, int]) -> Reader:
        (data,) = snapshot_parts(read_object(self._client, self._runtime.store_id, name, listed[name]))
        return Reader(BytesIO(data).read, len(data))


def _from(shipped: Shipped, beginnings: Iterable[int]) -> Shipped:
    """What was shipped of a stream, from the last of some snapshots on."""
    start = max([shipped.start, *beginnings])
    return Shipped(
        stream=shipped.stream,
        start=start,
        end=shipped.end,
        snapshots=[each for each in shipped.snapshots if each >= start],
    )


def _is_at(name: ObjectName, stream: Stream, offset: int) -> bool:
    return (name.stream, name.kind, name.start) == (stream, "snapshot", offset)
