"""The commit of a transaction over several buckets: here, or by the process that owns the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from kvstore.bucket.elsewhere import NotAnswered, TooLarge
from kvstore.commit.parts import TablePart, apply_here, apply_together
from kvstore.errors import StoreError
from kvstore.process.calls import Answer, answer_of, uninterrupted
from kvstore.request.encoded import SmallRequest, counted
from kvstore.request.request import Request
from kvstore.request.results import WriteResult
from kvstore.sending.frames import BadFrame, Kind
from kvstore.transaction.elsewhere import (
    DecidedBefore,
    Identity,
    check_undecided,
    conflict_in,
    encode,
    first_results,
    results_in,
)
from kvstore.transaction.table_changes import TableChanges
from logformat.ids import BucketId

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
    first = tables[0].opened.handles[0]
    was_sent = as_columns = False
    for _ in range(SENT_MAX):
        if first.engine is not None:
            break
        answer: Answer[tuple[int, bytes]] = Answer()
        try:
            if not first.transact(encode(identity, tables, as_columns=as_columns), answer):
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


@uninterrupted
def committed_here(
    identity: Identity, tables: list[TableChanges], *, may_be_decided: bool = True
) -> Sequence[WriteResult]:
    """Commit a transaction in this process.

    Args:
        may_be_decided: Whether it was sent, so that a process may have committed it.
    """
    # Prepared here, before other processes have to wait.
    batches = [changes.requests() for changes in tables]

    def verify() -> None:
        if may_be_decided:
            check_undecided(identity, tables)
        for changes in tables:
            changes.verify()

    try:
        is_small = all(isinstance(request, SmallRequest) for requests in batches for request in requests.values())
        if is_small and sum(map(len, batches)) > 1:
            with ExitStack() as turns:
                committers = [turns.enter_context(changes.opened.commits.turn_here()) for changes in tables]
                idle = [each for each in committers if each is not None]
                if len(idle) == len(tables):
                    results = apply_here(_parts(identity, tables, batches), idle, verify)
                    if results is not None:
                        return results
        with ExitStack() as turns:
            for changes in tables:
                try:
                    turns.enter_context(changes.opened.commits.turn(keeps=True))
                except StoreError:
                    changes.opened.catalog.definition()  # a dropped table is the cause to report
                    raise
            return apply_together(_parts(identity, tables, batches), verify)
    except DecidedBefore as decided:
        return first_results(tables, decided)


def _parts(
    identity: Identity,
    tables: Sequence[TableChanges],
    batches: Sequence[Mapping[BucketId, Request | SmallRequest]],
) -> list[TablePart]:
    """What the commit has for each table; it is the caller's turn in each."""
    parts = []
    for changes, requests in zip(tables, batches, strict=True):
        writer = changes.opened.writers.of_transaction(identity.writer, identity.epoch)
        numbered = {bucket: counted(request, *writer) for bucket, request in requests.items()}
        commit_id = identity.commit_id(changes.definition.id)
        parts.append(changes.opened.commits.part(changes.definition, numbered, commit_id))
    return parts
