"""How a store is opened: one struct, handed down to whoever needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from kvstore.errors import InvalidRequest

Durability = Literal["sync", "interval", "none"]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Set when a store is opened; they hold for this process.

    Attributes:
        durability: When a write is acknowledged. ``sync``: once it is on the disk. ``interval``: at once, and on the
            disk at most ``sync_interval_ms`` later. ``none``: at once, and on the disk after a flush or close.
            Whatever it is, a crash leaves a prefix of what was acknowledged.
        sync_interval_ms: See ``durability``.
        segment_bytes_max: A segment of the log is followed by a new one once it is larger.
        commit_bytes_max: The index is committed once this many bytes wait in it,
        commit_wait_ms: or this long after the first of them was acknowledged, or four times as long as the last commit
            took,
        commit_idle_ms: or once nothing was written for this long, or for half as long as the last commit took.
        map_bytes: Address space reserved for each index; it is sparse and grows when needed.
        batch_rows_max: A longer ``upsert`` or ``delete`` is applied in several batches of this many rows.
    """

    durability: Durability = "sync"
    sync_interval_ms: int = 100
    segment_bytes_max: int = 256 << 20
    commit_bytes_max: int = 256 << 20
    commit_wait_ms: int = 200
    commit_idle_ms: int = 20
    map_bytes: int = 256 << 30
    batch_rows_max: int = 1 << 17

    def __post_init__(self) -> None:
        if self.durability not in get_args(Durability):
            raise InvalidRequest(
                f"durability is one of {', '.join(get_args(Durability))}.", durability=repr(self.durability)
            )
        for name in self.__slots__[1:]:
            if getattr(self, name) <= 0:
                raise InvalidRequest("This option is a positive number.", **{name: getattr(self, name)})
