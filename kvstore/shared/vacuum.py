"""Removes what a shared table does not need any more: old manifests, and what was uploaded and never committed.

* Times are those of the object store, never those of a machine's clock.
* A range is named by all later epochs until its changes expire. It goes with the last manifest that names it, as
  snapshots do.
* What no epoch names may be of a write that is under way: it goes after a week, and commits take place within five days
  of their first upload. What was uploaded for a table that was never created goes likewise, with the next vacuum of a
  table at that place.
* Manifests go from the oldest on, so those that are left have no holes. A writer whose base is removed finds out after
  it has created the next epoch (:meth:`SharedTable.commit`). That one is none of the table, and goes with the next
  vacuum, as does what a vacuum that was stopped has left (:mod:`kvstore.shared.first`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from uuid import uuid4

from kvstore.errors import MissingVersion
from kvstore.replica.client import Client
from kvstore.shared.first import first_epoch, listed_numbers
from kvstore.shared.table import SharedTable, described_in
from logformat.ids import BucketId, TableId
from logformat.replica import shared_table
from logformat.replica.object_file import ObjectName, parse_name
from logformat.replica.shared_table import SharedEpoch

UNNAMED_MS = 7 * 86_400_000
"""What no epoch names is kept for this time after it was uploaded."""


@dataclass(frozen=True)
class VacuumSummary:
    """What a vacuum has removed, or would remove.

    Attributes:
        epochs: Number of manifests.
        objects: Number of other objects: snapshots, and what was uploaded or staged and never committed.
        bytes: Size of all of them.
        first_epoch: The oldest epoch that is left.
    """

    epochs: int
    objects: int
    bytes: int
    first_epoch: int


def remove_unneeded(table: SharedTable, *, older_than_ms: int, retain_last: int, dry_run: bool) -> VacuumSummary:
    """Remove old manifests and what no epoch names; see ``vacuum``."""
    while True:
        before = listed_numbers(table)[0]
        try:
            return _removed(table, older_than_ms, retain_last, dry_run=dry_run)
        except MissingVersion:
            if listed_numbers(table)[0] <= before:
                raise
            # else another vacuum has removed it: begin again


def _removed(table: SharedTable, older_than_ms: int, retain_last: int, *, dry_run: bool) -> VacuumSummary:
    client, id = table.client, table.described.table_id
    prefix = shared_table.epochs_prefix(id)
    # Listed before the newest epoch, and definitions, are read: what these do not name was not committed before.
    of_all = dict(client.list(shared_table.ALL_OBJECTS))
    listed = {name: size for name, size in of_all.items() if name.startswith(shared_table.objects_prefix(id))}
    newest, now_ms = table.newest(), _now_ms(client)
    numbers = sorted(int(name.removeprefix(prefix)) for name in listed if name.startswith(prefix))
    kept_from = _first_retained(table, _numbers_of(table, numbers, newest), newest, now_ms - older_than_ms, retain_last)
    named = set(_named(table, newest, kept_from))
    epochs = [shared_table.epoch_name(id, number) for number in numbers if number < kept_from]
    parsed = {name: parse_name(name) for name in listed}
    unneeded = [name for name, parsed_name in parsed.items() if parsed_name is not None and parsed_name not in named]
    staged = dict(client.list(f"{shared_table.STAGING}/"))
    unneeded = [
        name for name in (*unneeded, *staged) if now_ms - client.modified_ms(name) >= UNNAMED_MS
    ]  # one request for each of them: there are few
    unneeded += _never_created(client, of_all, now_ms)
    if not dry_run:
        for name in (*epochs, *unneeded):
            client.delete(name)
    sizes = of_all | staged
    return VacuumSummary(len(epochs), len(unneeded), sum(sizes[name] for name in (*epochs, *unneeded)), kept_from)


def _never_created(client: Client, listed: Collection[str], now_ms: int) -> list[str]:
    """Objects of tables that were begun a week ago or earlier, and never created.

    Such a table has no definition, and at most its epoch 0. One that was created has a note of its newest epoch, too,
    so nothing of it goes if its definition is lost.
    """
    created = {each.table_id for each in described_in(client)}
    of_others: dict[str, list[str]] = {}
    for name in listed:
        of_others.setdefault(name.split("/")[1], []).append(name)
    orphans = []
    for id, names in of_others.items():
        if not id.isdecimal() or int(id) in created:
            continue
        first = shared_table.epoch_name(TableId(int(id)), 0)
        is_begun = all(name == first or parse_name(name) is not None for name in names)
        if is_begun and all(now_ms - client.modified_ms(name) >= UNNAMED_MS for name in names):
            orphans += names
    return orphans


def _numbers_of(table: SharedTable, numbers: list[int], newest: SharedEpoch) -> list[int]:
    """The numbers of the table's epochs up to the newest, of those that are there."""
    numbers_there = set(numbers)
    begin = newest.epoch
    while begin - 1 in numbers_there:
        begin -= 1
    least = first_epoch(table, range(begin, newest.epoch + 1), newest)
    return list(range(least, newest.epoch + 1))


def _now_ms(client: Client) -> int:
    """The time of the object store."""
    name = f"{shared_table.STAGING}/{uuid4().hex}/now"
    client.replace(name, [b"now"])
    try:
        return client.modified_ms(name)
    finally:
        client.delete(name)


def _first_retained(
    table: SharedTable, numbers: list[int], newest: SharedEpoch, older_than_ms: int, retain_last: int
) -> int:
    """Number of the first epoch whose manifest stays: the full one that those to be retained begin with."""
    candidates = [number for number in numbers if number <= newest.epoch - retain_last]

    def modified_ms(number: int) -> int:
        return table.client.modified_ms(shared_table.epoch_name(newest.table_id, number))

    # Manifests are created in the order of their numbers.
    old = bisect_left(candidates, older_than_ms, key=modified_ms)
    kept_from = candidates[old] if old < len(candidates) else max(newest.epoch - retain_last + 1, numbers[0])
    return _existing(table, kept_from).full


def _named(table: SharedTable, newest: SharedEpoch, kept_from: int) -> Iterator[ObjectName]:
    """Names of all objects that the epochs from ``kept_from`` on name."""
    last = newest  # of those that add to one full epoch: it has all that these name
    while True:
        for bucket in map(BucketId, range(table.definition.buckets)):
            yield from last.sizes(bucket)
        if last.full <= kept_from:
            return
        last = _existing(table, last.full - 1)


def _existing(table: SharedTable, number: int) -> SharedEpoch:
    epoch_there = table.epoch(number)
    if epoch_there is None:
        name = shared_table.epoch_name(table.described.table_id, number)
        raise MissingVersion("The manifest of an epoch is gone; nothing was removed.", object=name)
    return epoch_there
