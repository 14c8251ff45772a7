"""Making the entries of secondary indexes for rows that a bucket's index has already.

* Rows are read in the order of their keys, some at a time, and their entries are sorted, in runs. Then the runs are
  brought together, and stored in the order of entries. So LMDB fills its pages one after the other.
* Of a new index that is not unique both are done between writes; else before the next write, from the beginning.
* A merge between these parts changes the entries of the tree: it removes those of the rows that it replaces, if they
  are there, and stores those of its rows. These may be stored once more, which changes nothing.
* So an entry of a run may be that of a row as it was. Hashes of the entries that merges have removed say which ones may
  be; the row says whether it is, since hashes may be the same, and a merge may have been given up.
* Only the bucket's writer is here, in its turn (:mod:`kvstore.bucket.turn`). A process that ends leaves no run.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import cast

import lmdb
import numpy as np

from kvstore.disk.files import refusals
from kvstore.index.index import Index
from kvstore.indexing.entries import SCAN_ROWS, TableEntries, entries_of_rows, in_order
from kvstore.memtable.run import Run, merged
from logformat.binary_column import BinaryColumn
from logformat.catalog.edits import SecondaryIndex
from logformat.checksum import key_sums, mix
from logformat.rows.entries import between, row_keys_of
from logformat.rows.keys import ROW

BUILD_ROWS = 1 << 16
"""So many rows are read at a time, or so many entries stored in one commit."""
RUN_ROWS = 1 << 19
"""Entries of so many rows are sorted together. If there are more, each run is in the memory of a file."""
REMOVED_AT_A_TIME = 1 << 16


class UnfinishedEntries:
    """The entries of one secondary index while they are made.

    Args:
        index: The secondary index.
    """

    def __init__(self, index: SecondaryIndex) -> None:
        self._index = index
        self._read_to: bytes | None = ROW  # None once all rows are read
        self._waiting: list[Run] = []
        self._runs: list[Run] = []
        self._places: list[int] = []  # of the entries of each run that are stored next
        self._removed = np.zeros(0, np.uint64)

    def note_removed(self, entries: BinaryColumn) -> None:
        """Note that a merge removes entries, of rows that may have been read."""
        if len(entries):
            self._removed = np.union1d(self._removed, mix(key_sums(entries)))

    def go_on(self, made: TableEntries, index: Index, grow: Callable[[], None]) -> int:
        """Read some rows, or else store some entries, and return of how many; see :func:`make_entries`."""
        return self._store(made, index, grow) if self._read_to is None else self._read(made, index)

    def _read(self, made: TableEntries, index: Index) -> int:
        assert self._read_to is not None
        read: list[Run] = []
        id, count, following = self._index.index_id, 0, None
        # A view of its own for each part: the map can't grow while one is open.
        with index.scan_view() as view:
            for keys, codes in made.codes(view, self._index, self._read_to, min(SCAN_ROWS, BUILD_ROWS)):
                # Codes may be far longer than their entries, and what makes these needs more memory than they do.
                read.append(Run(*(column.copied() for column in in_order(id, codes, keys))))
                count += len(keys)
                if count >= BUILD_ROWS:
                    following = keys[-1] + b"\0"
                    break
        waiting = [*self._waiting, *read]
        if waiting and (following is None or sum(map(len, waiting)) >= RUN_ROWS):
            run = merged(waiting)
            if following is not None or self._runs:
                run = _in_file(run, index.environment.directory)
            self._runs.append(run)
            waiting = []
        self._read_to, self._waiting = following, waiting
        self._places = [0] * len(self._runs)
        return count

    def _store(self, made: TableEntries, index: Index, grow: Callable[[], None]) -> int:
        places = self._ends(BUILD_ROWS)
        taken = zip(self._runs, self._places, places, strict=True)
        run = merged([run.slice(first, last) for run, first, last in taken if first < last] or [Run.of([], [])])
        kept = self._kept(run, made, index)
        is_last = sum(places) == sum(map(len, self._runs))
        _commit(index, grow, partial(_put, index, self._index.index_id, kept, are_whole=is_last))
        self._places = places
        if is_last:
            del made.unfinished[self._index.index_id]
        return len(run)

    def _ends(self, count: int) -> list[int]:
        """Places up to which about half of so many entries are left, or all, and hardly ever more; up to one key."""
        left = [(run, place) for run, place in zip(self._runs, self._places, strict=True) if place < len(run)]
        step = max(count // max(2 * len(left), 1), 1)
        marks = merge(*(map(run.keys.__getitem__, range(place + step - 1, len(run), step)) for run, place in left))
        # Of each run fewer than a step may come between two of its marks.
        mark = next(islice(marks, len(left) - 1, None), None) if left else None
        if mark is None:
            return list(map(len, self._runs))
        places = zip(self._runs, self._places, strict=True)
        return [bisect_right(cast("Sequence[bytes]", run.keys), mark, place) for run, place in places]

    def _kept(self, run: Run, made: TableEntries, index: Index) -> Run:
        """The entries of a run without those of rows that have other ones now."""
        if not len(self._removed) or not len(run):
            return run
        hashes = mix(key_sums(run.keys))
        at = np.minimum(np.searchsorted(self._removed, hashes), len(self._removed) - 1)
        suspect = np.flatnonzero(self._removed[at] == hashes)
        if not len(suspect):
            return run
        entries = run.keys.take(suspect).to_list()
        keys = sorted(row_keys_of(list(zip(entries, run.rows.take(suspect).to_list(), strict=True))))
        column = BinaryColumn.from_list(keys)
        with index.view() as view:
            there, rows = view.find(column)
            now, _ = entries_of_rows(made.definition, self._index, column.take(np.flatnonzero(there)), rows)
        right, kept = set(now.to_list()), np.ones(len(run), bool)
        kept[suspect] = [entry in right for entry in entries]
        places = np.flatnonzero(kept)
        return Run(run.keys.take(places), run.rows.take(places))


def _in_file(run: Run, directory: Path) -> Run:
    """A run in the memory of a file, which the system may write to the disk; it has no name."""
    keys, rows = run.keys.moved(), run.rows.moved()
    with refusals(directory), TemporaryFile(dir=directory) as file:
        for array in (keys.offsets, rows.offsets, keys.flat, rows.flat):
            file.write(np.ascontiguousarray(array).data)
        file.flush()
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    offsets = np.frombuffer(memory, np.int64, len(keys.offsets) + len(rows.offsets))
    flat = np.frombuffer(memory, np.uint8, offset=offsets.nbytes)
    cut = len(keys.flat)
    return Run(
        BinaryColumn(flat[:cut], offsets[: len(keys.offsets)], keys.width),
        BinaryColumn(flat[cut:], offsets[len(keys.offsets) :], rows.width),
    )


def go_on(entries: TableEntries, former: TableEntries) -> None:
    """Take over what is being made for an earlier definition of the table, which has written the rows.

    Entries of new indexes are made from now on, but those of unique ones, which are needed by the next write.
    """
    known = {each.index_id for each in former.indexes}
    for each in entries.indexes:
        id = each.index_id
        if id in former.unfinished:
            entries.unfinished[id] = former.unfinished[id]
        elif id not in known and not each.unique:
            entries.unfinished[id] = UnfinishedEntries(each)


def make_entries(entries: TableEntries, index: Index, grow: Callable[[], None]) -> None:
    """Make the entries that an index lacks, of all its rows, and remove those of secondary indexes that are dropped.

    It takes several commits. If it ends early, the next call removes what is not whole, and begins again.

    Args:
        index: Without an open transaction.
        grow: Enlarges its map.

    Raises:
        CorruptData: A row is damaged.
        StoreFull, LogFailed, lmdb.Error: See :meth:`Index.commit`; or a run can't be written.
    """
    ids = {each.index_id for each in entries.indexes}
    with index.view() as view:
        kept = set(filter(view.has_entries, ids)) | entries.unfinished.keys()
    for id in _records(index).keys() - kept:
        while id in _records(index):
            _commit(index, grow, partial(_remove_some, index, id))
    missing = {each.index_id: UnfinishedEntries(each) for each in entries.indexes if each.index_id not in kept}
    entries.unfinished |= missing
    try:
        while missing.keys() & entries.unfinished.keys():
            make_some_entries(entries, index, grow)
    finally:
        for id in missing:
            entries.unfinished.pop(id, None)


def make_some_entries(entries: TableEntries, index: Index, grow: Callable[[], None]) -> int | None:
    """Read some rows for a secondary index that is new, or store some entries; of how many, None once all are made.

    Each row of the index counts twice. With the last entries there may be none left to store.

    Args:
        index, grow: See :func:`make_entries`, also for errors.
    """
    for each in entries.indexes:
        if each.index_id in entries.unfinished:
            return entries.unfinished[each.index_id].go_on(entries, index, grow)
    return None


def _commit(index: Index, grow: Callable[[], None], change: Callable[[], None]) -> None:
    """Commit a change of entries; the state of the index stays."""
    with index.view() as view:
        state = view.state()
    while True:
        try:
            change()
            index.commit(state)
            return
        except lmdb.MapFullError:
            index.abort()
            grow()
        finally:
            index.abort()  # without effect after the commit


def _records(index: Index) -> dict[int, int]:
    """How many entries each secondary index has that has any, or a record."""
    with index.view() as view:
        return {id: record.entry_count for id, record in view.entries_records().items()}


def _remove_some(index: Index, id: int) -> None:
    with index.view() as view:
        keys = [key for key, _ in islice(view.entries([between(id, b"", b"")]), REMOVED_AT_A_TIME)]
    index.move_entries(keys, [], [])
    if len(keys) < REMOVED_AT_A_TIME:
        index.forget_entries(id)
    else:
        index.note_entries(id, _records(index)[id] - len(keys), are_whole=False)


def _put(index: Index, id: int, entries: Run, *, are_whole: bool) -> None:
    before = _records(index).get(id, 0)
    more = index.move_entries([], entries.keys.to_list(), entries.rows.to_list())
    index.note_entries(id, before + more, are_whole=are_whole)
