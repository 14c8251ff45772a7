"""The catalog as one table and its buckets see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvstore.clock import Clock
from kvstore.errors import NoSuchTable
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.writers import NamedWriter, TableWriters, opened
from logformat.catalog import edits
from logformat.catalog.edits import BeginCommit, DropWriter, OpenWriter
from logformat.ids import BucketId, Offset, Sequence, TableId, WriterId


class Now(NamedTuple):
    """What the catalog says of a table, the same object until it says something else.

    Attributes:
        has_replicas: Whether a write may have to wait for the answer of a replica.
    """

    definition: TableDefinition
    writers: TableWriters
    has_replicas: bool


class CatalogReads(Protocol):
    """One table in the catalog."""

    @property
    def name(self) -> str:
        """Name of the table when it was opened or last looked at, for messages."""

    def definition(self) -> TableDefinition:
        """Definition of the table.

        Raises:
            NoSuchTable: The table was dropped.
        """

    def state(self) -> CatalogState:
        """The catalog as of now, which has the names of writers and jobs."""

    def earlier_writers(self) -> dict[WriterId, tuple[str, NamedWriter]]:
        """Writers that had a name, by id, with the name; those that lost it to another run as far as they are known."""

    def commits(self) -> dict[tuple[WriterId, Sequence], str]:
        """Ids of commits over several buckets or tables, by writer and sequence, as far as they are known.

        A commit to several tables has the same id in each.
        """


@dataclass(slots=True, eq=False)
class TableCatalog:
    """One table in the catalog: always as of now, edits of other processes included.

    Args:
        name: Name of the table when it was opened, for messages.
    """

    journal: Journal
    table: TableId
    name: str
    clock: Clock
    _known: tuple[CatalogState, Now] | None = field(default=None, init=False, repr=False)

    def definition(self) -> TableDefinition:
        """Definition of the table.

        Raises:
            NoSuchTable: The table was dropped.
        """
        return self.now().definition

    def state(self) -> CatalogState:
        """The catalog."""
        return self.journal.state()

    def writers(self) -> TableWriters:
        """Named writers of the table, and its open commits."""
        return self.journal.state().writers_of(self.table)

    def earlier_writers(self) -> dict[WriterId, tuple[str, NamedWriter]]:
        """Every writer that had a name, by id, with the name; it may have lost it to another run.

        They come from the edits that the journal still has. A dropped name is forgotten, also for those who lost it.

        Raises:
            CorruptImage: An edit is damaged.
        """
        writers: dict[WriterId, tuple[str, NamedWriter]] = {}
        for data in self.journal.edits_kept():
            if edits.op_of(data) not in (OpenWriter.op, DropWriter.op):
                continue
            match edits.decode(data).payload:
                case OpenWriter(table_id=self.table) as edit:
                    writers[edit.writer_id] = edit.name, opened(edit)
                case DropWriter(table_id=self.table, name=name):
                    writers = {id: each for id, each in writers.items() if each[0] != name}
        return writers

    def commits(self) -> dict[tuple[WriterId, Sequence], str]:
        """See :meth:`CatalogReads.commits`; they come from the edits that the journal still has.

        Raises:
            CorruptImage: An edit is damaged.
        """
        kept = (each for each in self.journal.edits_kept() if edits.op_of(each) == BeginCommit.op)
        begun = (edits.decode(each).payload for each in kept)
        ours = (each for each in begun if isinstance(each, BeginCommit) and each.table_id == self.table)
        return {(each.writer_id, each.sequence): each.commit_id.partition("-")[2] for each in ours}

    def now(self) -> Now:
        """What a write goes by, as of one moment.

        Raises:
            NoSuchTable: The table was dropped.
        """
        state = self.journal.state()
        kept = self._known
        return kept[1] if kept is not None and kept[0] is state else self._as_of(state)

    def _as_of(self, state: CatalogState) -> Now:
        definition = state.tables.get(self.table)
        if definition is None:
            raise NoSuchTable("The table was dropped.", table=self.name)
        self._known = state, (now := Now(definition, state.writers_of(self.table), bool(state.replicas)))
        return now

    @contextmanager
    def reader_positions(self, bucket: BucketId) -> Iterator[list[Offset]]:
        """Positions of registered readers of a bucket.

        While the context is open, no position moves and no reader registers.

        Raises:
            StoreError: The catalog can't be held still; see :meth:`Journal.still`.
        """
        with self.journal.still() as catalog:
            yield catalog.consumers_of(self.table).reader_positions(bucket, self.clock.now_ms())

    def consumers_before(self, bucket: BucketId, offset: Offset) -> set[str]:
        """Names of consumers whose position in a bucket is before an offset."""
        return self.state().consumers_of(self.table).before(bucket, offset)

    def check_leads(self) -> None:
        """Return if the store may be written now; see :meth:`Journal.check_leads`."""
        self.journal.check_leads()

    def show_last_commit(self) -> None:
        """Make the last committed edit visible; see :meth:`Journal.show_last_commit`."""
        self.journal.show_last_commit()


class FixedCatalog:
    """An entry of a catalog with the definition that the table had at one moment.

    Args:
        known: The entry.
        fixed: The definition of that moment.
    """

    def __init__(self, known: CatalogReads, fixed: TableDefinition) -> None:
        self.name = known.name
        self.state = known.state
        self.earlier_writers = known.earlier_writers
        self.commits = known.commits
        self._known = known
        self._fixed = fixed

    def definition(self) -> TableDefinition:
        """Definition of the table at that moment.

        Raises:
            NoSuchTable: The table was dropped since.
        """
        self._known.definition()
        return self._fixed
