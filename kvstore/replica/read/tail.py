"""Follows a table in a replica in place: each poll asks only for what was shipped since the poll before.

* A poll reads the manifest. If a bucket has grown, it lists the names after the end known so far; if the catalog has
  grown, also those of the catalog, and reads the new edits. So its requests do not depend on how much was shipped
  before.
* The ends are a consistent cut, as in :class:`ReplicaTable`. Only while a commit over several buckets may be in some of
  them only, the new batches are looked through for it; each object is read for that at most once.
* After another leader, or if what comes next is gone, the table is loaded again from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kvstore.errors import OffsetOutOfRange
from kvstore.replica.client import Client, ObjectStore
from kvstore.replica.consistent_cut import BucketHistory, Committed, streams_of
from kvstore.replica.read.loading import Cut, LoadedTable, found_in
from kvstore.replica.read.recent_commits import Commit
from kvstore.replica.read.table import ReplicaTable
from logformat.catalog.replicas import CATALOG, Stream
from logformat.ids import Epoch, Offset, TableId, WriterId
from logformat.replica.manifest import ReplicaManifest

_NAMES_MIN = 1_000


class Tail(Protocol):
    """The newest state of a table in an object store; each poll asks only for what is new.

    Every method but :meth:`forget` may raise Unavailable, MissingVersion, ReplicaBehind and CorruptData.
    """

    @property
    def table(self) -> ReplicaTable:
        """The table as of the last poll."""

    @property
    def leader_epoch(self) -> Epoch | None:
        """Epoch of the leader that ships; None of a shared table, whose history never changes."""

    def poll(self) -> ReplicaTable:
        """Take what is new; the table."""

    def check_leader(self, offsets: dict[int, Offset], leader_epoch: Epoch) -> None:
        """Verify that later leaders have the changes that were read; see :meth:`ReplicaTail.check_leader`."""

    def forget(self, before: dict[int, Offset]) -> None:
        """Forget the names of objects that end at or before these offsets of the buckets: they are not read again."""

    def tidy(self) -> None:
        """Forget names of objects that are no longer needed, if they are many."""

    def commit_end(self, bucket: int, start: Offset, end: Offset, records: int) -> Offset:
        """The end of a read of whole commits: at most ``records`` changes, but at least one commit."""

    def whole_ends(
        self, before: Mapping[int, Offset], ends: Mapping[int, Offset], records: int
    ) -> tuple[dict[int, Offset], bool]:
        """Ends of a read that has commits over several buckets whole, and whether that can be known.

        Args:
            before, ends: For each bucket where the read begins, and where it ends at the latest.
            records: Most changes of the read, if its first commit does not have more.

        Returns:
            The ends, and true; or, where it is not known which changes are of one commit, their ends, and false: there
            only the changes of a bucket in one commit are to be kept together, see :meth:`commit_end`.
        """

    def last_timestamp(self, bucket: int, end: int) -> int:
        """Timestamp of the last commit before an offset (ms); 0 if there is none."""


class ReplicaTail:
    """The newest state of a table in a replica.

    Args:
        table: Name or id of the table.
        client: A client for the URL; None to create one.

    Attributes:
        table: The table as of the last poll.

    Raises:
        NotAStore, NoSuchTable, MissingVersion, ReplicaBehind, CorruptData, Unavailable: See :meth:`ReplicaTable.of`.
    """

    table: ReplicaTable
    _loaded: LoadedTable
    _taken: ReplicaManifest

    def __init__(self, url: str, table: str | TableId, client: Client | None = None) -> None:
        self._url = url
        self._client = client if client is not None else ObjectStore(url)
        self._load(table)

    @property
    def leader_epoch(self) -> Epoch:
        """Epoch of the leader that ships."""
        return self._loaded.source.manifest.leader_epoch

    def poll(self) -> ReplicaTable:
        """Take what was shipped since the last poll; the same table if that is nothing.

        Raises:
            NoSuchTable: The table was dropped.
            MissingVersion: The replica has a hole.
            CorruptData: An object that has to be read is damaged.
            ReplicaBehind, Unavailable: See :meth:`ReplicaTable.of`. The next poll continues.
        """
        source, definition = self._loaded.source, self._loaded.definition
        if not source.renew([CATALOG, *streams_of(definition)]):
            self._load(definition.id)
        elif source.manifest != self._taken:
            self._advance()
            self._taken = source.manifest
            source.release()
        return self.table

    def check_leader(self, offsets: dict[int, Offset], leader_epoch: Epoch) -> None:
        """Verify that later leaders have the changes that were read.

        Args:
            offsets: For each bucket, the offset after the last change that was read.
            leader_epoch: Epoch of the leader at that time.

        Raises:
            OffsetOutOfRange: A later leader does not have some of them.
        """
        source = self._loaded.source
        for stream in streams_of(self._loaded.definition) if leader_epoch < self.leader_epoch else ():
            later = [each.start for each in source.objects(stream) if each.epoch > leader_epoch]
            if min(later, default=offsets[stream.bucket]) < offsets[stream.bucket]:
                raise OffsetOutOfRange(
                    "A copy of the store has become its leader, and lacks changes that were read; begin again, with a "
                    "new checkpoint if this is a stream of Spark.",
                    bucket=stream.bucket,
                    offset=offsets[stream.bucket],
                    leader_begins_at=min(later),
                )

    def forget(self, before: dict[int, Offset]) -> None:
        """Forget the names of objects that end at or before these offsets of the buckets: they are not read again."""
        for stream in streams_of(self._loaded.definition):
            self._loaded.source.forget(stream, before[stream.bucket])

    def tidy(self) -> None:
        """Load the table again if many names came since: most of these objects are merged by now."""
        if self._loaded.source.object_count() > 2 * self._names + _NAMES_MIN:
            self._load(self._loaded.definition.id)

    def commit_end(self, bucket: int, start: Offset, end: Offset, records: int) -> Offset:
        """The end of a read of whole commits from ``start``: at most ``records`` changes, but at least one commit.

        Args:
            start, end: Ends of commits.

        Raises:
            MissingVersion, CorruptData, ReplicaBehind, Unavailable: See :meth:`poll`.
        """
        if end - start <= records:
            return end
        stream = streams_of(self._loaded.definition)[bucket]
        source = self._loaded.source
        piece = self.table.changes(bucket, start + records, start + records + 1).ranges[0]
        path = source.path_from(stream, piece.start, piece.until)
        for header, _ in source.batches(path, piece.until):
            if header.next_offset > start + records:
                return header.base_offset if header.base_offset > start else header.next_offset
        return end

    def whole_ends(
        self, before: Mapping[int, Offset], ends: Mapping[int, Offset], records: int
    ) -> tuple[dict[int, Offset], bool]:
        """``ends``, and false: only the catalog and all batches together say which are of one commit."""
        del before, records
        return dict(ends), False

    def last_timestamp(self, bucket: int, end: int) -> int:
        """Timestamp of the last commit before an offset (ms); 0 if there is none.

        Raises:
            MissingVersion, CorruptData, ReplicaBehind, Unavailable: See :meth:`poll`.
        """
        stream = streams_of(self._loaded.definition)[bucket]
        source = self._loaded.source
        path = source.path(stream, end, newest_before=end)
        for header in source.batches_backwards(path, end):
            return header.commit_timestamp
        return 0 if path.snapshot is None else source.snapshot_manifest(path.snapshot).last_timestamp

    def _load(self, table: str | TableId) -> None:
        loaded = LoadedTable.of(self._client, table)
        cut = loaded.cut()
        self._loaded, self._taken = loaded, loaded.source.manifest
        self._catalog_end = loaded.source.shipped(CATALOG).end
        self._names = loaded.source.object_count()
        self._set_cut(cut)
        self._read_to = dict(cut.ends)
        self._batches: dict[Stream, list[Committed]] = {stream: [] for stream in self._cut.ends}
        loaded.source.release()

    def _set_cut(self, cut: Cut) -> None:
        self._cut = cut
        self.table = ReplicaTable.at(self._url, self._loaded.source, self._loaded.definition, cut.ends)

    def _advance(self) -> None:
        source, commits, definition = self._loaded.source, self._loaded.commits, self._loaded.definition
        end = source.shipped(CATALOG).end
        if end > self._catalog_end:
            commits.take(list(source.edits(source.path_from(CATALOG, self._catalog_end, end))))
            self._catalog_end = end
            source.forget(CATALOG, end)
        definition = found_in(commits.state, definition.id)
        self._loaded = LoadedTable(source, commits, definition)
        settled = self._cut.settled
        open_commits = {
            (writer, sequence)
            for writer, sequence in commits.unsettled(definition)
            if sequence > settled.get(writer, -1)
        }
        ends = {stream: source.shipped(stream).end for stream in streams_of(definition)}
        if open_commits and len(ends) > 1:
            cut = Cut.of(self._histories(open_commits, ends))
            self._set_cut(Cut(cut.ends, settled | cut.settled))
        else:
            self._set_cut(Cut(ends, settled))
        for stream, at in self._cut.ends.items():
            self._read_to[stream] = max(self._read_to[stream], at)
            self._batches[stream] = [each for each in self._batches[stream] if each.offset >= at]

    def _histories(self, commits: set[Commit], ends: dict[Stream, int]) -> dict[Stream, BucketHistory]:
        """Histories from the last cut: there, all buckets have all earlier commits of these writers."""
        before: dict[WriterId, int] = {}
        for writer, sequence in commits:
            before[writer] = min(sequence - 1, before.get(writer, sequence - 1))
        for stream, end in ends.items():
            self._read_batches(stream, end)
        return {
            stream: BucketHistory(
                before, [each for each in self._batches[stream] if (each.writer, each.sequence) in commits], end
            )
            for stream, end in ends.items()
        }

    def _read_batches(self, stream: Stream, end: int) -> None:
        source, at = self._loaded.source, self._read_to[stream]
        if at < end:
            headers = [header for header, _ in source.batches(source.path_from(stream, at, end), end)]
            self._batches[stream] += [
                Committed(each.writer_id, each.batch_sequence, each.base_offset) for each in headers
            ]
            self._read_to[stream] = end
