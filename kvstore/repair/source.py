"""Reads from a replica what its leader lost.

* Nothing is taken from a replica of another store, or from one that another leader ships to: that may be another
  history.
* Everything is verified before it is used; a bad object is skipped and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kvstore.errors import CorruptData, MissingVersion, UnsupportedVersion, WriterFenced
from kvstore.meta.salvage import Elsewhere
from kvstore.meta.state import CatalogState
from kvstore.replica import source
from kvstore.replica.client import Client, place_of
from kvstore.replica.contents import batches
from kvstore.replica.coverage import path_from, path_to
from logformat.catalog import store_file
from logformat.catalog.edits import Edit, TellReplica
from logformat.catalog.replicas import CATALOG, ReplicaStatus, Shipped, Stream
from logformat.ids import Epoch
from logformat.log.batch import BatchHeader
from logformat.replica.object_file import LEADER_BYTES_MAX, ObjectName, is_of, leader_epoch

BatchCheck = Callable[[BatchHeader], None]
"""Is called with each batch that is read, also with those outside of the range asked for."""


class Source:
    """A replica that a repair takes from.

    Args:
        client: Reads the replica's objects.
        url: The replica's URL.

    Attributes:
        store_file: Content of the file ``STORE`` of the replica's store.
        store_id: Id of the replica's store.
        bad_objects: Bad objects among those that were read, one sentence each.

    Raises:
        NotAStore: There is no replica.
        Unavailable: The replica can't be reached.
        CorruptData: ``STORE`` or the manifest of the replica is damaged; repair the replica.
    """

    def __init__(self, client: Client, url: str) -> None:
        self._client = client
        self._place = place_of(url)
        self._source = source.Source(client)
        self.store_file = store_file.encode(self._source.store)
        self.store_id = self._source.store.store_id
        self._limits: dict[Stream, int] | None = None
        self._skipped: set[ObjectName] = set()
        self.bad_objects: list[str] = []

    def refuse_other_leader(self, ours: Epoch, leader: str | None, replicas: Iterable[ReplicaStatus]) -> None:
        """Verify that this leader, or an earlier one, shipped to the replica last.

        If only earlier leaders shipped to it, it is read up to the offsets that the catalog has as shipped: after them
        it may have another history.

        Args:
            ours: The epoch of this leader.
            leader: Its name; None if it is unknown.
            replicas: The replicas in the catalog.

        Raises:
            WriterFenced: Another leader ships to the replica.
        """
        leaders = {epoch: name for name, _ in self._client.list("leader/") if (epoch := leader_epoch(name)) is not None}
        newest = max(leaders, default=Epoch(0))
        others = newest > ours
        if newest == ours and newest in leaders and leader is not None:
            others = not is_of(bytes(self._client.get(leaders[newest], bytes_max=LEADER_BYTES_MAX)), leader)
        if others:
            raise WriterFenced(
                "Another leader has taken this store's place and ships to the replica. Don't use this copy any more:"
                " restore the other one by `kvstore replica restore`.",
                leader_epoch=newest,
                ours=ours,
            )
        if newest < ours:
            self._limits = {}
            for each in (shipped for replica in replicas for shipped in replica.shipped):
                self._limits[each.stream] = max(each.end, self._limits.get(each.stream, 0))

    def end(self, stream: Stream) -> int:
        """Up to which offset the replica has a stream, by its manifest; 0 if it has nothing of it that counts."""
        shipped = self._shipped(stream)
        return 0 if shipped is None else self._limited(stream, shipped.end)

    def start(self, stream: Stream) -> int:
        """The lowest offset of a stream's ranges; 0 if there are none."""
        starts = [name.start for name in self._objects(stream) if name.kind == "range"]
        return min(starts, default=0)

    def batches(
        self, stream: Stream, start: int, stop: int, check: BatchCheck
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Batches from an offset on without a hole, up to another offset or as far as the replica has them.

        Raises:
            CorruptData: A batch of the replica contains ``start`` but begins before it, or ranges contradict each
                other.
            UnsupportedVersion: A newer version wrote an object.
            Unavailable: The replica can't be reached.
        """
        at = start
        while at < stop:
            is_complete = True
            for piece in path_from(at, stop, self._objects(stream)).pieces:
                try:
                    content = self._source.read(piece.name)
                except UnsupportedVersion:
                    raise
                except CorruptData as error:
                    self.bad_objects.append(str(error))
                    self._skipped.add(piece.name)
                    is_complete = False  # another object may have the same batches
                    break
                until = self._limited(stream, piece.until)
                for header, data in batches(content):
                    if header.next_offset > until:
                        break
                    check(header)
                    if header.base_offset == at and header.next_offset <= stop:
                        yield header, data
                        at = header.next_offset
                    elif header.base_offset < at < header.next_offset:
                        raise CorruptData(
                            "A batch of the replica begins before the offset asked for.",
                            object=str(piece.name),
                            offset=at,
                        )
            if is_complete:
                return

    def catalog(self) -> Elsewhere:
        """The replica's catalog: an image, and the edits after it.

        Raises:
            MissingVersion: The replica's catalog has a hole.
            CorruptData: An object is damaged.
        """
        shipped = self._shipped(CATALOG)
        path = None if shipped is None else path_to(shipped.end, shipped, self._objects(CATALOG))
        if shipped is None or path is None:
            raise MissingVersion("The replica's catalog has a hole, or was never shipped; repair the replica.")
        state = CatalogState()
        if path.snapshot is not None:
            _, state = self._source.image(path.snapshot)
        limit = self._limited(CATALOG, shipped.end)
        edits = [edit for edit in self._source.edits(path) if state.txid < edit.txid <= limit]
        names = [
            name for name, replica in _after(state, edits).replicas.items() if place_of(replica.url) == self._place
        ]
        # A round replaces the manifest before it reports to the catalog, and ships that report only in the next round.
        manifest = self._source.manifest
        return Elsewhere(
            state,
            edits,
            [TellReplica(name=name, as_of_ms=manifest.as_of_ms, shipped=manifest.shipped) for name in names],
        )

    def _shipped(self, stream: Stream) -> Shipped | None:
        return next((each for each in self._source.manifest.shipped if each.stream == stream), None)

    def _limited(self, stream: Stream, offset: int) -> int:
        return offset if self._limits is None else min(offset, self._limits.get(stream, 0))

    def _objects(self, stream: Stream) -> list[ObjectName]:
        """All listed objects but the bad ones, also those that an interrupted round has not put into the manifest."""
        return [name for name in self._source.objects(stream) if name not in self._skipped]


def _after(state: CatalogState, edits: Iterable[Edit]) -> CatalogState:
    for edit in edits:
        state = state.after(edit)
    return state
