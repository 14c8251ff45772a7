"""The only module that opens LMDB, by ``kvstore/disk/lmdb_files.py``.

* A process opens an environment once and shares it, and never uses it across ``fork()``.
* LMDB neither syncs its directory nor refuses links; this module does both before anything relies on the files.
* The map grows only while this process has no open transaction: LMDB would accept it otherwise, and break.
* LMDB's own fsync is always on: an environment written without it may be lost as a whole.
* If a writer is killed in the last step of a commit, readers see the commit before it; see ``show_last_commit``.
* A reader that may not write the lock file, as on a read-only mount, is not registered: each of its reads finds out in
  the end whether another process wrote pages that it read.
* LMDB trusts its file. A damaged page can kill the process (SIGBUS), so the file is verified first; damage that LMDB
  itself detects during a read is raised as CorruptData.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import lmdb
import lmdb._envid

from kvstore.disk import address_space, lmdb_files, pages
from kvstore.disk.files import Files, open_file, refusals, refuse_links, refuse_no_directory
from kvstore.disk.lmdb_files import DATA, LMDB_FILES
from kvstore.errors import (
    CorruptData,
    ForkedStore,
    LogFailed,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreLocked,
    Unavailable,
    UnsupportedOperation,
)
from kvstore.process import this_process

_ENVIRONMENTS_OF_FULL_SIZE = 128
_WAIT_SECONDS = 0.0002
_WAITS_FOR_GETS, _WAITS_FOR_VIEWS = 5_000, 250

T = TypeVar("T")
Database: TypeAlias = "lmdb._Database"
Transaction: TypeAlias = "lmdb.Transaction[bytes]"


class Environment:
    """One LMDB environment, shared by all its users in this process.

    Created only by :func:`open_environment`.
    """

    def __init__(
        self, directory: Path, map_bytes: int, *, read_only: bool, metasync: bool, locks: bool, has_databases: bool
    ) -> None:
        self.directory = directory
        no_access = (directory / DATA).exists() and not os.access(directory / DATA, os.W_OK)
        self.is_read_only = read_only or no_access or not locks
        self._locks = locks
        self._env = lmdb_files.open_lmdb(
            directory, map_bytes, self.is_read_only, metasync=metasync, locks=locks, has_databases=has_databases
        )
        self._file = os.fspath(directory / DATA)  # joined once: it is used very often
        self.identity = lmdb_files.identity_of(self._file)
        self._pid = os.getpid()
        self._users = 1
        # The map grows only while there is no read transaction. One begins under the mutex, and is counted by the very
        # next instruction, or, for a get, it is counted before it begins; when it ends, it is counted until it has.
        self._mutex = threading.Lock()
        # LMDB lets one transaction of a process at a time open handles of databases: held by one until it ends.
        self.handles = threading.Lock()
        self._live: list[None] = []
        self._gets: list[None] = []
        self._is_inherited = self._is_retired = self._is_blocked = False
        self._commits: memoryview[int] | None = None

    def database_within(self, transaction: Transaction, name: str, *, create: bool = False) -> Database:
        """Handle of a named database within a transaction, which holds :attr:`handles` until it ends.

        Raises:
            CorruptData: The database does not exist, and ``create`` is not set.
        """
        try:
            return self._env.open_db(name.encode(), txn=transaction, create=create)
        except (lmdb.PanicError, lmdb.MemoryError) as error:
            raise self._named(error) from error
        except lmdb.Error as error:
            raise CorruptData(
                "A database of an LMDB environment is missing or damaged; run `kvstore check`.",
                path=self.directory,
                database=name,
                reason=str(error),
            ) from error

    def drop_database(self, transaction: Transaction, name: str) -> None:
        """Remove a named database with its contents; takes effect when the transaction commits.

        Its handle is gone either way, for all threads of this process: no other thread may be using it.

        Raises:
            CorruptData: The database does not exist.
        """
        transaction.drop(self.database_within(transaction, name))

    def last_committed(self) -> int:
        """Number of the last transaction committed by any process; very cheap.

        While that commit is being synced, readers still see the one before: compare this with the ``id()`` of the read
        transaction. If the writer is killed then, it stays so; see :meth:`show_last_commit`.

        Raises:
            StoreClosed: The environment is closed.
        """
        if self._pid != this_process.pid:
            self.check_process()
        try:
            if self._commits is not None:
                return max(self._commits)
            return int(self._env.info()["last_txnid"])
        except lmdb.Error as error:
            raise self._named(error) from error
        except ValueError as error:  # the map is closed
            raise StoreClosed("The store was closed; open it again.", path=self.directory) from error

    def watch_commits(self) -> None:
        """Make :meth:`last_committed` ten times as cheap, for one more descriptor until the environment is closed.

        Where there is no descriptor or address space left, it stays as it is.
        """
        with suppress(OSError), self.file() as descriptor:
            if descriptor is not None and self._commits is None:
                page_bytes = self._env.stat()["psize"]
                words = memoryview(mmap.mmap(descriptor, 2 * page_bytes, prot=mmap.PROT_READ)).cast("Q")
                self._commits = words[pages.COMMIT_AT // 8 :: page_bytes // 8]

    def verify(self) -> None:
        """Verify the whole file, whatever its size; see :func:`kvstore.disk.pages.verify`.

        Raises:
            CorruptData: The file is damaged.
        """
        pages.verify(self.directory / DATA, all_pages=True)

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """A read transaction: a consistent view of the environment, unaffected by later writes.

        Raises:
            CorruptData: LMDB detected a damaged page, here or within the context.
        """
        self.check_process()
        transaction: Transaction | None = None
        try:
            with self.reading():
                with self._mutex:
                    transaction = self._begin_read()
                    self._live.append(None)
                try:
                    yield transaction
                except (lmdb.Error, CorruptData) as error:
                    self._check_undisturbed(transaction, error)
                    raise
                self._check_undisturbed(transaction)
        finally:
            if transaction is not None:
                try:
                    if self._is_inherited:
                        # Aborting would free the slot of the parent's reader, whose pages would be reused under it.
                        _inherited_transactions.append(transaction)
                    else:
                        transaction.abort()
                finally:
                    self._live.pop()
                    if self._is_retired:
                        self._close_if_last()

    def _close_if_last(self) -> None:
        """Give the pages of a file that was replaced back after its last read."""
        with self._mutex:
            if not (self.is_read or self._users or self._is_inherited):
                self._close()

    @contextmanager
    def read_databases(self) -> Iterator[Transaction]:
        """A read transaction that may open databases; it waits for no other process.

        Raises:
            CorruptData: See :meth:`read`.
        """
        with self.handles, self.read() as transaction:
            yield transaction

    @contextmanager
    def file(self) -> Iterator[int | None]:
        """A descriptor of the file, for reading its pages; None if another file has replaced it."""
        try:
            file = open_file(self.directory / DATA)
        except FileNotFoundError:
            yield None
            return
        with file:
            status = os.fstat(file.fileno())
            yield file.fileno() if (status.st_dev, status.st_ino) == self.identity else None

    def get(self, key: bytes) -> bytes | None:
        """The committed value of a key in the unnamed database.

        Raises:
            CorruptData: LMDB detected a damaged page.
        """
        return self.at_once(lambda transaction: transaction.get(key))

    def at_once(self, look: Callable[[Transaction], T]) -> T:
        """What a function finds in the last commit, soon: a transaction of :meth:`read` costs more than some gets.

        Raises:
            CorruptData: LMDB detected a damaged page.
        """
        if self._pid != this_process.pid:
            self.check_process()
        transaction: Transaction | None = None
        try:
            # Counted before it begins, without the mutex: what needs that nothing is counted blocks this way first.
            self._gets.append(None)
            if not self._is_blocked:
                transaction = self._env.begin()
                result = look(transaction)
                if not self._locks:
                    self._check_undisturbed(transaction)
                return result
        except lmdb.Error as error:
            if transaction is not None:
                self._check_undisturbed(transaction, error)
                raise self._named(error) from error
        finally:
            try:
                if transaction is not None:
                    transaction.abort()
            finally:
                self._gets.pop()
                if self._is_retired:
                    self._close_if_last()
        with self.read() as transaction:  # the whole way, also for what it says of an error
            return look(transaction)

    def _check_undisturbed(self, transaction: Transaction, error: Exception | None = None) -> None:
        """Verify that no page of a reader that is not registered was written meanwhile.

        A writer writes pages of an earlier state from the third commit after it on.
        """
        if not self._locks and int(self._env.info()["last_txnid"]) > transaction.id() + 1:
            raise Unavailable(
                "Another process wrote the store while this one read it without being registered as a reader; try again"
                " or, better, grant this process write access to lock.mdb.",
                path=self.directory,
            ) from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Translate LMDB's errors in a read to the store's errors.

        Raises:
            StoreClosed: The environment was closed meanwhile.
            CorruptData: A page is damaged.
        """
        try:
            yield
        except lmdb.Error as error:
            raise self._named(error) from error

    def _named(self, error: lmdb.Error) -> StoreError:
        if not self._users:
            return StoreClosed("The store was closed; open it again.", path=self.directory)
        if isinstance(error, lmdb.MemoryError):
            return address_space.shortage(self.directory, error)
        if isinstance(error, lmdb.PanicError):
            return LogFailed("A commit failed on the disk; repair the disk and reopen the store.", path=self.directory)
        return CorruptData(
            "LMDB can't read an environment; run `kvstore check`.", path=self.directory, reason=str(error)
        )

    def begin_write(self) -> Transaction:
        """Begin the write transaction; the calling thread must commit or abort it.

        Raises:
            LogFailed: The last step of an earlier commit failed on the disk: reopen the environment to write again.
            UnsupportedOperation: The environment may only be read.
            StoreClosed: The environment was closed.
            OutOfAddressSpace: The map of another process's size, or the transaction, can't be had.
        """
        self.check_process()
        if self.is_read_only:
            raise UnsupportedOperation("The files of this store may only be read.", path=self.directory)
        try:
            try:
                return self._env.begin(write=True)
            except lmdb.MapResizedError:
                with self._mutex:
                    self._adopt_size()
                return self._env.begin(write=True)
        except lmdb.Error as error:
            if self._users and not isinstance(error, (lmdb.PanicError, lmdb.MemoryError)):
                raise
            raise self._named(error) from error

    def sync(self) -> None:
        """Wait until every commit, of any process, is durable.

        Raises:
            LogFailed: The disk failed: whether the last commits are durable is unknown.
        """
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            if not self._users:
                raise StoreClosed("The store was closed; open it again.", path=self.directory) from error
            raise LogFailed(
                "The disk failed; repair it and reopen the store.", path=self.directory, reason=str(error)
            ) from error

    def show_last_commit(self) -> None:
        """Make the last committed transaction visible to readers, even if its writer was killed before publishing it.

        A commit writes the meta page that makes it the last one, and then publishes it to readers. If the writer is
        killed between the two, LMDB publishes it only when the next write transaction begins, which builds on it: until
        then, readers would see another state than a writer builds on.
        """
        with self.reading():
            self.begin_write().abort()

    def grow(self) -> None:
        """Enlarge the map, to twice its size if the address space allows. No write transaction here may be live.

        Raises:
            StoreFull: A reader of this process is open. The map stays as it is.
            OutOfAddressSpace: There is no room for a larger map. The map stays as it is.
        """
        with self._mutex, self._blocked(waits_for_views=_WAITS_FOR_VIEWS):
            if self.is_read:
                raise StoreFull(
                    "The index must grow, but a scan of this process is open; finish it and try again.",
                    path=self.directory,
                )
            self._enlarge()

    @contextmanager
    def _blocked(self, waits_for_views: int = 0) -> Iterator[None]:
        """No read begins meanwhile, and views that have begun are counted; the caller holds the mutex.

        Args:
            waits_for_views: How often to look whether they have ended, as those of lookups do soon.
        """
        try:
            self._is_blocked = True
            for looks in range(_WAITS_FOR_GETS):
                if not self._gets and not (self._live and looks < waits_for_views):
                    break
                # A get reads one row, so it ends soon; but not if this is a signal's handler that interrupted it.
                time.sleep(_WAIT_SECONDS)
            yield
        finally:
            self._is_blocked = self._is_retired

    def _enlarge(self) -> None:
        """Enlarge the map to more than it has, and than the file has in use. The caller holds the mutex."""
        facts = self._env.info()
        used = (facts["last_pgno"] + 1) * self._env.stat()["psize"]
        size = address_space.size_of_larger_map(facts["map_size"], used, self.directory)
        try:
            self._env.set_mapsize(size)
        except lmdb.Error as error:
            raise StoreFull("The index can't grow any more.", path=self.directory, reason=str(error)) from error

    def copy_to(self, descriptor: int, transaction: Transaction | None = None) -> None:
        """Write a commit, without free pages, to a new file; not durable yet. The map can't grow meanwhile.

        Args:
            transaction: A read transaction that shows it; None for the last commit.

        Raises:
            StoreFull: The disk is full, or refuses otherwise.
        """
        with self.read() if transaction is None else nullcontext():
            try:
                self._env.copyfd(descriptor, compact=True, txn=transaction)
            except lmdb.MemoryError as error:
                raise self._named(error) from error
            except (lmdb.DiskError, OSError) as error:
                raise StoreFull("The index can't be copied.", path=self.directory, reason=str(error)) from error

    def readers(self) -> list[tuple[int, int]]:
        """Open read transactions of all processes: process id, and number of the commit that is read."""
        rows = [line.split() for line in self._env.readers().splitlines()]
        return [
            (int(row[0]), int(row[2])) for row in rows if len(row) == 3 and row[0].isdecimal() and row[2].isdecimal()
        ]

    @property
    def is_retired(self) -> bool:
        """Whether another file is to be read instead."""
        return self._is_retired

    def retire(self) -> None:
        """Begin no more read transactions; those that are open go on, also after the last :meth:`close`."""
        with self._mutex:
            self._is_retired = self._is_blocked = True

    def release_dead_readers(self) -> int:
        """Release the slots of killed readers, which would make the file grow; returns how many there were."""
        return int(self._env.reader_check())

    def is_stale(self) -> bool:
        """Whether the directory now has another environment, or none."""
        return self.identity != lmdb_files.identity_of(self._file)

    def close(self) -> None:
        """Release one use; the last release closes the environment."""
        with _registry_mutex:
            self._users -= 1
            if self._users or self._pid != os.getpid():
                return
            if _registry.get(self.directory) is self:
                del _registry[self.directory]
            if not (self._is_retired and self.is_read):  # else the last of them closes it
                self._close()

    def _close(self) -> None:
        self._env.close()
        if self._commits is not None:
            self._commits.release()  # its map is closed when nothing refers to it

    @property
    def is_read(self) -> bool:
        """Whether a thread of this process is reading."""
        return bool(self._live or self._gets)

    def close_if_unread(self) -> bool:
        """Like :meth:`close`, unless a thread of this process is reading; returns whether the use was released.

        A thread that was about to read gets StoreClosed.
        """
        with _registry_mutex, self._mutex, self._blocked():
            if self.is_read or self._pid != os.getpid():
                return False
            self._users -= 1
            if not self._users:
                if _registry.get(self.directory) is self:
                    del _registry[self.directory]
                self._close()
            return True

    def share(self) -> Environment:
        """Add one use."""
        self._users += 1
        return self

    def check_process(self) -> None:
        """Refuse use in a forked child.

        Raises:
            ForkedStore: This is not the process that opened the environment.
        """
        if self._pid != this_process.pid:
            raise ForkedStore("The store was opened before a fork(); open it again in this process.")

    def _begin_read(self) -> Transaction:
        if self._is_retired:
            raise StoreClosed("Another file has taken the place of this index; open it again.", path=self.directory)
        try:
            return self._env.begin()
        except lmdb.MemoryError as error:
            raise self._named(error) from error
        except lmdb.ReadersFullError as error:
            raise Unavailable("Too many scans are open; finish some and try again.", path=self.directory) from error
        except lmdb.MapResizedError:
            self._adopt_size()
            return self._env.begin()

    def _adopt_size(self) -> None:
        # Another process has grown the map; what it has may be more than this process can.
        with self._blocked(waits_for_views=_WAITS_FOR_VIEWS):
            if self.is_read:
                raise StoreFull(
                    "The index grew, but a scan of this process is open; finish it and try again.",
                    path=self.directory,
                )
            self._enlarge()


