"""Streams from a replica in its place, or from a shared table, from any machine: the offsets are those of the table.

* The process that lives as long as the query follows the table; executors read the objects it names.
* Ends of batches are consistent cuts, or epochs of a shared table, so no commit over several buckets is in a batch in
  part. With a limit that is so for shared tables only.
* An offset has the epoch of the leader, so that a stream notices a later leader that lacks what it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from kvstore.errors import UnsupportedOperation
from kvstore.read.scan import KeyRange
from kvstore.replica.read.tail import Tail
from kvstore.spark.failures import errors_shown_alone
from kvstore.spark.options import Options, Place
from kvstore.spark.read.offsets import Began, Raw, StreamOffset, by_name, table_id
from kvstore.spark.read.replica import ReplicaPlace, ReplicaReadTask, read_replica, tasks_of_replica
from kvstore.spark.read.splits import ReadRange
from kvstore.spark.read.stream import StreamReader
from kvstore.spark.types import arrow_schema
from logformat.ids import Offset


@errors_shown_alone
class KvStoreReplicaStreamReader(StreamReader):
    """Follows the changes of a table in a replica, or of a shared table.

    Every method that needs the objects raises Unavailable if they can't be reached, MissingVersion if the replica has a
    hole, and CorruptData if an object that has to be read is damaged.
    """

    def __init__(self, place: ReplicaPlace, schema: StructType, options: Options) -> None:
        super().__init__(place, place.definition, schema, options)
        if options.consumer is not None:
            raise UnsupportedOperation(
                "A shared table has no consumers; leave option `consumer` out."
                if place.is_shared
                else "A replica has no consumers; leave option `consumer` out, and have the replica keep changes for "
                "longer than the stream may stop (`kvstore replica add --retention-days`).",
                consumer=options.consumer,
            )
        self._place = place
        self._tail: Tail | None = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one partition."""
        assert isinstance(partition, ReplicaReadTask)
        yield from read_replica(partition, arrow_schema(self._schema))

    def commit(self, end: Raw) -> None:
        """Forget the names of the objects that were read."""
        place = self._decoded(end)
        if place is not None and not place.rows_from:
            self._followed().forget(place.by_bucket)

    def stop(self) -> None:
        """Forget everything."""
        self._tail = None

    def _followed(self) -> Tail:
        if self._tail is None:
            self._tail = self._place.tail()
        return self._tail

    def _renew(self) -> None:
        if self._tail is not None:
            self._tail.poll()
        # The columns of a stream are those that it began with.
        self._followed().table.definition.check_names_of(self._place.definition.schema_id)

    def _bounds(self) -> dict[int, tuple[Offset, Offset]]:
        return self._followed().table.bounds()

    def _begin_at(self, start: Place) -> tuple[dict[int, Offset], dict[int, int] | None]:
        tail, rows_of = self._followed(), None
        if start == "full":
            self._place.check_key()
            rows_of = {bucket: tail.last_timestamp(bucket, end) for bucket, end in tail.table.ends().items()}
        ranges = tail.table.offset_ranges(start, "latest", fail_on_data_loss=self._options.fail_on_data_loss)
        return {bucket: Offset(first) for bucket, (first, _) in ranges.items()}, rows_of

    def _limited(self, before: Mapping[int, Offset], ends: Mapping[int, Offset], limit: ReadLimit) -> dict[int, Offset]:
        if isinstance(limit, ReadMaxRows):
            ends, is_whole = self._followed().whole_ends(before, ends, limit.max_rows)
            if is_whole:
                return ends
        return super()._limited(before, ends, limit)

    def _commit_end(self, bucket: int, start: Offset, end: Offset, records: int) -> Offset:
        return self._followed().commit_end(bucket, start, end, records)

    def _key_after(self, bucket: int, keys: KeyRange, rows: int, as_of: Offset) -> tuple[bytes | None, int]:
        del bucket, keys, as_of  # the rows of a bucket are rebuilt as a whole, so a batch has those of one bucket
        return None, rows

    def _tasks(self, ranges: Sequence[ReadRange]) -> list[InputPartition]:
        table = self._followed().table
        place = replace(self._place, definition=table.definition)
        if any(each.keys is not None and each.keys.start > KeyRange().start for each in ranges):
            raise UnsupportedOperation(
                "The checkpoint lies between the rows of a bucket, and a replica has the rows of a bucket as a whole; "
                "continue with the store until all rows are read, or start with a new checkpoint.",
                url=self._place.url,
            )
        rows = [table.rows(each.bucket, each.start) for each in ranges if each.inserted_at is not None]
        changes = [table.changes(each.bucket, each.start, each.end) for each in ranges if each.start < each.end]
        return tasks_of_replica(place, [*rows, *changes], self.cores)

    def _check_continues(self, before: StreamOffset) -> None:
        if before.leader_epoch is not None:
            self._followed().check_leader(before.by_bucket, before.leader_epoch)

    def _offset(self, offsets: Mapping[int, Offset], began: Began | None = None) -> StreamOffset:
        return StreamOffset(table_id(self._place), by_name(offsets), began, self._followed().leader_epoch)
