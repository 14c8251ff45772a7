"""Options of a store: one struct, handed to every component that needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kvstore.arguments import integer_within
from kvstore.errors import InvalidRequest
from logformat.ids import OFFSET_MAX
from logformat.log.batch import RECORDS_MAX

Durability = Literal["sync", "interval", "none"]

EDITS_PER_JOURNAL = 50_000
JournalSync = Literal["SYNC", "WRITE_NO_SYNC", "NO_SYNC"]

_MS_MAX = 2**31 - 1
RANGES = {
    "sync_interval_ms": (1, _MS_MAX),
    # A segment ends before 4 GiB, and a group of batches is one write: half is left for the last group.
    "segment_bytes_max": (1, 2 << 30),
    "log_bytes_max": (1, OFFSET_MAX),
    "consumer_log_bytes_max": (1, OFFSET_MAX),
    "commit_wait_ms": (1, _MS_MAX),
    "commit_idle_ms": (1, _MS_MAX),
    "edits_per_journal": (1, OFFSET_MAX),
    "map_bytes": (1 << 20, OFFSET_MAX),
    "batch_rows_max": (1, RECORDS_MAX // 2),  # an update is two records
}
"""Smallest and largest value of each option."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options set when a store is opened; they apply to this process. Numbers are integers within ``RANGES``.

    Attributes:
        durability: When a write is acknowledged. ``sync``: once it is on the disk. ``interval``: at once; it is on the
            disk at most ``sync_interval_ms`` later. ``none``: at once; it is on the disk after a flush or close. With
            each of them, a crash leaves a prefix of what was acknowledged.
        sync_interval_ms: See ``durability``.
        segment_bytes_max: A new segment of the log begins once the current one is larger.
        log_bytes_max: The oldest segments of a log are removed while the segments after them have this many bytes,
            except what recovery or a registered consumer needs. A table's ``retention`` is by age and applies
            independently.
        consumer_log_bytes_max: A registered consumer or lease keeps at least this many bytes of each bucket's log, up
            to its end, and no older segments that have expired: then it gets OffsetOutOfRange. A warning is logged
            once a consumer keeps four fifths of it. By default it keeps all.
        memtable_bytes: What all buckets of the store have acknowledged and not yet merged into their indexes may take
            this much memory, about; then it is merged. None: 128 MiB a bucket and 768 MiB for all, or a quarter of the
            memory that is available, if that is less.
        commit_wait_ms: It is also merged this long after the first of it was acknowledged, or four times as long as the
            last merge took,
        commit_idle_ms: or once nothing was written for this long, or for half as long as the last merge took.
        journal_sync: When a catalog edit whose loss is harmless becomes durable: the end of a commit over several
            buckets, the progress of a consumer. ``SYNC``: at once. ``WRITE_NO_SYNC``: with the next edit. ``NO_SYNC``:
            it waits in memory for at most ``sync_interval_ms``, invisible to other processes. All other edits are
            durable at once.
        edits_per_journal: A new journal of the catalog begins after this many edits; the catalog then gets an image.
        map_bytes: Address space reserved for each index; it is sparse and grows when needed.
        batch_rows_max: A larger ``upsert`` or ``delete`` is applied in several batches of this many rows.
    """

    durability: Durability = "sync"
    sync_interval_ms: int = 100
    segment_bytes_max: int = 256 << 20
    log_bytes_max: int = OFFSET_MAX
    consumer_log_bytes_max: int = OFFSET_MAX
    memtable_bytes: int | None = None
    commit_wait_ms: int = 200
    commit_idle_ms: int = 20
    journal_sync: JournalSync = "SYNC"
    edits_per_journal: int = EDITS_PER_JOURNAL
    map_bytes: int = 256 << 30
    batch_rows_max: int = 1 << 17

    def __post_init__(self) -> None:
        for name, words in (("durability", get_args(Durability)), ("journal_sync", get_args(JournalSync))):
            if getattr(self, name) not in words:
                raise InvalidRequest(f"{name} must be one of {', '.join(words)}.", **{name: repr(getattr(self, name))})
        if self.memtable_bytes is not None:
            integer_within("memtable_bytes", self.memtable_bytes, 1, OFFSET_MAX)
        for name, (low, high) in RANGES.items():
            object.__setattr__(self, name, integer_within(name, getattr(self, name), low, high))


def options_of_call(durability: Durability, settings: Mapping[str, Any]) -> StoreOptions:
    """Settings as they were given to :func:`kvstore.open`.

    Raises:
        InvalidRequest: There is no such setting.
    """
    if unknown := set(settings) - set(StoreOptions.__dataclass_fields__):
        raise InvalidRequest(
            "There is no such setting.", unknown=sorted(unknown), settings=list(StoreOptions.__dataclass_fields__)
        )
    return StoreOptions(durability, **settings)