_registry: dict[Path, Environment] = {}
_registry_mutex = threading.Lock()


def open_environment(
    directory: Path,
    files: Files,
    *,
    map_bytes: int,
    create: bool = False,
    read_only: bool = False,
    metasync: bool = True,
    has_databases: bool = True,
) -> Environment:
    """Open the environment in a directory.

    Args:
        directory: A directory that contains only the environment.
        files: The disk, for the syncs that LMDB omits.
        map_bytes: Address space to reserve; reduced if the system refuses that much.
        create: Create directory and environment if they do not exist.
        read_only: Never wait for a writer. If the environment is open in this process already, its mode applies.
        metasync: Whether a commit is durable when it returns; otherwise a power cut may undo the last one, unless
            :meth:`Environment.sync` was called since. If the environment is open in this process already, its mode
            applies.
        has_databases: See :func:`kvstore.disk.lmdb_files.open_lmdb`.

    Raises:
        FileNotFoundError: There is no environment, and ``create`` is not set.
        NotAStore: In the place of the directory or its files is something else.
        CorruptData: LMDB can't read it, or must not.
        StoreFull, LogFailed: The disk refuses what LMDB makes when it is opened.
        OutOfAddressSpace: The process has no room for a map of the file.
        StoreReplaced: The store's path leads elsewhere.
        StoreLocked: It is open in this process by another path.
        UnsupportedOperation: Permissions to read it are missing.
    """
    # LMDB knows only paths: it must be the store's before LMDB is let at it, and still be when it may be written.
    files.verify(directory)
    opened = partial(Environment, read_only=read_only, metasync=metasync, has_databases=has_databases)
    environment = _opened(directory, files, map_bytes, opened, create=create)
    try:
        files.verify(directory)
    except BaseException:
        environment.close()
        raise
    return environment


