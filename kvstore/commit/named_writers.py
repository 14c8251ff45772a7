"""Named writers of one table: fencing by name, and epochs, each applied once to the whole table.

* A name sends either batches or epochs; its first use decides, and it never changes.
* Opening a name fences the previous writer of that name.
* A run (a Spark query, a job …) counts epochs. Another run may not continue under the name, because its epochs would
  look like duplicates. It may take the name over, and then begins a new count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from kvstore.arguments import printable, shown
from kvstore.commit.coordinator import Commits, Confirm
from kvstore.errors import InvalidRequest, NoSuchTable, OutOfOrderSequence, WriterFenced
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.meta.writers import NamedWriter
from kvstore.process.calls import uninterrupted
from kvstore.request.encoded import counted
from kvstore.request.preparation import request_of
from kvstore.request.request import Request
from kvstore.request.results import WriteResult
from logformat.catalog.edits import AllocateWriter, OpenWriter, WriterKind
from logformat.ids import NO_SEQUENCE, SEQUENCE_MAX, BucketId, Epoch, Sequence, WriterId, next_sequence
from logformat.rows.changes import Changes
from logformat.rows.intake import empty
from writer import Identity

NAME_BYTES_MAX = 255
OF_TRANSACTIONS = "kvstore transactions"
"""The name under which transactions without a name are counted in each table: replicas know commits by names."""
TRANSACTION = "spark txn "
"""The names of batch writes of Spark that happen once begin with this."""
Rest: TypeAlias = Callable[[], Mapping[BucketId, Changes]]


@dataclass(frozen=True, slots=True)
class CountedWriter(NamedWriter):
    """A named writer of an open table; see :attr:`kvstore.Table.writers`."""

    _last: Callable[[WriterId], Sequence | None] = field(kw_only=True, repr=False, compare=False)

    @property
    def last_epoch(self) -> int | None:
        """The last epoch that all buckets have, read now; None if it has none, or sends batches.

        After a restart, the next epoch to send is the one after it. An epoch of a process that has died meanwhile may
        be completed later than this; to send it again is no error.

        Raises:
            StoreClosed: The store was closed.
            CorruptData: An index is damaged.
        """
        if self.kind != "epochs" or (last := self._last(self.writer_id)) is None:
            return None
        return self.first_epoch + last


class Numbered(NamedTuple):
    """The writer of a commit, and its number there."""

    writer_id: WriterId
    epoch: Epoch
    sequence: Sequence


class Writers:
    """Named writers of one table."""

    def __init__(self, commits: Commits, catalog: TableCatalog) -> None:
        self._table = catalog.table
        self._commits = commits
        self._catalog = catalog
        self._journal = catalog.journal

    def named(self) -> dict[str, CountedWriter]:
        """Writers by name, as each was opened last."""
        last = self._commits.last_of_all
        return {
            name: CountedWriter(each.writer_id, each.epoch, each.kind, each.run, each.first_epoch, _last=last)
            for name, each in sorted(self._catalog.writers().named.items())
        }

    def new_id(self) -> WriterId:
        """See :func:`new_writer_id`."""
        return new_writer_id(self._journal)

    def open(self, name: Any) -> Identity:
        """Begin a writer of batches; with a name, its earlier incarnations are fenced, and its sequences go on.

        Raises:
            InvalidRequest: The name is not possible, or sends epochs.
        """
        if name is None:
            return Identity(self.new_id())
        name = writer_name(name)

        def decide(state: CatalogState) -> OpenWriter:
            known = self._known(state, name, "batches")
            return OpenWriter(
                table_id=self._table,
                name=name,
                writer_id=known.writer_id if known else state.next_writer_id,
                writer_epoch=Epoch(known.epoch + 1 if known else 0),
                kind="batches",
            )

        writer = self._opened(name, decide)
        return Identity(writer.writer_id, writer.epoch, name)

    def apply_epoch(
        self,
        definition: TableDefinition,
        parts: Mapping[BucketId, Changes],
        name: Any,
        epoch: int | None,
        run: Any,
        takeover: Any,
        rest: Rest | None = None,
        confirm: Confirm | None = None,
    ) -> WriteResult:
        """Apply an epoch to all buckets, once; see :meth:`kvstore.Table.apply_epoch`.

        Args:
            parts: Changes for each bucket, in the schema of the table.
            epoch: None for the one after the last.
            rest: Returns further changes; called while no other process can write. Updates that change nothing are
                left out then.
            confirm: See :meth:`kvstore.commit.coordinator.Commits.apply`.
        """
        name = writer_name(name)
        if run is not None:
            run = printable("run", run, NAME_BYTES_MAX)
        if not isinstance(takeover, bool):
            raise InvalidRequest("`takeover` is True or False.", takeover=shown(takeover))
        nothing = Changes.upserts(empty(definition.schema))
        # Prepared here, before other processes have to wait.
        requests = {
            bucket: request_of(parts.get(bucket, nothing), definition)
            for bucket in map(BucketId, range(definition.buckets))
        }
        return self._in_turn(definition, requests, name, epoch, run, takeover=takeover, rest=rest, confirm=confirm)

    def of_transaction(self, name: str | None, epoch: int | None) -> Numbered:
        """The writer of a commit over several tables, in this table; it is the caller's turn.

        Args:
            name: None: the one of all transactions without a name, of which none is sent again.
            epoch: The number of the commit under the name. It need not be the one after the last: the commits between
                may have been of other tables.

        Raises:
            OutOfOrderSequence: The number is too small.
            InvalidRequest, WriterFenced: The name sends batches, or a run has it.
        """
        if name is None or epoch is None:
            name = OF_TRANSACTIONS
            known = self._catalog.writers().named.get(name)
            if known is not None and known.kind == "epochs" and known.run is None:
                last = self._commits.last_sequence(known.writer_id)
                return Numbered(known.writer_id, known.epoch, next_sequence(NO_SEQUENCE if last is None else last))
            epoch = self._next_epoch(name)
        writer = self._of_run(writer_name(name), epoch, None, takeover=False)
        last = self._commits.last_sequence(writer.writer_id)
        if epoch < writer.first_epoch:
            raise self._out_of_order(name, epoch, writer, last)
        if last is None and epoch != writer.first_epoch:
            writer = self._bound(name, epoch, None, writer.writer_id)
        elif last is not None and epoch > writer.first_epoch + last + 1:
            writer = self._bound(name, epoch, None, None)
        return Numbered(writer.writer_id, writer.epoch, _sequence(writer, epoch))

    @uninterrupted
    def is_last(self, name: str, epoch: int) -> bool:
        """See :meth:`kvstore.Table.is_applied`."""
        with self._commits.turn():
            known = self._catalog.writers().named.get(name)
            if known is None or known.kind != "epochs" or epoch < known.first_epoch:
                return False
            return self._commits.last_sequence(known.writer_id) == _sequence(known, epoch)

    @uninterrupted
    def _in_turn(
        self,
        definition: TableDefinition,
        requests: dict[BucketId, Request],
        name: str,
        epoch: int | None,
        run: str | None,
        *,
        takeover: bool,
        rest: Rest | None,
        confirm: Confirm | None,
    ) -> WriteResult:
        with self._commits.turn():
            epoch = self._next_epoch(name) if epoch is None else epoch
            writer = self._of_run(name, epoch, run, takeover=takeover)
            if rest is not None:
                for bucket, more in rest().items():
                    requests[bucket] = request_of(requests[bucket].changes.then(more), definition)
                # Most rows of a replaced table stay as they are, and readers of changes need none of them.
                requests = {bucket: replace(each, skips_identical=True) for bucket, each in requests.items()}
            if epoch < writer.first_epoch:
                if self._commits.knows(writer.writer_id):
                    raise self._out_of_order(name, epoch, writer, None)
                writer = self._bound(name, epoch, run, writer.writer_id)
            try:
                return self._apply(definition, requests, writer, epoch, confirm)
            except OutOfOrderSequence as error:
                current = error.where.get("current")
                if current != NO_SEQUENCE or epoch == writer.first_epoch or self._commits.knows(writer.writer_id):
                    raise self._out_of_order(name, epoch, writer, current) from error
            # Nothing was ever applied under the name: its first epoch was refused.
            writer = self._bound(name, epoch, run, writer.writer_id)
            return self._apply(definition, requests, writer, epoch, confirm)

    def _next_epoch(self, name: str) -> int:
        known = self._catalog.writers().named.get(name)
        if known is None:
            return 0
        last = self._commits.last_sequence(known.writer_id)
        return known.first_epoch + (0 if last is None else last + 1)

    def _apply(
        self,
        definition: TableDefinition,
        requests: Mapping[BucketId, Request],
        writer: NamedWriter,
        epoch: int,
        confirm: Confirm | None,
    ) -> WriteResult:
        sequence = _sequence(writer, epoch)
        numbered = {
            bucket: counted(request, writer.writer_id, writer.epoch, sequence) for bucket, request in requests.items()
        }
        return self._commits.apply(definition, numbered, confirm)

    def _of_run(self, name: str, epoch: int, run: str | None, *, takeover: bool) -> NamedWriter:
        known = self._catalog.writers().named.get(name)
        if known is not None and known.kind == "epochs":
            if known.run == run:
                return known
            if not takeover:
                raise WriterFenced(
                    "Another run applies epochs under this name; choose another name, or say takeover=True: then this"
                    " run counts from here on, and what the other sends is refused.",
                    writer=name,
                    run=run,
                    current_run=known.run,
                )
        return self._bound(name, epoch, run, None)

    def _bound(self, name: str, epoch: int, run: str | None, writer_id: WriterId | None) -> NamedWriter:
        """Have a run count epochs from this one on, under a new id if none is given."""

        def decide(state: CatalogState) -> OpenWriter:
            known = self._known(state, name, "epochs")
            return OpenWriter(
                table_id=self._table,
                name=name,
                writer_id=state.next_writer_id if writer_id is None else writer_id,
                writer_epoch=Epoch(known.epoch + 1 if known else 0),
                kind="epochs",
                run=run,
                first_epoch=epoch,
            )

        return self._opened(name, decide)

    def _known(self, state: CatalogState, name: str, kind: WriterKind) -> NamedWriter | None:
        if self._table not in state.tables:
            raise NoSuchTable("The table was dropped.", table_id=self._table)
        known = state.writers_of(self._table).named.get(name)
        if known is not None and known.kind != kind:
            raise InvalidRequest(
                f"This name sends {known.kind}, so it can't send {kind}; choose another name, or drop_writer() it.",
                writer=name,
            )
        return known

    def _opened(self, name: str, decide: Callable[[CatalogState], OpenWriter]) -> NamedWriter:
        return self._journal.append(decide).writers_of(self._table).named[name]

    def _out_of_order(self, name: str, epoch: int, writer: NamedWriter, current: Any) -> OutOfOrderSequence:
        facts: dict[str, object] = {"writer": name, "epoch": epoch, "first_epoch": writer.first_epoch}
        if isinstance(current, int):
            # The last epoch that has this sequence and does not lie far ahead of the one given.
            lag = (epoch - writer.first_epoch - current) % (SEQUENCE_MAX + 1)
            ahead = lag - (SEQUENCE_MAX + 1)
            facts["last_epoch"] = epoch - (lag if lag < -ahead else ahead)
        return OutOfOrderSequence(
            "Epochs come one after the other, and only the last five are answered again; send the one after the last.",
            **facts,
        )


def _sequence(writer: NamedWriter, epoch: int) -> Sequence:
    return Sequence((epoch - writer.first_epoch) % (SEQUENCE_MAX + 1))


def new_writer_id(journal: Journal) -> WriterId:
    """A writer id that was never given out before, and never will be again."""
    state = journal.append(lambda state: AllocateWriter(writer_id=state.next_writer_id))
    return WriterId(state.next_writer_id - 1)


def writer_name(given: Any) -> str:
    """A name of a writer.

    Raises:
        InvalidRequest: It is not possible.
    """
    return printable("writer", given, NAME_BYTES_MAX)
