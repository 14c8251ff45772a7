"""Finds where the epochs of a shared table begin: with a full one that has a beginning of its history.

Before it may be what does not count, and what the next vacuum removes: epochs that add to one that is gone, because a
vacuum was stopped, and those of writers that were so slow that a vacuum had removed what had the name before.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.errors import MissingVersion
from kvstore.shared.table import SharedTable
from logformat.replica import shared_table
from logformat.replica.shared_table import EpochObject, SharedEpoch


def listed_numbers(table: SharedTable) -> list[int]:
    """Numbers of all epochs that are there, in order; not all of them need be the table's.

    Raises:
        MissingVersion: There are none.
        Unavailable: The object store can't be reached.
    """
    prefix = shared_table.epochs_prefix(table.described.table_id)
    numbers = sorted(int(name.removeprefix(prefix)) for name, _ in table.client.list(prefix))
    if not numbers:
        raise MissingVersion("The epochs of the shared table are gone.", table=table.described.name, url=table.url)
    return numbers


def first_epoch(table: SharedTable, numbers: Sequence[int], newest: SharedEpoch) -> int:
    """Number of the first epoch of a table.

    Args:
        numbers: Numbers of epochs that are there, in order.

    Raises:
        CorruptData: The object of an epoch is damaged.
        Unavailable: The object store can't be reached.
    """
    for number in numbers:
        if number >= newest.full:
            break
        epoch = table.stored(number)
        if epoch is not None and epoch.full is None and is_before(epoch, newest):
            return number
    return newest.full


def is_before(epoch: EpochObject, newest: SharedEpoch) -> bool:
    """Whether the newest epoch has the ranges that the object of an earlier one names, but for what has expired."""
    return all(map(shared_table.has_ranges, newest.ranges, epoch.ranges))
