"""Compares a copy with the leader of its replica, after that leader took another's place."""

from __future__ import annotations

from kvstore.errors import OffsetOutOfRange
from kvstore.replica.consistent_cut import streams_of
from kvstore.replica.follow.copy import Copy
from kvstore.replica.source import Source
from logformat.catalog import edits
from logformat.catalog.replicas import CATALOG, Stream
from logformat.ids import Offset, Txid
from logformat.replica.object_file import ObjectName


def has_no_path(copy: Copy, source: Source) -> bool:
    """Whether some stream has no path from the copy to the replica, because the replica starts after the copy's end.

    The same holds if a new leader started with a snapshot: nothing shows that it continues what the copy has.
    """
    state = copy.state
    ends = {CATALOG: int(state.txid)}
    for shipped in source.manifest.shipped:
        if shipped.stream.table_id in state.tables:
            ends[shipped.stream] = copy.bucket(shipped.stream).end
    for stream, end in ends.items():
        first = _first_of_later_leaders(copy, source, stream)
        if source.shipped(stream).start > end or (first is not None and first.kind == "snapshot"):
            return True
    return False


def divergence_of(copy: Copy, source: Source) -> int:
    """Number of the copy's edits and changes that a new leader lacks.

    Raises:
        MissingVersion, CorruptData, Unavailable: The new leader's edits or changes can't be read.
    """
    state = copy.state
    of_catalog = state.txid - _common_edits(copy, source)
    ends = {shipped.stream: shipped.end for shipped in source.manifest.shipped}
    of_buckets = 0
    for definition in state.tables.values():
        for stream in streams_of(definition):
            end = copy.bucket(stream).end
            if stream in ends:
                of_buckets += end - _common_changes(copy, source, stream, ends[stream])
            elif of_catalog:
                of_buckets += end  # the new leader may not know the table
    return of_catalog + of_buckets


def _first_of_later_leaders(copy: Copy, source: Source, stream: Stream) -> ObjectName | None:
    """The first object of leaders after the copy's; None if there is none."""
    epoch = copy.state.leader_epoch
    names = (name for name in source.objects(stream) if name.epoch > epoch)
    return min(names, key=lambda name: (name.start, name.kind != "snapshot"), default=None)


def _common_edits(copy: Copy, source: Source) -> int:
    """The txid up to which both have the same edits."""
    own, shipped = copy.state.txid, source.shipped(CATALOG).end
    common, first = min(own, shipped), _first_of_later_leaders(copy, source, CATALOG)
    if first is not None and first.kind == "snapshot":
        return min(common, first.start - 1)  # the copy lacks the BeginEpoch in it
    if first is None or first.start >= common:
        return common
    begin = first.start
    ours = copy.journal.edits_after(Txid(begin))
    if ours is None:
        return begin  # they are in an image, and can't be compared
    theirs = source.edits(source.path_from(CATALOG, begin, common))
    for mine, other in zip(ours, theirs, strict=False):
        if mine != edits.encode(other):
            return other.txid - 1
    return common


def _common_changes(copy: Copy, source: Source, stream: Stream, shipped: int) -> int:
    """The offset up to which both have the same changes."""
    bucket = copy.bucket(stream)
    common, first = min(bucket.end, shipped), _first_of_later_leaders(copy, source, stream)
    if first is None or first.start >= common:
        return common
    # Expired changes can't be compared; the changes after them were written after them.
    begin = max(first.start, bucket.log.start())
    at = first.start
    theirs = source.batches(source.path_from(stream, first.start, common), shipped)
    compared = (each for each in theirs if each[0].next_offset > begin)
    try:
        # Up to the end of both, and not only of the shorter one: there a batch of the longer one may continue.
        for mine, (header, data) in zip(bucket.log.batches(Offset(begin), bucket.end), compared, strict=False):
            if mine.data != data:
                break
            at = header.next_offset
    except OffsetOutOfRange:
        return first.start  # they have just expired, and can't be compared
    return at
