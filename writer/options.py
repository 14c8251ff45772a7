"""Options of a writer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import index

from logformat.errors import InvalidRequest
from logformat.log.arrow_message import RAW_BYTES_MAX
from logformat.log.batch import RECORDS_MAX
from writer.bucket_queue import Timing

_MS_MAX = 2**31 - 1
RANGES = {
    "batch_rows": (1, RECORDS_MAX // 2),
    "batch_bytes": (1, RAW_BYTES_MAX // 4),
    "linger_ms": (0, _MS_MAX),
    "buffer_bytes": (1, 2**63 - 1),
    "request_timeout_ms": (1, _MS_MAX),
    "delivery_timeout_ms": (1, _MS_MAX),
}
"""Smallest and largest value of each option."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Integers within ``RANGES``.

    Attributes:
        batch_rows, batch_bytes: A batch of a bucket is sent once it reaches either size,
        linger_ms: or this long after its first row arrived.
        buffer_bytes: About how many bytes may await an answer; callers with more rows wait.
        request_timeout_ms: A batch is sent again after this time without an answer.
        delivery_timeout_ms: The writer gives up if a batch is not acknowledged this long after it was first sent.
    """

    batch_rows: int = 20_000
    batch_bytes: int = 4 << 20
    linger_ms: int = 50
    buffer_bytes: int = 64 << 20
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000

    def __post_init__(self) -> None:
        for field in fields(self):
            low, high = RANGES[field.name]
            given = getattr(self, field.name)
            try:
                number = None if isinstance(given, bool) else index(given)
            except TypeError:
                number = None
            if number is None or not low <= number <= high:
                raise InvalidRequest(f"{field.name} must be an integer from {low} to {high}.", given=repr(given)[:100])
            object.__setattr__(self, field.name, number)

    @property
    def timing(self) -> Timing:
        """The timeouts in seconds."""
        return Timing(self.request_timeout_ms / 1000, self.delivery_timeout_ms / 1000)
