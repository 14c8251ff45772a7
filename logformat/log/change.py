"""Change types of a row, in their three written forms."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
import pyarrow as pa

from logformat.binary_column import BinaryColumn


class ChangeType(IntEnum):
    """Kind of a change record; the number is its byte code on disk.

    ``ChangeType("insert")``, ``ChangeType("+I")`` and ``ChangeType(1)`` are equal.
    """

    APPEND = 0
    INSERT = 1
    UPDATE_PREIMAGE = 2
    UPDATE_POSTIMAGE = 3
    DELETE = 4

    @property
    def short(self) -> str:
        """The form used in prose: ``+A +I -U +U -D``."""
        return _SHORT[self]

    @property
    def word(self) -> str:
        """The value in a ``_change_type`` column: ``append``, ``insert``, ``update_preimage`` and so on."""
        return self.name.lower()

    def __str__(self) -> str:
        return self.short

    @classmethod
    def _missing_(cls, value: object) -> ChangeType | None:
        return next((change for change in cls if value in (change.short, change.word)), None)


PREIMAGE = int(ChangeType.UPDATE_PREIMAGE)
"""For what looks at each batch: a member of an enumeration takes long to get."""
_SHORT = {
    ChangeType.APPEND: "+A",
    ChangeType.INSERT: "+I",
    ChangeType.UPDATE_PREIMAGE: "-U",
    ChangeType.UPDATE_POSTIMAGE: "+U",
    ChangeType.DELETE: "-D",
}
_SAME_MAX = 1 << 18
_WORDS = BinaryColumn.from_list([change.word.encode() for change in ChangeType]).to_arrow().view(pa.string())


def words_of(change_types: np.ndarray) -> pa.StringArray:
    """Column of words from a column of byte codes (uint8)."""
    count = len(change_types)
    if 2 <= count <= _SAME_MAX:
        evens, odds = change_types[::2], change_types[1::2]
        # Nearly all batches have one kind of change, or updates, whose preimages and postimages alternate.
        if (evens == evens[0]).all() and (odds == odds[0]).all():
            return _turns(int(evens[0]), int(odds[0])).slice(0, count)
    return _WORDS.take(pa.array(change_types))


@lru_cache(len(ChangeType))
def _turns(even: int, odd: int) -> pa.StringArray:
    return _WORDS.take(pa.array(np.tile(np.array([even, odd], np.uint8), _SAME_MAX // 2)))
