"""A write of a shared table: its changes are applied as of the newest epoch and committed; after a conflict, again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvstore.clock import Clock
from kvstore.errors import Unavailable
from kvstore.shared.table import SharedTable
from logformat.ids import BucketId
from logformat.replica.shared_table import SharedEpoch, SharedRange

TRIES = 20
AGE_SECONDS_MAX = 5 * 86_400
"""A commit takes place within this time of its first upload: a vacuum removes what is older than a week."""
Apply = Callable[[SharedEpoch, int], Mapping[BucketId, SharedRange] | None]


@dataclass(frozen=True)
class WriteSummary:
    """The result of a write.

    Attributes:
        epoch: The epoch that has it.
        duplicated: Whether an earlier write under the same name had it already; then nothing was written.
    """

    epoch: int
    duplicated: bool = False


def write_once(table: SharedTable, writer: str | None, apply: Apply, clock: Clock) -> WriteSummary:
    """Write: all of it, or nothing.

    If another commit comes first, all buckets are applied again: what was merged with rows that have changed since
    would be wrong. What an attempt has uploaded and not committed stays in the object store; no epoch names it.

    All buckets of a write bear one time, that of its epoch. Times rise with the epochs, also if the clocks of drivers
    differ: a read as of a time has each write whole, or not at all.

    Args:
        writer: Name under which this is written once; None for no name.
        apply: Uploads the ranges of the write as of an epoch, with a time (ms); None if it has found that there is a
            newer epoch.
        clock: The driver's.

    Raises:
        Unavailable: The object store can't be reached, or others commit all the time. Without a name, it is not known
            whether this was written; with one, write again.
        OutOfOrderSequence: It is a batch of a stream, of which the table has a later one. Nothing was written.
        MissingVersion, CorruptData: See :meth:`SharedTable.newest`.
    """
    for _ in range(TRIES):
        base = table.newest()
        if writer is not None and (epoch := base.written(writer)) is not None:
            return WriteSummary(epoch, duplicated=True)
        began, at_ms = clock.monotonic(), max(clock.now_ms(), base.committed_ms + 1)
        ranges = apply(base, at_ms)
        if ranges is None:
            continue
        check_age(began, clock)
        made = table.commit(base, ranges, writer, at_ms)
        if made is not None:
            return WriteSummary(made.epoch)
    raise Unavailable("Others write the shared table all the time; try again.", table=table.definition.name)


def check_age(began: float, clock: Clock) -> None:
    """Check that uploads since a monotonic time may still be committed.

    Raises:
        Unavailable: They may be removed by now.
    """
    if clock.monotonic() - began > AGE_SECONDS_MAX:
        raise Unavailable("This took longer than five days; nothing was written. Try again.")
