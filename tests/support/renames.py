"""Columns that are renamed between two reads of a table's definition, during one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

from kvstore.meta.table_catalog import Now, TableCatalog

READS_MAX = 60


@contextmanager
def at_reads(renames: Mapping[int, Callable[[], None]]) -> Iterator[list[int]]:
    """While open, a rename runs before the nth read of a definition by this thread, counted from 1.

    Returns:
        A list with one number, the number of reads.
    """
    ours, reads, read, within = threading.get_ident(), [0], TableCatalog.now, [False]

    def hooked(self: TableCatalog) -> Now:
        if threading.get_ident() == ours and not within[0]:
            reads[0] += 1
            if (rename := renames.get(reads[0])) is not None:
                within[0] = True
                rename()
                within[0] = False
        return read(self)

    with patch.object(TableCatalog, "now", hooked):
        yield reads


def reads_of(call: Callable[[], object]) -> int:
    """How often a call reads definitions."""
    with at_reads({}) as reads:
        call()
    assert 0 < reads[0] < READS_MAX
    return reads[0]
