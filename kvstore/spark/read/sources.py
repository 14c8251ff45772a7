"""Where a table may be: in a store on this machine, in a replica, or among shared tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import NotAStore
from kvstore.read.scan import rows_where
from kvstore.replica.location import replica_at
from kvstore.spark.options import Options
from kvstore.spark.read import replica, store
from kvstore.spark.read.address import TableAddress, Where, found, opened
from kvstore.spark.read.followed import Followed
from kvstore.spark.read.tasks import Loaded, Reads, ReadTask, freeze_once, larger
from kvstore.spark.types import for_spark


def load(options: Options, *, keep_log: bool = True) -> Loaded:
    """Find the table that options name, and pin what they select.

    Args:
        keep_log: See :func:`kvstore.spark.read.store.load`, and :func:`kvstore.spark.read.replica.load` for errors.
    """
    url = replica_at(options.path)
    return store.load(options, keep_log=keep_log) if url is None else replica.load(url, options)


def followed(options: Options) -> tuple[TableAddress, Followed]:
    """The table that options name, for a stream; see :func:`load` for errors."""
    url = replica_at(options.path)
    if url is None:
        with found(options) as (address, _):
            return address, store.FollowedStore(address, options)
    address, _ = replica.found(url, options)
    return address, replica.FollowedReplica(address, options)


@contextmanager
def open_meanwhile(options: Options) -> Iterator[None]:
    """Keep the store that options name open, if it is on this machine: opening it again meanwhile costs a sixth."""
    with ExitStack() as held:
        if replica_at(options.path) is None:
            with suppress(NotAStore):  # what is done meanwhile says so
                held.enter_context(opened(options.path))
        yield


@contextmanager
def reads_of(address: TableAddress) -> Iterator[Reads]:
    """Reads of a table that was found; see :meth:`TableAddress.open` for errors."""
    if address.where is not Where.STORE:
        yield replica.ReplicaReads(address)
        return
    with address.open() as table:
        yield store.StoreReads(address, table)


def read(
    task: ReadTask, target: pa.Schema, filter: pc.Expression | None = None, needed: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a task's pieces as batches for Spark.

    Args:
        target: Requested columns, with the types that Spark expects.
        filter: Only rows for which it is true.
        needed: Requested columns and those that the filter may use; the requested columns if None.

    Raises:
        NoSuchTable: The table was dropped meanwhile.
        OffsetOutOfRange: Requested offsets have expired meanwhile.
        CorruptData: The index, the log or an object is missing or damaged.
        Unavailable: The replica can't be reached.
        StoreFull, LogFailed: The local disk is full or failed, which holds the temporary index of a replica's rows.
    """
    freeze_once()
    with reads_of(task.address) as reads:
        for piece in task.pieces:
            batches = reads.batches(piece, target, filter, needed)
            if filter is not None:
                batches = larger(rows_where(batches, filter))
            for batch in batches:
                yield for_spark(batch, target)
