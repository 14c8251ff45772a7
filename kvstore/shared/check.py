"""Verifies a shared table: reads everything that its manifests name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvstore.errors import CorruptData, MissingVersion, UnsupportedVersion
from kvstore.replica.check import read_object
from kvstore.shared.first import first_epoch, is_before, listed_numbers
from kvstore.shared.table import SharedTable, store_of
from logformat import paths
from logformat.catalog.replicas import Stream
from logformat.ids import BucketId
from logformat.replica import shared_table
from logformat.replica.object_file import ObjectName
from logformat.replica.shared_table import EpochObject, SharedEpoch

FindingKind = Literal["BAD", "MISSING"]
"""Kind of a finding: an object that is damaged or another one, or an object that is not there."""


@dataclass(frozen=True)
class SharedFinding:
    """A defect of a shared table.

    Attributes:
        object: Name of the object.
        reason: What is wrong with it.
    """

    kind: FindingKind
    object: str
    reason: str


@dataclass(frozen=True)
class SharedReport:
    """What a check of a shared table found; true if nothing is wrong.

    Attributes:
        epochs: Number of manifests that were read.
        objects: Number of ranges and snapshots that were read.
        bytes: Size of these objects.
    """

    findings: list[SharedFinding] = field(default_factory=list)
    epochs: int = 0
    objects: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return not self.findings


def report_of(table: SharedTable) -> SharedReport:
    """Verify a table; see ``check``."""
    while True:
        noted = table.noted() or 0  # before the list: what is noted is there
        numbers = listed_numbers(table)
        report = _Check(table).run(_first(table, numbers), numbers[-1], noted)
        # A vacuum may have removed what was found missing.
        if report or listed_numbers(table)[0] == numbers[0]:
            return report


def _first(table: SharedTable, numbers: list[int]) -> int:
    """The first epoch to be checked: that of the table; if that can't be known, the first one that is there."""
    try:
        newest = table.epoch(numbers[-1])
        return numbers[0] if newest is None else first_epoch(table, numbers, newest)
    except (CorruptData, MissingVersion):
        return numbers[0]


class _Check:
    """A check of a table."""

    def __init__(self, table: SharedTable) -> None:
        self._table = table
        self._findings: list[SharedFinding] = []
        self._full: dict[int, EpochObject | None] = {}

    def run(self, first: int, last: int, noted: int) -> SharedReport:
        """Check the epochs of these numbers, and what they name, and that there is one from the noted number on."""
        self._check_store()
        if noted > last:
            lost = shared_table.epoch_name(self._table.described.table_id, noted)
            self._add("MISSING", lost, "This epoch was committed, and with it the last write is gone; put it back.")
        newest: SharedEpoch | None = None
        sizes: dict[ObjectName, int] = {}
        for number in range(last, first - 1, -1):
            epoch = self._stored(number)
            if epoch is None:
                continue
            full = epoch if epoch.full is None else self._stored(epoch.full)
            if full is None:
                continue
            if newest is None:
                newest = self._newest(epoch, full)
                for bucket in range(self._table.definition.buckets):
                    sizes |= {} if newest is None else newest.sizes(BucketId(bucket))
            elif not is_before(epoch, newest):
                reason = f"It has other ranges than epoch {newest.epoch}."
                self._add("BAD", shared_table.epoch_name(epoch.table_id, number), reason)
            # What it names more than the newest: snapshots, and ranges that have expired since.
            for bucket, ranges in enumerate(epoch.ranges):
                stream = Stream(full.table_id, BucketId(bucket))
                sizes |= {each.name(stream): each.bytes for each in ranges}
                snapshots = epoch.snapshots[bucket] if epoch.snapshots else []
                sizes |= {each.name(stream): each.bytes for each in snapshots}
        for name, size in sorted(sizes.items()):
            self._read(name, size)
        return SharedReport(self._findings, last - first + 1, len(sizes), sum(sizes.values()))

    def _add(self, kind: FindingKind, name: str, reason: str) -> None:
        self._findings.append(SharedFinding(kind, name, reason))

    def _check_store(self) -> None:
        try:
            store = store_of(self._table.client, self._table.url)
        except UnsupportedVersion:
            raise
        except CorruptData as error:
            self._add("MISSING" if isinstance(error, MissingVersion) else "BAD", paths.STORE_FILE, error.message)
        else:
            if store.store_id != self._table.described.store_id:
                self._add("BAD", paths.STORE_FILE, "It is of another store than the table; put the right one back.")

    def _stored(self, number: int) -> EpochObject | None:
        """The object of an epoch, if it is right. Each is read once."""
        if number not in self._full:
            name = shared_table.epoch_name(self._table.described.table_id, number)
            epoch = None
            try:
                epoch = self._table.stored(number)
                if epoch is None:
                    self._add("MISSING", name, "There is no manifest of this epoch.")
            except UnsupportedVersion:
                raise
            except CorruptData as error:
                self._add("BAD", name, error.message)
            if epoch is not None and epoch.full is not None:
                return epoch
            self._full[number] = epoch
        return self._full[number]

    def _newest(self, epoch: EpochObject, full: EpochObject) -> SharedEpoch | None:
        try:
            return shared_table.epoch_of(epoch, full)
        except CorruptData as error:
            self._add("BAD", shared_table.epoch_name(epoch.table_id, epoch.epoch), error.message)
            return None

    def _read(self, name: ObjectName, size: int) -> None:
        try:
            read_object(self._table.client, self._table.described.store_id, name, size)
        except UnsupportedVersion:
            raise
        except CorruptData as error:
            gone = isinstance(error.__cause__, FileNotFoundError)
            self._add("MISSING" if gone else "BAD", str(name), error.message)
