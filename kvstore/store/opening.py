"""``kvstore.open``: opens a store of this machine, or a replica or shared tables in their place.

* A replica and shared tables are only read. Their objects are fetched when they are needed, and kept in files of this
  machine; see docs/replicas.md.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, overload
from uuid import UUID

from kvstore.arguments import integer_within, url_without_credentials
from kvstore.clock import Clock, SystemClock
from kvstore.errors import (
    CorruptImage,
    ForkedStore,
    InvalidRequest,
    MissingVersion,
    NotAStore,
    StoreClosed,
    UnsupportedOperation,
)
from kvstore.meta.state import CatalogState
from kvstore.options import Durability, options_of_call
from kvstore.process import this_process
from kvstore.process.calls import in_background, uninterrupted
from kvstore.replica.check import findings
from kvstore.replica.client import Client, ObjectStore, directory_of, normalised
from kvstore.replica.in_place.cache import ObjectCache, directory_of_cache
from kvstore.replica.in_place.catalog import FollowedCatalog
from kvstore.replica.in_place.followed import FollowedTable, Indexes
from kvstore.replica.in_place.table import TableInPlace
from kvstore.replica.location import is_store, replica_at
from kvstore.replica.read.tail import ReplicaTail, Tail
from kvstore.replica.source import Source, read_store
from kvstore.shared.check import report_of
from kvstore.shared.in_place import SharedCatalog
from kvstore.shared.reading import SharedTail
from kvstore.shared.table import SharedTable, has_shared_tables, store_of
from kvstore.store.check import BucketReport, CheckReport
from kvstore.store.read_store import ReadStore
from kvstore.store.store import Store, open_store as open_directory
from kvstore.table.read_only import refuse
from kvstore.table.read_table import ReadTable
from logformat.catalog.replicas import CATALOG, Finding, ReplicaStatus
from logformat.ids import OFFSET_MAX, BucketId, TableId
from logformat.replica.object_file import parse_name
from logformat.urls import shown_url

CACHE_BYTES = 1 << 30
"""Default of ``cache_bytes_max``."""


@overload
def open_store(
    path: str | os.PathLike[str], read_only: Literal[False] = False, durability: Durability = "sync", **settings: int
) -> Store: ...


@overload
def open_store(
    path: str | os.PathLike[str], read_only: bool, durability: Durability = "sync", **settings: int
) -> Store | StoreInReplica: ...


def open_store(
    path: str | os.PathLike[str], read_only: bool = False, durability: Durability = "sync", **settings: int
) -> Store | StoreInReplica:
    """Open a store, creating it if the directory is new or empty; or a replica or shared tables in their place.

    Args:
        path: Directory of the store, on a local disk. With ``read_only`` also the URL or directory of a replica, or of
            shared tables: ``s3://bucket/path``, ``gs://…``, ``az://…``, ``file:///dir``; see
            :class:`kvstore.StoreInReplica` and :class:`kvstore.SharedTables`.
        read_only: Write nothing but LMDB's lock files, in which readers register, and wait for no other process. Where
            these may not be written, as on a read-only mount, the store is read without; see docs/operations.md. Writes
            that need recovery after a crash are invisible until the store is opened for writing.
        durability: ``sync``, ``interval`` or ``none``; see :class:`kvstore.options.StoreOptions`.
        settings: Other fields of :class:`kvstore.options.StoreOptions`. For a replica only ``cache_bytes_max``: how
            many bytes on this machine its cache may take (1 GiB; 0 keeps no objects).

    Raises:
        NotAStore: The directory is neither a store nor empty; with ``read_only``: it does not exist. There is no
            replica at the URL. Nothing was written.
        UnsupportedVersion: A newer version of kvstore wrote the store.
        CorruptImage: The catalog of the store is damaged.
        InvalidRequest: The store is open in this process with other settings, or an argument is invalid.
        UnsupportedOperation: A replica, or shared tables, are opened without ``read_only``.
        Unavailable, MissingVersion, CorruptData: The replica can't be reached, has a hole, or is damaged.
    """
    url = _replica_of(path)
    if url is None:
        return open_directory(path, read_only, durability, **settings)
    url_without_credentials("path", url)
    options_of_call(durability, {})  # one that is valid has no effect
    directory = directory_of(url)
    if not read_only and directory is not None and replica_at(os.fspath(directory)) is None:
        return open_directory(path, read_only, durability, **settings)  # which refuses the URL of a directory
    if not read_only:
        raise UnsupportedOperation(
            "Replicas and shared tables are only read: kvstore.open(url, read_only=True). To write, open the store "
            "that ships to the replica, or promote a copy; shared tables are written by kvstore.spark.write().",
            url=url,
        )
    if directory is not None and is_store(directory):
        raise InvalidRequest("There is a store at this URL, no replica; give its directory as a path.", path=directory)
    cache_bytes_max = integer_within("cache_bytes_max", settings.pop("cache_bytes_max", CACHE_BYTES), 0, OFFSET_MAX)
    if settings:
        raise InvalidRequest(
            "A replica, or a place of shared tables, is opened with one setting, `cache_bytes_max`.",
            unknown=sorted(settings),
        )
    try:
        return StoreInReplica(normalised(url), cache_bytes_max)
    except (NotAStore, MissingVersion, CorruptImage) as error:  # no manifest of a replica; or the object STORE is lost
        if has_shared_tables(ObjectStore(url)):
            return SharedTables(normalised(url), cache_bytes_max)
        error.where.setdefault("url", shown_url(url))
        raise


def _replica_of(path: object) -> str | None:
    """URL of a replica that is opened in place; None for a directory that is opened as a store."""
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    return replica_at(given) if isinstance(given, str) else None


class StoreInReplica(ReadStore):
    """A replica that is opened in its place, to be read; a context manager that any thread may use.

    Made by :func:`kvstore.open`. It has the reading methods of a store, and its tables are
    :class:`kvstore.ReadTable`. What a :class:`kvstore.Store` has besides raises UnsupportedOperation.

    * A call sees what the replica had at most a second before. A table ends where no commit over several buckets is in
      some of them only.
    * Every call that needs the replica may raise Unavailable if it can't be reached, MissingVersion if it has a hole,
      CorruptData if an object is damaged, and ReplicaBehind if an object has just been removed: call it again.

    Args:
        cache_bytes_max: About how many bytes the cache of this machine may take: half for objects, shared with other
            processes, and half for indexes of this object.
        client, directory, clock: The objects, the directory of the cache, and the time; for tests.

    Attributes:
        url: URL of the replica.
    """

    _what = _what_has_tables = "replica"
    """What is opened, and what has a table, for messages."""
    _refused = (
        "A replica that is opened in place is only read, and has no `{name}`. Use the store that ships to it; or, for "
        "everything that reads, a copy on this machine: kvstore.follow(url, directory)."
    )
    """Message of what is refused, with ``{name}`` for its name."""

    def __init__(
        self,
        url: str,
        cache_bytes_max: int = CACHE_BYTES,
        *,
        client: Client | None = None,
        directory: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = url
        self._clock = clock or SystemClock()
        self._pid, self._is_closed = this_process.pid, False
        self._mutex = threading.RLock()
        self._place = client if client is not None else ObjectStore(url)
        store_id = self._store_id()
        directory = directory_of_cache() if directory is None else directory
        self._client = ObjectCache(self._place, directory, store_id, cache_bytes_max // 2)
        room = directory if os.access(directory, os.W_OK) else Path(tempfile.gettempdir())
        self._indexes = Indexes(room, cache_bytes_max // 2)
        self._tables: dict[TableId, FollowedTable] = {}
        self._begin()

    def _store_id(self) -> UUID:
        return read_store(self._place).store_id

    def _begin(self) -> None:
        """Read what is needed to find tables."""
        self._catalog = FollowedCatalog(self._client, self._clock)

    def __del__(self) -> None:
        """Close the indexes of a replica that nothing refers to any more."""
        indexes: Indexes | None = getattr(self, "_indexes", None)
        if indexes is not None and indexes.built and self._pid == this_process.pid:
            in_background(indexes.close)

    def _state(self) -> CatalogState:
        return self._catalog.state()

    def list_tables(self) -> list[str]:
        """Names of all tables, sorted."""
        self.check_open()
        with self._mutex:
            self.check_open()
            return sorted(table.name for table in self._catalog.state().tables.values())

    def table(self, name: str) -> ReadTable:
        """A table of the replica.

        Raises:
            NoSuchTable: There is none of that name.
        """
        self.check_open()
        with self._mutex:
            self.check_open()
            about = self._what_has_tables, self._refused
            return TableInPlace(self._followed(name), self, self._clock, *about)

    def _followed(self, name: str) -> FollowedTable:
        """What all handles of a table share, so that its indexes are built once."""
        state = self._catalog.state()
        for id in self._tables.keys() - state.tables.keys():
            del self._tables[id]
        definition = state.table(name)
        if definition is None or definition.id not in self._tables:
            return self._follow(ReplicaTail(self.url, name, self._client))
        return self._tables[definition.id]

    def _follow(self, tail: Tail) -> FollowedTable:
        about = self._client, self._indexes, self._mutex, self._clock, self.check_open, self._state
        return self._tables.setdefault(tail.table.definition.id, FollowedTable(tail, *about))

    def check(self, progress: Callable[[int, int], object] = lambda _done, _total: None) -> CheckReport:
        """Verify every object of the replica, and that the objects have everything in its manifest.

        Args:
            progress: Called once at the end; the arguments have no meaning.

        Returns:
            A report with the findings; it counts no batches and rows.
        """
        self.check_open()
        source = Source(self._place, only_catalog=True)
        tables = FollowedCatalog(self._place, self._clock).state().tables

        def now() -> ReplicaStatus:
            shipped = Source(self._place, only_catalog=True).manifest.shipped
            return ReplicaStatus(url=self.url, shipped=shipped)

        status = ReplicaStatus(url=self.url, shipped=source.manifest.shipped)
        problems = findings(self._place, source.store.store_id, status, now)
        progress(1, 1)
        reports = []
        for each in source.manifest.shipped:
            if each.stream.table_id in tables:
                report = BucketReport(tables[each.stream.table_id].name, each.stream.bucket)
                report.findings += [_text_of(finding) for finding in problems if finding.stream == each.stream]
                reports.append(report)
        streams = {each.stream for each in source.manifest.shipped if each.stream.table_id in tables}
        return CheckReport(reports, [_text_of(finding) for finding in problems if finding.stream not in streams])

    def check_open(self) -> None:
        """Refuse calls on what is closed, or was opened before a ``fork()``.

        Raises:
            StoreClosed, ForkedStore: It is.
        """
        if self._pid != this_process.pid:
            raise ForkedStore(f"The {self._what} was opened before a fork(); open it again in this process.")
        if self._is_closed:
            raise StoreClosed(f"The {self._what} was closed; open it again.", url=self.url)

    def check_writable(self) -> None:
        """Refuse writes.

        Raises:
            UnsupportedOperation: Always.
        """
        raise UnsupportedOperation(f"A {self._what} that is opened in place is only read.", url=self.url)

    def check_registers(self) -> None:
        """Refuse consumers; raises what :meth:`check_writable` raises."""
        self.check_writable()

    @uninterrupted
    def close(self) -> None:
        """Close the replica; a second call does nothing. Reads that go on end with their next batch."""
        if self._pid == this_process.pid:
            with self._mutex:
                self._is_closed = True
                self._indexes.close()

    def __repr__(self) -> str:
        return f"<kvstore.{type(self).__name__} {self.url!r}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            refuse(self, Store, name, self._refused)


class SharedTables(StoreInReplica):
    """The shared tables at a URL, opened in their place, to be read; a context manager that any thread may use.

    Made by :func:`kvstore.open`, with ``read_only=True``; :func:`kvstore.spark.write` writes them. It has what
    :class:`kvstore.StoreInReplica` has, but that a table ends at an epoch: it has all of a write, or nothing of it.

    Attributes:
        url: URL of the tables.
    """

    _what, _what_has_tables = "place of shared tables", "shared table"
    _refused = (
        "A shared table that is opened in place has reads of its rows and changes only, and no `{name}`. It is written "
        "by Spark: kvstore.spark.write(df, url, table)."
    )

    def _store_id(self) -> UUID:
        return store_of(self._place, self.url).store_id

    def _begin(self) -> None:
        self._catalog_of_shared = SharedCatalog(self.url, self._client)

    def _state(self) -> CatalogState:
        return CatalogState()

    def list_tables(self) -> list[str]:
        """Names of all tables, sorted."""
        self.check_open()
        with self._mutex:
            self.check_open()
            return self._catalog_of_shared.names()

    def _followed(self, name: str) -> FollowedTable:
        shared = self._catalog_of_shared.find(name)
        table = self._tables.get(shared.definition.id)
        return self._follow(SharedTail(shared, self._clock)) if table is None else table

    def check(self, progress: Callable[[int, int], object] = lambda _done, _total: None) -> CheckReport:
        """Verify all tables; see :func:`kvstore.shared.check`.

        Args:
            progress: Called after each table with the number of tables that are done, and of all.

        Returns:
            A report with the findings; it counts no batches and rows.
        """
        report, names = CheckReport([]), self.list_tables()
        for done, name in enumerate(names, 1):
            table = SharedTable.find(self.url, self._place, name)
            buckets = [BucketReport(name, BucketId(bucket)) for bucket in range(table.definition.buckets)]
            for finding in report_of(table).findings:
                text = f"{finding.kind} {finding.object}: {finding.reason}"
                object = parse_name(finding.object)
                findings = report.catalog_findings if object is None else buckets[object.stream.bucket].findings
                if text not in findings:  # the object STORE is of all tables
                    findings.append(text)
            report.buckets.extend(buckets)
            progress(done, len(names))
        return report


def _text_of(finding: Finding) -> str:
    where = "the catalog" if finding.stream == CATALOG else f"offsets {finding.start} to {finding.end}"
    return f"{finding.kind} {finding.object or where}; run `kvstore replica repair` on the leader"
