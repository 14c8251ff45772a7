"""A target about an index's pages: in any bytes the kernel finds what the reference finds, and it reads no others."""

from __future__ import annotations

import numpy as np

from logformat.rows.keys import ROW
from tests.kernel.both import assert_both_agree
from tests.kernel.guarded import guarded
from tests.kernel.reference import tree_file

_TRANSACTION = 2
_ROWS = {
    ROW + bytes([7 * number]) * (1 + number % 20): bytes([number] * 8 * (1 + number % 3)) for number in range(1, 30)
}
_BIG = {ROW + b"big": bytes(700)}
_KEYS = [*list(_ROWS)[::5], *_BIG, ROW, ROW + b"\x07\x08", b"\0", b"\xff" * 511]


def index_pages(data: bytes) -> None:
    """Keys are looked for in a file of any bytes: each by itself, then all together."""
    data = data[: len(data) // 8 * 8]
    places = [guarded(data), np.frombuffer(data, np.uint8).copy()]
    for keys in (*([key] for key in _KEYS), _KEYS):
        assert_both_agree(data, places, _TRANSACTION, keys)


def index_pages_seeds() -> list[bytes]:
    """Trees of no page, one level, two and more, with pages of two sizes."""
    small = dict(list(_ROWS.items())[:5])
    return [
        tree_file({}),
        tree_file(small),
        tree_file(small | _BIG),
        tree_file(_ROWS | _BIG),
        tree_file(_ROWS, page_bytes=512, per_page=12),
    ]