def _opened(given: Path, files: Files, map_bytes: int, opened: partial[Environment], *, create: bool) -> Environment:
    lmdb_files.refuse_inaccessible(given)
    refuse_no_directory(given)
    directory = given.resolve()
    data = directory / DATA
    with _registry_mutex:
        existing = _registry.get(directory)
        identity = lmdb_files.identity_of(os.fspath(data))
        if existing is not None and existing.identity == identity:
            return existing.share()
        for other in _registry.values():
            if identity is not None and other.identity == identity:
                raise StoreLocked(
                    "The store is open in this process by a path from which it was moved; close it there first.",
                    path=directory,
                    other=other.directory,
                )
        for name in LMDB_FILES:
            refuse_links(directory / name)
        is_new = not data.exists()
        if is_new and not create:
            raise FileNotFoundError(data)
        if is_new:
            files.make_directory(given)
        else:
            all_pages = data.stat().st_size <= pages.ALL_PAGES_BYTES_MAX
            pages.verify(data, all_pages=all_pages)
        with refusals(directory):
            locks = lmdb_files.allocate_lock(directory)
        # All environments share the address space.
        map_bytes >>= len(_registry) // _ENVIRONMENTS_OF_FULL_SIZE
        environment = opened(directory, map_bytes, locks=locks)
        if is_new:
            # LMDB writes its first pages and does not wait for them: until its first commit they may be torn.
            descriptor = files.open(given / DATA)
            try:
                files.sync(descriptor)
            finally:
                files.close(descriptor)
            files.sync_directory(given)
        environment.release_dead_readers()
        _registry[directory] = environment
        return environment


def _forget_parent() -> None:
    """Detach a forked child from the parent's environments, so that it can open them itself.

    py-lmdb refuses to open an environment twice in a process, and counts the parent's as open in the child, where they
    are unusable. Its list of open files is private; its keys are not, so the child's keys are made different.
    """
    global _registry_mutex
    for environment in _registry.values():
        environment._is_inherited = True
        _inherited.append(environment)
    _registry.clear()
    _registry_mutex = threading.Lock()
    parents_keys: Callable[..., tuple[object, ...]] = lmdb._envid.env_keys
    pid = os.getpid()
    lmdb._envid.env_keys = lambda *args: tuple((pid, key) for key in parents_keys(*args))


_inherited: list[Environment] = []
_inherited_transactions: list[Transaction] = []
os.register_at_fork(after_in_child=_forget_parent)
