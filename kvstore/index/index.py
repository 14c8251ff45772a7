"""Index of one bucket: rows by key, writers, and the state, all changed in one transaction.

Keys of the environment's one database (docs/format.md, Index): ``00`` the state, ``01`` writers, ``01 80`` and
``01 81`` entries of secondary indexes, ``02`` rows.

Rows, entries, writers and state change in one transaction, so they can't diverge. The thread that begins it ends it.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import compress, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from kvstore.disk.environment import Environment, Transaction
from kvstore.disk.files import open_file
from kvstore.disk.lmdb_files import LMDB_FILES, Identity, write_refusals
from kvstore.disk.pages import last_commit, tree_of
from kvstore.errors import CorruptData
from kvstore.index import writeback
from kvstore.index.found_rows import FoundRows
from kvstore.index.leaves import CHUNK_BYTES, Leaves
from kvstore.index.mapped import MappedFile
from kvstore.index.space import IndexSpace, space_of
from logformat.binary_column import BinaryColumn
from logformat.ids import WriterId
from logformat.log import entries_record, index_state, writer_entry
from logformat.log.entries_record import NOT_WHOLE, EntriesRecord
from logformat.log.index_state import IndexState
from logformat.log.writer_entry import WriterEntry
from logformat.rows import entries
from logformat.rows.entries import ENTRIES, RECORDS
from logformat.rows.keys import ROW

_STATE = b"\x00"
_AFTER_STATE = b"\x00\x00"
_WRITER = b"\x01"
_WRITER_KEY = struct.Struct(">cq")
_STEP_ROWS = 256
_FIRST_ROWS, _STEP_GROWS = 32, 4
"""So many rows are read first of a range that may be short; then so many times more."""
FEW_BYTES = 4 << 20
"""Rows of more bytes are not a few."""


class Layer(Protocol):
    """Rows of keys; an empty one stands for a row that was deleted."""

    def get(self, key: bytes, /) -> bytes | None:
        """The row of a key, None if it is not here."""

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """All keys, each with its row."""


class View:
    """A consistent view of an index, read through one transaction.

    Args:
        leaves: Reader of the pages that hold the rows, if it can be used.
        mapped: The file, if it has all that the transaction reads.

    Attributes:
        leaves: The argument.
        layers: The rows that the view has and the index lacks, in layers that do not change any more, newest first,
            empty where one was deleted; each with what reads have made of it, which goes when it goes.
    """

    layers: Sequence[tuple[Layer, dict[Any, Any]]] = ()

    def __init__(
        self, transaction: Transaction, leaves: Leaves | None = None, mapped: MappedFile | None = None
    ) -> None:
        self._transaction = transaction
        self.leaves = leaves
        self._mapped = mapped

    def state(self) -> IndexState:
        """State of the index.

        Raises:
            CorruptData: The index was never finished, or is damaged.
        """
        record = self._transaction.get(_STATE)
        if record is None:
            raise CorruptData("An index has no state; run `kvstore check`.")
        return index_state.decode(record)

    def writers(self) -> dict[WriterId, WriterEntry]:
        """All writers in the index.

        Raises:
            CorruptData: An entry or its key is damaged.
        """
        writers = {}
        for key, value in self._between(_AFTER_STATE, RECORDS):
            if len(key) != _WRITER_KEY.size or key[:1] != _WRITER:
                raise CorruptData("An index has an unknown key; run `kvstore check`.", key=key.hex())
            writer_id = WriterId(_WRITER_KEY.unpack(key)[1])
            writers[writer_id] = writer_entry.decode_entry(writer_id, value)
        return writers

    def writers_of(self, ids: Iterable[WriterId]) -> dict[WriterId, WriterEntry]:
        """Those of the given writers that the index has.

        Raises:
            CorruptData: An entry is damaged.
        """
        stored = ((id, self._transaction.get(_WRITER_KEY.pack(_WRITER, id))) for id in ids)
        return {id: writer_entry.decode_entry(id, value) for id, value in stored if value is not None}

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """Values of keys, in order; empty where a key is missing. No stored value is empty.

        Raises:
            CorruptData: One is.
        """
        mapped = None if self._mapped is None else self._mapped.get(self._transaction, keys)
        return _or_empty(map(self._transaction.get, keys)) if mapped is None else mapped

    def find(self, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn]:
        """For each key whether it is there, bool ``(n,)``; and the values of those that are, in their order.

        Raises:
            CorruptData: A page is damaged.
        """
        mapped = None if self._mapped is None else self._mapped.find(self._transaction, keys)
        if mapped is not None:
            return mapped
        values = list(map(self._transaction.get, keys.to_list()))
        there = np.fromiter((value is not None for value in values), bool, len(values))
        stored = list(filter(None, values))
        if len(stored) != there.sum():
            raise CorruptData("A row in an index is empty; run `kvstore check`.", key=keys[values.index(b"")].hex())
        return there, BinaryColumn.from_list(stored)

    def rows(
        self, chunk: int, start: bytes = ROW, stop: bytes | None = None
    ) -> Iterator[tuple[BinaryColumn, BinaryColumn]]:
        """Keys and values of the rows from ``start`` to ``stop`` (exclusive), in key order.

        In chunks of at most ``chunk`` rows. Zero words may follow a value: they change neither its checksum nor its
        content, and give all values one width.

        Raises:
            CorruptData: A page is damaged.
        """
        return ((rows.keys(), rows.values()) for rows in self.found(chunk, start, stop))

    def found(
        self, chunk: int, start: bytes = ROW, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[FoundRows]:
        """Like :meth:`rows`; rows may lie in memory that the next ones are read into.

        Args:
            reverse: Whether the last ones come first: each has rows in key order, all before the one before. Hardly
                more rows are read than are asked for.
        """
        if reverse:
            pairs, step = self._backwards(start, stop), min(chunk, _STEP_ROWS)
            while waiting := _until_full(pairs, step):
                keys, values = zip(*reversed(waiting), strict=True)
                yield FoundRows.of(BinaryColumn.from_list(keys), BinaryColumn.from_list(values))
                step = chunk
            return
        if self.leaves is None:
            yield from self._rows_by_cursor(chunk, start, stop)
            return
        # For a few rows, the cursor is cheaper than reading whole pages.
        for rows in islice(self._rows_by_cursor(min(chunk, _STEP_ROWS), start, stop), 1):
            yield rows
            with self._transaction.cursor() as cursor:
                following = cursor.key() if cursor.set_range(rows.keys()[-1] + b"\0") else None
            if following is not None and (stop is None or following < stop):
                yield from self.leaves.found(chunk, following, stop)

    def first(
        self, most: int, start: bytes = ROW, stop: bytes | None = None, *, reverse: bool = False
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Keys and values of the first rows of a range, in order; or of the last ones, from the last on.

        Args:
            most: How many rows, at most; fewer are read if they have more than :data:`FEW_BYTES`.

        Returns:
            And whether there are no others in the range.
        """
        pairs = self._backwards(start, stop) if reverse else self._between(start, None)
        first_pairs: list[tuple[bytes, bytes]] = []
        step = _FIRST_ROWS
        while step := min(step, most - len(first_pairs)):
            some = list(islice(pairs, step))
            first_pairs += some
            if stop is not None and some and some[-1][0] >= stop:
                return first_pairs[: bisect_left(first_pairs, stop, key=itemgetter(0))], True
            if len(some) < step:
                return first_pairs, True
            if len(first_pairs) < most and sum(map(len, map(itemgetter(1), some))) > FEW_BYTES // most * step:
                break
            step *= _STEP_GROWS
        return first_pairs, False

    def _backwards(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor() as cursor:
            # After `prev` without a key before, or `last` in an empty database, there is no pair.
            if cursor.prev() if stop is not None and cursor.set_range(stop) else cursor.last():
                for pair in cursor.iterprev(keys=True, values=True):
                    if pair[0] < start:
                        return
                    yield pair

    def _rows_by_cursor(self, chunk: int, start: bytes, stop: bytes | None) -> Iterator[FoundRows]:
        pairs = self._between(start, stop)
        while waiting := _until_full(pairs, chunk):
            keys, values = zip(*waiting, strict=True)
            yield FoundRows.of(BinaryColumn.from_list(keys), BinaryColumn.from_list(values))

    def bounds(self) -> tuple[bytes, bytes] | None:
        """The first and the last key; None if there are no rows."""
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(ROW):
                return None
            first = cursor.key()
            cursor.last()
            return first, cursor.key()

    def row_count(self) -> int:
        """Number of rows, as the tree has them.

        Raises:
            CorruptData: A record of entries is damaged.
        """
        others = sum(1 for _ in self._between(_STATE, ENTRIES))
        others += sum(record.entry_count for record in self.entries_records().values())
        return int(self._transaction.stat()["entries"]) - others

    def entries_records(self) -> dict[int, EntriesRecord]:
        """How far the entries of each secondary index are, by its id.

        Raises:
            CorruptData: A record is damaged.
        """
        return _entries_records(self._transaction)

    def has_entries(self, index_id: int) -> bool:
        """Whether the entries of a secondary index are those of all rows that the index has.

        Raises:
            CorruptData: Its record, or the state, is damaged.
        """
        record = self._transaction.get(entries.record_key(index_id))
        if record is None:
            return False
        return entries_record.decode(index_id, record).applied_offset == View.state(self).applied_offset

    def entries(self, ranges: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the entries in ranges, of the rows that the index has.

        Args:
            ranges: Where each begins and stops (exclusive).
        """
        cursor = self._transaction.cursor()
        for start, stop in ranges:
            if cursor.set_range(start):
                for pair in cursor.iternext():
                    if pair[0] >= stop:
                        break
                    yield pair

    def leaf_bytes(self) -> int:
        """Approximate size in bytes of the pages that hold rows."""
        figures = self._transaction.stat()
        return int(figures["psize"]) * (int(figures["leaf_pages"]) + int(figures["overflow_pages"]))

    def _between(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._transaction.cursor()
        if not cursor.set_range(start):
            return iter(())
        pairs: Iterator[tuple[bytes, bytes]] = cursor.iternext(keys=True, values=True)
        if stop is None:
            return pairs
        return _until(pairs, stop)


@dataclass(frozen=True, slots=True)
class AtRest:
    """The state of an index that is not open.

    Attributes:
        commit: The file, and the number of its last commit.
    """

    state: IndexState
    commit: tuple[Identity | None, int | None]

    def is_current(self, directory: Path) -> bool:
        """Whether the index in this directory still is as of this commit."""
        try:
            with open_file(directory / LMDB_FILES[0]) as file:
                status = os.fstat(file.fileno())
                return self.commit == ((status.st_dev, status.st_ino), last_commit(file.fileno()))
        except OSError:
            return False


class Index:
    """The index of one bucket.

    Args:
        environment: :meth:`close` releases it.

    Attributes:
        environment: The argument.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._mapped = MappedFile(environment)
        self._transaction: Transaction | None = None
        self._page_bytes = self._leaf_pages = 0
        self._touched = 0
        self._has_changed_rows = False
        self._noted: dict[int, tuple[int, bool] | None] = {}
        self._committed: tuple[int, IndexState] | None = None

    def committed_state(self) -> IndexState:
        """State of the last commit; cheap if nothing was committed since the last call."""
        known = self._committed
        if known is None or known[0] != self.environment.last_committed():
            with self.environment.read() as transaction:
                self._committed = known = transaction.id(), View(transaction).state()
        return known[1]

    @contextmanager
    def view(self) -> Iterator[View]:
        """A view of the last commit."""
        with self.environment.read() as transaction:
            yield View(transaction, mapped=self._mapped)

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """See :meth:`View.get`, of the last commit; for a few keys."""
        return self.environment.at_once(lambda transaction: View(transaction, mapped=self._mapped).get(keys))

    def find(self, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn]:
        """See :meth:`View.find`, of the last commit."""
        return self.environment.at_once(lambda transaction: View(transaction, mapped=self._mapped).find(keys))

    @contextmanager
    def scan_view(self) -> Iterator[View]:
        """A view of the last commit for large scans: it reads rows from their pages."""
        with self.environment.read() as transaction, self.environment.file() as descriptor:
            tree_there = None if descriptor is None else tree_of(descriptor, transaction.id())
            if descriptor is None or tree_there is None:
                yield View(transaction)
            else:
                page_bytes, tree = tree_there
                yield View(transaction, Leaves(descriptor, page_bytes, tree, transaction.id))

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Store rows, and remove those of keys with an empty value. Keys are sorted and unique."""
        if all(values):
            self._put(keys, values)
        else:
            self._delete([key for key, value in zip(keys, values, strict=True) if not value])
            self._put(list(compress(keys, values)), list(filter(None, values)))
        self._has_changed_rows = True

    def _put(self, keys: Sequence[bytes], values: Sequence[bytes], *, overwrite: bool = True) -> int:
        with self._writable().cursor() as cursor:
            self._touched += len(keys)
            return int(cursor.putmulti(zip(keys, values, strict=True), overwrite=overwrite)[1])

    def _delete(self, keys: Sequence[bytes]) -> None:
        for _ in map(self._writable().delete, keys):
            pass
        self._touched += len(keys)

    def move_entries(self, removed: Sequence[bytes], keys: Sequence[bytes], values: Sequence[bytes]) -> int:
        """Remove entries of secondary indexes, and store others. Keys are unique, and best sorted.

        Returns:
            By how many there are more now: some of the first may not be there, and some of the others may be already.
        """
        with self._writable().cursor() as cursor:
            # A cursor is faster at a key near the one before than a delete is. Values of entries are short.
            fewer = len(removed) - list(map(cursor.pop, removed)).count(None)
            self._touched += len(removed)
        return self._put(keys, values, overwrite=False) - fewer

    def note_entries(self, index_id: int, count: int, *, are_whole: bool) -> None:
        """Say how many entries a secondary index has with the next commit, and whether they are those of all rows.

        Of one for which this is not said, the entries are no use any more if the commit changes rows.
        """
        self._writable()
        self._noted[index_id] = count, are_whole

    def forget_entries(self, index_id: int) -> None:
        """Remove the record of a secondary index whose entries are all removed."""
        self._writable()
        self._noted[index_id] = None

    def put_writer(self, writer_id: WriterId, entry: WriterEntry | None) -> None:
        """Store a writer's entry; None removes it."""
        key = _WRITER_KEY.pack(_WRITER, writer_id)
        if entry is None:
            self._writable().delete(key)
        else:
            self._writable().put(key, writer_entry.encode_entry(writer_id, entry))

    @property
    def leaf_bytes(self) -> int:
        """Bytes of its leaf pages, as the last transaction that changed it found them; 0 before the first one."""
        return self._page_bytes * self._leaf_pages

    def dirty_bytes(self) -> int:
        """Approximate bytes of pages that wait for a commit."""
        pages = max(self._leaf_pages, 1)
        # r random rows touch P(1 - e^(-r/P)) of P pages; this approximates it.
        return int(self._page_bytes * pages * self._touched / (pages + self._touched))

    def commit(self, state: IndexState) -> None:
        """Make all changes durable, together with the state.

        Raises:
            StoreFull: The disk has no room, or refuses otherwise. The transaction is no longer usable; abort it.
            lmdb.Error: The map is full, or a page is damaged. The same.
        """
        transaction = self._writable()
        transaction.put(_STATE, index_state.encode(state))
        self._put_entries_records(transaction, state)
        is_large = self.dirty_bytes() >= writeback.BYTES_MIN
        directory = self.environment.directory
        with (
            write_refusals(directory),
            writeback.writing_back(directory / LMDB_FILES[0]) if is_large else nullcontext(),
        ):
            transaction.commit()
        self._transaction = None

    def _put_entries_records(self, transaction: Transaction, state: IndexState) -> None:
        known = _entries_records(transaction)
        for index_id, noted in self._noted.items():
            key = entries.record_key(index_id)
            if noted is None:
                transaction.delete(key)
            else:
                offset = state.applied_offset if noted[1] else NOT_WHOLE
                transaction.put(key, entries_record.encode(index_id, EntriesRecord(offset, noted[0])))
        for index_id, record in known.items():
            is_right = record.applied_offset == state.applied_offset and not self._has_changed_rows
            if index_id not in self._noted and not is_right and record.applied_offset != NOT_WHOLE:
                useless = EntriesRecord(NOT_WHOLE, record.entry_count)
                transaction.put(entries.record_key(index_id), entries_record.encode(index_id, useless))

    def abort(self) -> None:
        """Discard uncommitted changes."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None

    def space(self) -> IndexSpace | None:
        """Its space; see :func:`kvstore.index.space.space_of`."""
        return space_of(self.environment)

    def at_rest(self) -> AtRest | None:
        """The state of the last commit, to be known without the index being open; None if another commit comes."""
        with self.environment.read() as transaction:
            commit, state = transaction.id(), View(transaction).state()
        at_rest = AtRest(state, (self.environment.identity, commit))
        return at_rest if at_rest.is_current(self.environment.directory) else None

    def close_if_unread(self) -> bool:
        """Release the environment unless it is being read; see :meth:`Environment.close_if_unread`."""
        released = self.environment.close_if_unread()
        if released:
            self._mapped.close()
        return released

    def close(self) -> None:
        """Discard uncommitted changes and release the environment."""
        self.abort()
        self._mapped.close()
        self.environment.close()

    def _writable(self) -> Transaction:
        if self._transaction is None:
            self._transaction = self.environment.begin_write()
            figures = self._transaction.stat()
            self._page_bytes, self._leaf_pages = figures["psize"], figures["leaf_pages"]
            self._touched = 0
            self._has_changed_rows, self._noted = False, {}
        return self._transaction


def _entries_records(transaction: Transaction) -> dict[int, EntriesRecord]:
    cursor = transaction.cursor()
    if not cursor.set_range(RECORDS) or cursor.key() >= ENTRIES:
        return {}
    pairs = ((entries.id_of_record(key), value) for key, value in _until(cursor.iternext(), ENTRIES))
    return {index_id: entries_record.decode(index_id, value) for index_id, value in pairs}


def _until_full(pairs: Iterator[tuple[bytes, bytes]], rows: int) -> list[tuple[bytes, bytes]]:
    """The next pairs, at most so many, and hardly more than :data:`CHUNK_BYTES`."""
    taken: list[tuple[bytes, bytes]] = []
    size = 0
    while size < CHUNK_BYTES and (some := list(islice(pairs, min(_STEP_ROWS, rows - len(taken))))):
        taken += some
        size += sum(len(value) for _, value in some)
    return taken


def _until(pairs: Iterator[tuple[bytes, bytes]], stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    for pair in pairs:
        if pair[0] >= stop:
            return
        yield pair


def _or_empty(values: Iterable[bytes | None]) -> list[bytes]:
    """Values of rows, empty where there is none."""
    return [b"" if value is None else value or _lost() for value in values]


def _lost() -> NoReturn:
    raise CorruptData("A row of the index is empty; run `kvstore check`.")
