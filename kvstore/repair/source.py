"""What a replica has that its leader lost.

* Nothing is taken from a replica of another store, or from one that another leader ships to: that may be another
  history.
* Nothing is believed before it was verified; an object that is bad is left out, and said.
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

Met = Callable[[BatchHeader], None]
"""Called with each batch that is read, whether or not it was asked for."""


class Source:
    """A replica, for reading.

    Args:
        url: Where it is.

    Attributes:
        store_file: What makes a directory the store it is of.
        bad: Objects that were to be read and are not what they should be, a sentence each.

    Raises:
        NotAStore: There is no replica.
        Unavailable: It can't be reached.
        CorruptData: What says whose it is, or how far it goes, is damaged; repair the replica.
    """

    def __init__(self, client: Client, url: str) -> None:
        self._client = client
        self._place = place_of(url)
        self._source = source.Source(client)
        self.store_file = store_file.encode(self._source.store)
        self.store_id = self._source.store.store_id
        self._limits: dict[Stream, int] | None = None
        self._left_out: set[ObjectName] = set()
        self.bad: list[str] = []

    def admit(self, ours: Epoch, leader: str | None, replicas: Iterable[ReplicaStatus]) -> None:
        """See that it is of this leader, or of one before it.

        Of a replica that only a leader before this one shipped to, what counts is what the catalog knows to have been
        shipped: behind that it may be another history.

        Args:
            ours: The epoch of this leader.
            leader: Its name, if it is known.
            replicas: What the catalog knows of them.

        Raises:
            WriterFenced: Another leader ships there.
        """
        leaders = {epoch: name for name, _ in self._client.list("leader/") if (epoch := leader_epoch(name)) is not None}
        newest = max(leaders, default=Epoch(0))
        others = newest > ours
        if newest == ours and newest in leaders and leader is not None:
            others = not is_of(bytes(self._client.get(leaders[newest], bytes_max=LEADER_BYTES_MAX)), leader)
        if others:
            raise WriterFenced(
                "Another leader has taken this store's place, and the replica is of that one: this copy is over. Take"
                " what the other has, by `kvstore replica restore`.",
                leader_epoch=newest,
                ours=ours,
            )
        if newest < ours:
            self._limits = {}
            for each in (shipped for replica in replicas for shipped in replica.shipped):
                self._limits[each.stream] = max(each.end, self._limits.get(each.stream, 0))

    def end(self, stream: Stream) -> int:
        """Up to where it was told that the track goes; 0 if it was told nothing that counts."""
        told = self._shipped(stream)
        return 0 if told is None else self._limited(stream, told.end)

    def start(self, stream: Stream) -> int:
        """Where its ranges of a track begin."""
        starts = [name.start for name in self._objects(stream) if name.kind == "range"]
        return min(starts, default=0)

    def batches(self, stream: Stream, start: int, stop: int, met: Met) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Batches from an offset on, each behind the one before, up to another offset or as far as it has them.

        Raises:
            CorruptData: No batch of it begins at ``start``, but one goes over it; or ranges contradict each other.
            UnsupportedVersion: A newer version wrote an object.
            Unavailable: It can't be reached.
        """
        at = start
        while at < stop:
            is_whole = True
            for piece in path_from(at, stop, self._objects(stream)).pieces:
                try:
                    found = self._source.read(piece.name)
                except UnsupportedVersion:
                    raise
                except CorruptData as error:
                    self.bad.append(str(error))
                    self._left_out.add(piece.name)
                    is_whole = False  # another may have the same
                    break
                until = self._limited(stream, piece.until)
                for header, data in batches(found):
                    if header.next_offset > until:
                        break
                    met(header)
                    if header.base_offset == at and header.next_offset <= stop:
                        yield header, data
                        at = header.next_offset
                    elif header.base_offset < at < header.next_offset:
                        raise CorruptData("A batch of the replica begins elsewhere.", object=str(piece.name), offset=at)
            if is_whole:
                return

    def catalog(self) -> Elsewhere:
        """Its catalog: an image, and the edits behind it.

        Raises:
            MissingVersion: It has a hole.
            CorruptData: An object is not what it should be.
        """
        told = self._shipped(CATALOG)
        way = None if told is None else path_to(told.end, told, self._objects(CATALOG))
        if told is None or way is None:
            raise MissingVersion("The replica's catalog has a hole, or was never shipped; repair the replica.")
        state = CatalogState()
        if way.snapshot is not None:
            _, state = self._source.image(way.snapshot)
        limit = self._limited(CATALOG, told.end)
        edits = [edit for edit in self._source.edits(way) if state.txid < edit.txid <= limit]
        names = [
            name for name, replica in _after(state, edits).replicas.items() if place_of(replica.url) == self._place
        ]
        told_of = self._source.told
        # It is told before it is reported, and the report is shipped later still.
        return Elsewhere(
            state, edits, [TellReplica(name=name, as_of_ms=told_of.as_of_ms, shipped=told_of.shipped) for name in names]
        )

    def _shipped(self, stream: Stream) -> Shipped | None:
        return next((each for each in self._source.told.shipped if each.stream == stream), None)

    def _limited(self, stream: Stream, offset: int) -> int:
        return offset if self._limits is None else min(offset, self._limits.get(stream, 0))

    def _objects(self, stream: Stream) -> list[ObjectName]:
        """All that is listed and not bad: who shipped may have died before it was reported."""
        return [name for name in self._source.objects(stream) if name not in self._left_out]


def _after(state: CatalogState, edits: Iterable[Edit]) -> CatalogState:
    for edit in edits:
        state = state.after(edit)
    return state
