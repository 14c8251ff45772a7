"""What a copy has that the leader of its replica lacks, after one took another's place."""

from __future__ import annotations

from kvstore.errors import OffsetOutOfRange
from kvstore.replica.follow.copy import Copy
from kvstore.replica.source import Source
from logformat.catalog import edits
from logformat.catalog.replicas import CATALOG, Stream
from logformat.ids import BucketId, Offset, Txid
from logformat.replica.object_file import ObjectName


def begins_behind(copy: Copy, source: Source) -> bool:
    """Whether the replica begins behind what the copy has of some track: then there is no way from one to the other.

    Or a new leader began with a snapshot: whether what the copy has leads there, nothing tells.
    """
    state = copy.state
    ends = {CATALOG: int(state.txid)}
    for shipped in source.told.shipped:
        if shipped.stream.table_id in state.tables:
            ends[shipped.stream] = copy.bucket(shipped.stream).end
    for stream, end in ends.items():
        first = _first_of_new(copy, source, stream)
        if source.shipped(stream).start > end or (first is not None and first.kind == "snapshot"):
            return True
    return False


def lacking_of(copy: Copy, source: Source) -> int:
    """How many edits and changes of the copy a new leader lacks.

    Raises:
        MissingVersion, CorruptData, Unavailable: What it has can't be read.
    """
    state = copy.state
    of_catalog = state.txid - _common_edits(copy, source)
    told = {shipped.stream: shipped.end for shipped in source.told.shipped}
    of_buckets = 0
    for definition in state.tables.values():
        for bucket in range(definition.buckets):
            stream = Stream(definition.id, BucketId(bucket))
            end = copy.bucket(stream).end
            if stream in told:
                of_buckets += end - _common_changes(copy, source, stream, told[stream])
            elif of_catalog:
                of_buckets += end  # of a table that leader may not know
    return of_catalog + of_buckets


def _first_of_new(copy: Copy, source: Source, stream: Stream) -> ObjectName | None:
    """The first object of leaders behind the copy's; None if there is none."""
    known = copy.state.leader_epoch
    found = (name for name in source.objects(stream) if name.epoch > known)
    return min(found, key=lambda name: (name.start, name.kind != "snapshot"), default=None)


def _common_edits(copy: Copy, source: Source) -> int:
    """Txid up to which both have the same."""
    own, told = copy.state.txid, source.shipped(CATALOG).end
    common, first = min(own, told), _first_of_new(copy, source, CATALOG)
    if first is not None and first.kind == "snapshot":
        return min(common, first.start - 1)  # the BeginEpoch in it the copy does not have
    if first is None or first.start >= common:
        return common
    begin = first.start
    behind = copy.journal.behind(Txid(begin))
    if behind is None:
        return begin  # they are in an image: nobody can tell
    theirs = source.edits(source.way_from(CATALOG, begin, common))
    for mine, other in zip(behind, theirs, strict=False):
        if mine != edits.encode(other):
            return other.txid - 1
    return common


def _common_changes(copy: Copy, source: Source, stream: Stream, told: int) -> int:
    """Offset up to which both have the same."""
    bucket = copy.bucket(stream)
    common, first = min(bucket.end, told), _first_of_new(copy, source, stream)
    if first is None or first.start >= common:
        return common
    # What has expired here can't be compared; what is behind it was written behind that.
    begin = max(first.start, bucket.log.start())
    at = first.start
    theirs = source.batches(source.way_from(stream, first.start, common), told)
    behind = (each for each in theirs if each[0].next_offset > begin)
    try:
        # As far as both go, and not just to where one ends: there the other's batch may go on.
        for mine, (header, data) in zip(bucket.log.batches(Offset(begin), bucket.end), behind, strict=False):
            if mine.data != data:
                break
            at = header.next_offset
    except OffsetOutOfRange:
        return first.start  # it expires just now: nobody can tell
    return at
