"""Ends of commits: the edits that every bucket of a table has its batch, durably, so that what was staged may go.

Theory of operation. A commit of few rows is answered when its edit is durable, for the edit has its rows. The logs have
them too, but need not be synced for that; the next sync of each, whatever it is for, takes them along. Until then the
commit stays open. If a power cut takes a batch from a log, the next process that writes the bucket appends it again, as
of every open commit. If a log fails, its commits stay open, and those of other tables end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from kvstore.bucket.committer import Committer
from kvstore.clock import Clock
from kvstore.commit.staging import Staging
from kvstore.errors import NoSuchTable, StoreClosed, StoreError, StoreFull
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState
from kvstore.meta.table_catalog import TableCatalog
from kvstore.meta.writers import OpenCommit
from logformat.catalog.edits import EndCommit
from logformat.ids import Offset

OPEN_MAX = 64
"""So many ends wait for a sync at most; then the logs are synced for them."""
OPEN_SECONDS = 0.1
"""How long an end waits for a sync."""


class End(NamedTuple):
    """The end of a commit to one table."""

    catalog: TableCatalog
    staging: Staging
    commit: OpenCommit

    def edit(self, state: CatalogState) -> EndCommit:
        """The edit that every bucket of the table has its batch.

        Raises:
            NoSuchTable: The table was dropped.
        """
        check_there(self.catalog, state)
        return EndCommit(table_id=self.catalog.table, commit_id=self.commit.commit_id)


def check_there(catalog: TableCatalog, state: CatalogState) -> None:
    """Refuse a table that was dropped.

    Raises:
        NoSuchTable: It was.
    """
    if catalog.table not in state.tables:
        raise NoSuchTable("The table was dropped.", table_id=catalog.table)


def end(ends: Sequence[End]) -> None:
    """Record that every bucket of some tables has its batch of a commit, and remove what was staged for it."""
    if ends:
        # If this edit is lost, the next commit finds that every bucket has its batch. So it need not be synced alone.
        ends[0].catalog.journal.append_later(lambda state: [each.edit(state) for each in ends])
    for each in ends:
        each.staging.remove(each.commit)


class _Waiting(NamedTuple):
    end: End
    logs: Sequence[tuple[Committer, Offset]]
    since: float

    @property
    def is_durable(self) -> bool:
        return all(committer.durable >= offset for committer, offset in self.logs)


class OpenEnds:
    """Ends of commits of this process that wait until the logs are durable.

    Any thread may call it: each step is one of a deque or a set.
    """

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._waiting: deque[_Waiting] = deque()
        self._ids: set[str] = set()

    def __contains__(self, commit: OpenCommit) -> bool:
        """Whether a commit is one of these."""
        return commit.commit_id in self._ids

    def add(self, ended: End, logs: Sequence[tuple[Committer, Offset]]) -> None:
        """Have a commit end later.

        Args:
            logs: The buckets' committers, with the offset after the batch of each.
        """
        self._ids.add(ended.commit.commit_id)
        self._waiting.append(_Waiting(ended, logs, self._clock.monotonic()))

    @property
    def is_full(self) -> bool:
        """Whether many wait."""
        return len(self._waiting) >= OPEN_MAX

    def take(self, state: CatalogState) -> list[End]:
        """Ends that can be journaled now, with the next edit; the others stay.

        Every bucket has a batch of each commit to its table, so no end comes before an earlier one of its table.
        """
        due, stay, waiting = [], [], list(self._popped())
        tables = {each.end.catalog.table for each in waiting}
        open_ids = {commit.commit_id for table in tables for commit in state.writers_of(table).commits}
        for each in waiting:
            if each.end.commit.commit_id not in open_ids:
                self._ids.discard(each.end.commit.commit_id)  # it has ended, or the table was dropped
            elif each.is_durable:
                due.append(each.end)
            else:
                stay.append(each)
        self._waiting.extendleft(reversed(stay))
        return due

    def _popped(self) -> Iterator[_Waiting]:
        for _ in range(len(self._waiting)):
            try:
                yield self._waiting.popleft()
            except IndexError:
                return  # another thread takes them

    def put_back(self, ends: Sequence[End]) -> None:
        """Keep ends that could not be journaled."""
        for each in ends:
            self.add(each, ())

    def ended(self, ends: Sequence[End]) -> None:
        """Forget ends that are journaled; their rows were in the edits, so no file has to be removed."""
        for each in ends:
            self._ids.discard(each.commit.commit_id)

    def settle(self) -> None:
        """Sync the logs, and journal all ends.

        Raises:
            StoreFull: The disk is full. Some commits stay open.
            StoreError: A log has failed. Its commits stay open until their table has its next turn.
        """
        failed: StoreError | None = None
        logs = [log for each in tuple(self._waiting) for log in each.logs]
        for committer in {committer: None for committer, _ in logs}:
            try:
                if any(log is committer and log.durable < offset for log, offset in logs):
                    committer.sync()
            except StoreFull as error:
                failed = failed or error  # the next time there may be room
            except StoreError as error:
                self._forget(committer)
                failed = failed or (None if isinstance(error, StoreClosed) else error)
        due = self.take(self._journal.state())
        if due:
            try:
                self._journal.append_later(lambda state: [each.edit(state) for each in due])
            except NoSuchTable:
                self.put_back(due)  # the next time it is left out
                return
            except StoreError:
                self.put_back(due)
                raise
            self.ended(due)
        if failed is not None:
            raise failed

    def _forget(self, ended: Committer) -> None:
        """Leave commits that are not durable in a bucket to the next turn of their table."""
        for each in self._popped():
            if not each.is_durable and any(log is ended for log, _ in each.logs):
                self._ids.discard(each.end.commit.commit_id)
            else:
                self._waiting.append(each)

    def close(self) -> None:
        """Journal the ends that can be; the others are found by the next process that commits to the table."""
        with suppress(StoreError):
            self.settle()

    def look(self) -> None:
        """Settle, if one has waited for long."""
        if self._waiting and self._clock.monotonic() - self._waiting[0].since >= OPEN_SECONDS:
            self.settle()
