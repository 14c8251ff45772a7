"""The commit of a transaction over several buckets: here, or by the process that owns the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from kvstore.bucket.elsewhere import NotAnswered, TooLarge
from kvstore.commit.parts import apply_together
from kvstore.errors import StoreError
from kvstore.process.calls import Answer, answer_of, uninterrupted
from kvstore.process.signals import undisturbed
from kvstore.request.results import WriteResult
from kvstore.sending.frames import BadFrame, Kind
from kvstore.transaction.elsewhere import DecidedBefore, Identity, conflict_in, encode, results_in
from kvstore.transaction.table_changes import TableChanges
from kvstore.transaction.together import Work, is_done_together

SENT_MAX = 5
"""How often a transaction is sent to owners that end before they answer; then this process takes the buckets."""


def committed(identity: Identity, tables: list[TableChanges]) -> Sequence[WriteResult]:
    """Commit a transaction.

    Args:
        tables: In order of their ids.

    Returns:
        The result of each table.

    Raises:
        TransactionConflict: A row that was read has changed. Nothing was written.
        NotAcknowledged: Another process was to commit it, and does not answer.
        StoreError: See :func:`kvstore.commit.parts.apply_together`.
    """
    handle = tables[0].opened.handles[0]
    was_sent = as_columns = False
    for _ in range(SENT_MAX):
        if handle.engine is not None:
            break
        answer: Answer[tuple[int, bytes]] = Answer()
        try:
            if not handle.transact(encode(identity, tables, as_columns=as_columns), answer):
                break
            was_sent = True
            kind, content = answer_of(answer)
            if kind == Kind.TRANSACTED:
                return results_in(content)
            if kind == Kind.CHANGED:
                raise conflict_in(content, tables)
            as_columns = True  # a table was altered
        except TooLarge:
            break
        except (NotAnswered, BadFrame):
            continue
    return committed_here(identity, tables, may_be_decided=was_sent)


def committed_here(
    identity: Identity, tables: list[TableChanges], *, may_be_decided: bool = True
) -> Sequence[WriteResult]:
    """Commit a transaction in this process.

    Args:
        may_be_decided: Whether it was sent, so that a process may have committed it.
    """
    work = Work(identity, tables, may_be_decided=may_be_decided)
    if not undisturbed(is_done_together, work, waits=False):
        _done(work)
    return work.answer()


@uninterrupted
def _done(work: Work) -> None:
    if is_done_together(work, waits=True):
        return
    with ExitStack() as turns:
        for changes in work.tables:
            try:
                turns.enter_context(changes.opened.commits.turn(keeps=True))
            except StoreError:
                changes.opened.catalog.definition()  # a dropped table is the cause to report
                raise
        try:
            parts = work.parts()
            work.outcome = apply_together(parts, lambda: work.verify([part.committers for part in parts]))
        except DecidedBefore as decided:
            work.outcome = decided
