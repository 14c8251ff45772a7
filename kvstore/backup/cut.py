"""A cut of a store, held by read transactions while writing goes on: of each bucket a moment, one soon after the other.

* No commit over several buckets is in some of them only: tables that have such commits are taken for the time in
  which the transactions begin, so none is under way. So are tables of one bucket with numbered commits: of a job, the
  catalog says how far its files are loaded.
* The catalog is as of after these moments, so it has the schema and the writer of every batch before it. It has the
  same tables, and no more commits of jobs and other named writers than the buckets have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from kvstore.bucket.context import BucketPaths
from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.recovery import replay_start, synced_end
from kvstore.disk.environment import Environment, Transaction
from kvstore.errors import OffsetOutOfRange, StoreClosed
from kvstore.index.index import View
from kvstore.log.segments import LogEnd, LogFiles
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.store.runtime import StoreRuntime
from logformat.catalog.replicas import Stream
from logformat.ids import BucketId, Offset, TableId

_TRIES = 10


@dataclass(frozen=True, slots=True)
class BucketCut:
    """One bucket as of its moment.

    Attributes:
        end: Where its log ends.
        index_base: Base offset of the segment from which the index goes on, perhaps before the end.
        environment, transaction: Its index, as the transaction shows it.
    """

    paths: BucketPaths
    end: LogEnd
    index_base: Offset
    environment: Environment
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Cut:
    """A store as of the cut: its catalog, and all buckets of all tables."""

    state: CatalogState
    buckets: Mapping[Stream, BucketCut]


@contextmanager
def cut_of(runtime: StoreRuntime) -> Iterator[Cut]:
    """Hold a cut of a store.

    Raises:
        StoreLocked: Another process writes a table with numbered commits, and does not hand it over.
        StoreError: The store was closed, or is damaged.
    """
    while True:
        with ExitStack() as held:
            taken = _with_commits(runtime.catalog())
            with ExitStack() as turns:
                for definition in taken.values():
                    turns.enter_context(runtime.open_table(definition).commits.turn())
                buckets = {
                    Stream(definition.id, BucketId(bucket)): bucket_cut(handle, held)
                    for definition in runtime.catalog().tables.values()
                    for bucket, handle in enumerate(runtime.open_table(definition).handles)
                }
                state = runtime.catalog()
            # Otherwise a table was created, dropped or replaced meanwhile, or has its first commit of the kind.
            there = {stream.table_id for stream in buckets}
            if state.tables.keys() == there and _with_commits(state).keys() <= taken.keys():
                yield Cut(state, buckets)
                return


def _with_commits(state: CatalogState) -> dict[TableId, TableDefinition]:
    """Tables that have, or may soon have, commits over all buckets, in the order in which they are taken."""
    return {
        id: state.tables[id]
        for id in sorted(state.tables)
        if any(writer.kind == "epochs" for writer in state.writers_of(id).named.values())
    }


def bucket_cut(handle: BucketHandle, held: ExitStack) -> BucketCut:
    """Commit a bucket and hold it as of now.

    Args:
        held: Ends the transaction.

    Raises:
        StoreError: The store was closed, or is damaged.
    """
    for _ in range(_TRIES - 1):
        try:
            return _begun(handle, held)
        except StoreClosed:
            pass  # the index was closed or replaced meanwhile; of a closed store, the next look is refused
    return _begun(handle, held)


def _begun(handle: BucketHandle, held: ExitStack) -> BucketCut:
    handle.flush()
    environment = handle.reader().environment
    transaction = held.enter_context(environment.read())
    state = View(transaction).state()
    end, log = synced_end(state), handle.log
    start = replay_start(state, log)
    # Another process that writes the bucket commits its index now and then; what it lacks is replayed into the copy.
    for found in log.batches(state.synced_offset, handle.committed().applied_offset):
        end = found.after
    return BucketCut(handle.paths, end, start.base, environment, transaction)


def log_of(bucket: BucketCut) -> tuple[LogFiles, list[Offset]]:
    """The log of a bucket, and base offsets of the segments before its end.

    Raises:
        OffsetOutOfRange: What the index goes on from has expired; begin with another cut.
    """
    log = LogFiles(bucket.paths.log, bucket.paths.identity)
    bases = log.bases()
    if bases[0] > bucket.index_base:
        raise OffsetOutOfRange("The log of a bucket has expired meanwhile.", offset=bucket.index_base)
    return log, [base for base in bases if base <= bucket.end.base]
