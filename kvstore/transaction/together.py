"""Small transactions of this process that wait are committed together: one edit of the catalog decides all of them.

A thread that waits for the turn of the tables leaves its transaction in a queue of the first one. The thread that gets
the turn takes those of the same tables, too, unless one has read what another one of them changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from threading import Event

from kvstore.commit.here import TURN_SECONDS, TURN_SECONDS_UNDISTURBED, Committers, Outcome, SmallCommit, apply_here
from kvstore.commit.named_writers import Numbered
from kvstore.commit.parts import TablePart
from kvstore.errors import StoreError
from kvstore.request.encoded import SmallRequest, counted
from kvstore.request.request import Request
from kvstore.request.results import WriteResult
from kvstore.transaction.elsewhere import DecidedBefore, Identity, check_undecided, first_results
from kvstore.transaction.table_changes import TableChanges
from logformat.ids import BucketId, TableId, next_sequence

TOGETHER_MAX = 64
"""So many transactions are committed together at most."""


@dataclass(eq=False)
class Work:
    """A transaction to be committed.

    Args:
        tables: In order of their ids.
        may_be_decided: Whether a process may have committed it.

    Attributes:
        outcome: What became of it; None before, and if it is to be committed alone.
        ended: Set by a thread that took it from the queue, when it is done with it.
    """

    identity: Identity
    tables: Sequence[TableChanges]
    may_be_decided: bool = field(kw_only=True)
    outcome: Outcome | None = field(default=None, init=False)
    ended: Event = field(default_factory=Event, init=False)
    _requests: list[dict[BucketId, Request | SmallRequest]] = field(init=False)

    def __post_init__(self) -> None:
        # Prepared here, before other processes have to wait.
        self._requests = [changes.requests() for changes in self.tables]

    @property
    def key(self) -> list[TableId]:
        """The tables."""
        return [each.opened.catalog.table for each in self.tables]

    def read(self) -> set[tuple[TableId, bytes]]:
        """The keys that it has read."""
        return {(id, code) for id, each in zip(self.key, self.tables, strict=True) for _, code in each.read}

    def changed(self) -> set[tuple[TableId, bytes]]:
        """The keys that it changes."""
        return {(id, code) for id, each in zip(self.key, self.tables, strict=True) for code in each.written}

    @property
    def is_small(self) -> bool:
        """Whether it may be done in its caller's thread: it has few rows, and one batch is not all of it."""
        batches = [each for requests in self._requests for each in requests.values()]
        return len(batches) > 1 and all(isinstance(each, SmallRequest) for each in batches)

    def parts(self, writers: Sequence[Numbered] | None = None) -> list[TablePart]:
        """What the commit has for each table; it is the caller's turn in each.

        Args:
            writers: For each table; None to ask for them.
        """
        if writers is None:
            named = self.identity.writer, self.identity.epoch
            writers = [each.opened.writers.of_transaction(*named) for each in self.tables]
        parts = []
        for changes, requests, writer in zip(self.tables, self._requests, writers, strict=True):
            numbered = {bucket: counted(request, *writer) for bucket, request in requests.items()}
            commit_id = self.identity.commit_id(changes.definition.id)
            parts.append(changes.opened.commits.part(changes.definition, numbered, commit_id))
        return parts

    def verify(self, committers: Committers) -> None:
        """Verify that it can take place; the buckets of its tables wait.

        Args:
            committers: Of all buckets of each table.

        Raises:
            DecidedBefore: It was committed.
            TransactionConflict: A row that was read has changed.
            NotAcknowledged: See :func:`check_undecided`.
        """
        if self.may_be_decided:
            check_undecided(self.identity, self.tables)
        for changes, by_bucket in zip(self.tables, committers, strict=True):
            changes.verify(by_bucket)

    def confirm(self, committers: Committers) -> Exception | None:
        """Why it can't take place; see :meth:`verify`."""
        try:
            self.verify(committers)
        except (StoreError, DecidedBefore) as error:
            return error
        return None

    def answer(self) -> Sequence[WriteResult]:
        """The results; raises why it was not committed."""
        outcome = self.outcome
        if isinstance(outcome, DecidedBefore):
            return first_results(self.tables, outcome)
        assert outcome is not None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def is_done_together(work: Work, *, waits: bool) -> bool:
    """Commit a transaction of few rows, with others that wait.

    Args:
        waits: Whether to wait for other threads.

    Returns:
        Whether it has an outcome; else it is to be committed alone.
    """
    if not work.is_small:
        return False
    commits = work.tables[0].opened.commits
    with ExitStack() as turns:
        if not waits:
            committers = [turns.enter_context(commits.turn_here(waits=False))]
        else:
            commits.waiting.append(work)
            try:
                committers = [turns.enter_context(commits.turn_here())]
            except BaseException as error:
                if not _is_removed(commits.waiting, work):
                    work.ended.wait()
                    if work.outcome is not None and isinstance(error, StoreError):
                        return True  # the thread that took it had the turn that this one did not get
                raise
            if not _is_removed(commits.waiting, work):
                work.ended.wait()  # it has: the thread that took it had the turn before
                return work.outcome is not None
        committers += [turns.enter_context(each.opened.commits.turn_here(waits=waits)) for each in work.tables[1:]]
        owned = [each for each in committers if each is not None]
        if len(owned) < len(committers):
            return False
        if commits.ends.is_full:
            if not waits:
                return False
            with suppress(StoreError):  # they stay open
                commits.ends.settle()
        group = [work]
        outcomes: Sequence[Outcome | None] | None = None
        try:
            _gather(group, commits.waiting)
            small = [SmallCommit(parts, each.confirm) for each, parts in zip(group, _parts(group), strict=True)]
            outcomes = apply_here(small, owned, commits.ends, TURN_SECONDS if waits else TURN_SECONDS_UNDISTURBED)
        except StoreError as error:
            outcomes = [error] * len(group)
        finally:
            for each, outcome in zip(group, outcomes or [None] * len(group), strict=True):
                each.outcome = outcome
                each.ended.set()
        return outcomes is not None


def _is_removed(waiting: deque[Work], work: Work) -> bool:
    try:
        waiting.remove(work)
    except ValueError:
        return False  # another thread has taken it
    return True


def _gather(group: list[Work], waiting: deque[Work]) -> None:
    """Add to a transaction others that can be committed with it; they are taken from the queue.

    None is out of the queue and not in the group: its thread would wait without end.
    """
    (work,) = group
    changed = work.changed()
    for each in list(waiting.copy())[:TOGETHER_MAX] if work.identity.writer is None else ():
        if each.identity.writer is None and each.key == work.key and changed.isdisjoint(each.read()):
            group.append(each)
            if _is_removed(waiting, each):
                changed |= each.changed()
            else:
                group.pop()  # its thread was interrupted


def _parts(group: Sequence[Work]) -> Iterator[list[TablePart]]:
    """What each transaction has for each table: numbered one after the other."""
    named = group[0].identity.writer, group[0].identity.epoch
    writers = [each.opened.writers.of_transaction(*named) for each in group[0].tables]
    for work in group:
        yield work.parts(writers)
        writers = [each._replace(sequence=next_sequence(each.sequence)) for each in writers]
