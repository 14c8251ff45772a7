"""State of the catalog, and the effect of each edit on it. Pure: no file, no clock.

* ``state.after(edit)`` is the only way the state changes, live and in replay, so both give the same state.
* An edit that the state already has changes nothing, so a replay may begin at any earlier edit.
* Ids increase and are never reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import TypeVar

import pyarrow as pa
from msgspec import structs

from kvstore.errors import CorruptImage, SchemaMismatch, UnknownSchema, WriterFenced
from kvstore.meta.consumers import NO_CONSUMERS, TableConsumers
from kvstore.meta.jobs import NO_JOBS, Jobs, jobs_after
from kvstore.meta.persistent_map import IndexedMap, PersistentMap
from kvstore.meta.replicas import AboutReplica, Replicas, replicas_after, without_table
from kvstore.meta.writers import NO_WRITERS, TableWriters
from logformat.catalog.edits import (
    AboutJob,
    AddReplica,
    AddSchema,
    AllocateWriter,
    AlterColumns,
    AlterTable,
    BeginCommit,
    BeginEpoch,
    CreateJob,
    CreateTable,
    DropConsumer,
    DropReplica,
    DropTable,
    DropWriter,
    Edit,
    EndCommit,
    FindReplica,
    LoseLead,
    OpenWriter,
    Payload,
    RenameTable,
    ReportReplica,
    SecondaryIndex,
    SetConsumer,
    TableOptions,
    TellReplica,
)
from logformat.ids import GIVEN_WRITERS, Epoch, SchemaId, TableId, Txid, WriterId
from logformat.rows import schema as schemas

TABLES_SKIPPED, WRITERS_SKIPPED, WRITER_EPOCHS_SKIPPED = 2**20, 2**32, 2**16
"""Ids and epochs that a new leader skips: more than the edits that it lacks can have allocated."""

Known = TypeVar("Known")


@dataclass(frozen=True, eq=False)  # one object for each state of a table, so that codecs can be kept with it
class TableDefinition:
    """Definition of a table.

    A column is the same in all schemas that have its place. The current one says what columns are called now, and
    which of them are dropped: these stay in what is stored, and nobody else sees them.

    Attributes:
        schemas: Stored columns by schema id, as they were called then; the highest id is the current schema.
        primary_key: Key columns in key order; None for a log table.
        bucket_key: Columns that determine the bucket of a row; None for a log table whose rows go to any bucket.
    """

    id: TableId
    name: str
    schemas: dict[SchemaId, pa.Schema]
    primary_key: tuple[str, ...] | None
    buckets: int
    options: TableOptions
    bucket_key: tuple[str, ...] | None = None

    @classmethod
    def of(cls, create: CreateTable) -> TableDefinition:
        """The table that an edit creates."""
        bucket_key = create.primary_key if create.bucket_key is None else create.bucket_key
        return cls(
            create.table_id,
            create.name,
            {SchemaId(1): schemas.from_json(create.columns)},
            tuple(create.primary_key) if create.primary_key is not None else None,
            create.buckets,
            create.options,
            tuple(bucket_key) if bucket_key is not None else None,
        )

    @cached_property
    def schema_id(self) -> SchemaId:
        """Id of the current schema."""
        return max(self.schemas)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns that the table has, without dropped ones."""
        return schemas.without_dropped(self.stored)

    @cached_property
    def stored(self) -> pa.Schema:
        """Stored columns of the current schema: those that the table has, and dropped ones."""
        return self.schemas[self.schema_id]

    @cached_property
    def schemas_now(self) -> dict[SchemaId, pa.Schema]:
        """Stored columns by schema id, as they are called now."""
        return {id: schemas.named_as(schema, self.stored) for id, schema in self.schemas.items()}

    @property
    def indexes(self) -> Sequence[SecondaryIndex]:
        """Secondary indexes, in the order in which they were created."""
        return self.options.indexes.known if self.options.indexes else ()

    def is_altered(self, schema_id: SchemaId) -> bool:
        """Whether a schema has the columns of the one before, and only other names or more dropped columns."""
        before = self.schemas.get(SchemaId(schema_id - 1))
        return before is not None and len(before) == len(self.schemas[schema_id])

    @cached_property
    def was_altered(self) -> bool:
        """Whether columns were ever renamed or dropped."""
        return any(map(self.is_altered, self.schemas))

    def is_same(self, other: TableDefinition) -> bool:
        """Whether two definitions are equal in every field."""
        return all(getattr(self, each.name) == getattr(other, each.name) for each in fields(self))

    def schema_of(self, schema_id: SchemaId) -> pa.Schema:
        """Stored columns of a schema, as they are called now.

        Raises:
            UnknownSchema: The table has no schema of that id.
        """
        self.check_knows(schema_id)
        return self.schemas_now[schema_id]

    def check_knows(self, schema_id: SchemaId) -> None:
        """Verify that the table has a schema.

        Raises:
            UnknownSchema: It has none of that id.
        """
        if schema_id not in self.schemas:
            raise UnknownSchema(
                "The table has no such schema; leave schema_id out for the current one.",
                table=self.name,
                schema_id=schema_id,
                current=self.schema_id,
            )

    def renamed_since(self, schema_id: SchemaId) -> dict[str, str | None]:
        """What the columns of a schema are called now, if any has another name or is dropped since; otherwise empty.

        Returns:
            For each column that the table had then its name; None for one that is dropped.
        """
        if schema_id == self.schema_id or schema_id not in self.schemas:  # or of a catalog that this one has replaced
            return {}
        then = self.schemas[schema_id].names
        now = self.stored.names[: len(then)]
        return {} if then == now else schemas.new_names(then, now)

    def check_names_of(self, schema_id: SchemaId, what: str = "it was loaded; load it again") -> None:
        """Verify that columns are called as in a schema.

        Args:
            what: End of the error's sentence: since when, and what to do.

        Raises:
            SchemaMismatch: Some were renamed or dropped since.
        """
        if names := self.renamed_since(schema_id):
            raise SchemaMismatch(
                f"Columns of the table were renamed or dropped since {what}.",
                table=self.name,
                renamed={name: now for name, now in names.items() if now not in (name, None)},
                dropped=[name for name, now in names.items() if now is None],
            )

    def named_as(self, earlier: TableDefinition) -> TableDefinition:
        """This definition for a reader that knows an earlier one: columns have the names that they had there.

        Columns that were dropped since are there, and those that were added since are not; if nothing was renamed or
        dropped, it is the definition itself.
        """
        if self is earlier or not self.renamed_since(earlier.schema_id):
            return self
        return _named_as(self, earlier)


@lru_cache(maxsize=256)
def _named_as(now: TableDefinition, earlier: TableDefinition) -> TableDefinition:
    added = range(len(earlier.stored), len(now.stored))
    fields = [*earlier.stored, *(now.stored.field(number).with_name(schemas.dropped_name(number)) for number in added)]
    then = earlier.options
    return replace(
        now,
        schemas={**now.schemas, now.schema_id: pa.schema(fields)},
        primary_key=earlier.primary_key,
        bucket_key=earlier.bucket_key,
        # Of the options, these two name columns, and change in no other way.
        options=structs.replace(now.options, merge_engine=then.merge_engine, auto_increment=then.auto_increment),
    )


class Tables(IndexedMap[TableId, TableDefinition]):
    """Tables by id and by name."""

    __slots__ = ()
    attribute = "name"


@dataclass(frozen=True)
class CatalogState:
    """The catalog after the edit ``txid``, which the leader of ``leader_epoch`` made.

    Attributes:
        lost_to: Epoch of the leader that has replaced this one; 0 if none has.
    """

    txid: Txid = Txid(0)
    leader_epoch: Epoch = Epoch(0)
    leader: str = ""
    lost_to: Epoch = Epoch(0)
    next_table_id: TableId = TableId(1)
    next_writer_id: WriterId = GIVEN_WRITERS
    tables: Tables = field(default_factory=Tables)
    writers: PersistentMap[TableId, TableWriters] = field(default_factory=PersistentMap)
    consumers: PersistentMap[TableId, TableConsumers] = field(default_factory=PersistentMap)
    jobs: PersistentMap[TableId, Jobs] = field(default_factory=PersistentMap)
    replicas: Replicas = field(default_factory=dict, repr=False)  # a name may be a URL with credentials

    def writers_of(self, table_id: TableId) -> TableWriters:
        """Writers of a table, and its open commits."""
        return self.writers.get(table_id, NO_WRITERS)

    def consumers_of(self, table_id: TableId) -> TableConsumers:
        """Consumers of a table."""
        return self.consumers.get(table_id, NO_CONSUMERS)

    def table(self, name: str) -> TableDefinition | None:
        """The table of a name; None if there is none."""
        id = self.tables.found(name)
        return None if id is None else self.tables[id]

    def check_leads(self) -> None:
        """Verify that the store may still be written.

        Raises:
            WriterFenced: Another leader has replaced this one.
        """
        if self.lost_to:
            raise WriterFenced(
                "Another leader has taken this store's place, and knows nothing of what is written here: write there."
                " To go on here nevertheless: `kvstore meta recover`.",
                leader_epoch=self.lost_to,
                ours=self.leader_epoch,
            )

    def after(self, edit: Edit) -> CatalogState:
        """The state after one more edit; one that it already has, or about something dropped, changes nothing.

        Raises:
            CorruptImage: An edit before it is missing, or a replaced leader made it.
        """
        if edit.txid <= self.txid:
            return self
        if edit.epoch < self.leader_epoch:
            raise CorruptImage(
                "A leader made an edit of the catalog after it was replaced; run `kvstore check`.",
                txid=edit.txid,
                epoch=edit.epoch,
                leader_epoch=self.leader_epoch,
            )
        if edit.txid != self.txid + 1:
            raise CorruptImage(
                "An edit of the catalog is missing; run `kvstore check`.", expected=self.txid + 1, found=edit.txid
            )
        if isinstance(edit.payload, (BeginCommit, EndCommit)):  # the most frequent ones
            return self._with_commit(edit.txid, edit.payload)
        state = replace(self, txid=edit.txid)
        match edit.payload:
            case CreateTable() as create:
                table = TableDefinition.of(create)
                following = TableId(max(self.next_table_id, table.id + 1))
                return replace(state, tables=self.tables.put(table.id, table), next_table_id=following)
            case DropTable(table_id=dropped):
                return replace(
                    state,
                    tables=self.tables.without(dropped),
                    writers=self.writers.without(dropped),
                    consumers=self.consumers.without(dropped),
                    jobs=self.jobs.without(dropped),
                    replicas=without_table(self.replicas, dropped),
                )
            case AddSchema(table_id=changed, schema_id=schema_id, columns=columns):
                if changed not in self.tables:
                    return state
                before = self.tables[changed]
                after = replace(before, schemas={**before.schemas, schema_id: schemas.from_json(columns)})
                return replace(state, tables=self.tables.put(changed, after))
            case RenameTable(table_id=changed, name=name):
                if changed not in self.tables:
                    return state
                renamed = replace(self.tables[changed], name=name)
                return replace(state, tables=self.tables.put(changed, renamed))
            case AlterTable(table_id=changed, options=options):
                if changed not in self.tables:
                    return state
                altered = replace(self.tables[changed], options=options)
                return replace(state, tables=self.tables.put(changed, altered))
            case AlterColumns(table_id=changed) as columns_now:
                if changed not in self.tables:
                    return state
                before = self.tables[changed]
                key, bucket_key = columns_now.primary_key, columns_now.bucket_key
                after = replace(
                    before,
                    schemas={**before.schemas, columns_now.schema_id: schemas.from_json(columns_now.columns)},
                    primary_key=None if key is None else tuple(key),
                    bucket_key=None if bucket_key is None else tuple(bucket_key),
                    options=columns_now.options,
                )
                return replace(state, tables=self.tables.put(changed, after))
            case BeginEpoch(leader=leader):
                return replace(
                    state,
                    leader_epoch=edit.epoch,
                    leader=leader,
                    lost_to=Epoch(0),
                    next_table_id=TableId(self.next_table_id + TABLES_SKIPPED),
                    next_writer_id=WriterId(self.next_writer_id + WRITERS_SKIPPED),
                    writers=PersistentMap(
                        {id: writers.in_later_epochs(WRITER_EPOCHS_SKIPPED) for id, writers in self.writers.items()}
                    ),
                )
            case LoseLead(by=by):
                return replace(state, lost_to=max(self.lost_to, by))
            case AllocateWriter(writer_id=allocated):
                return state._with_writer(allocated)
            case OpenWriter() | DropWriter() as about:
                if isinstance(about, OpenWriter):
                    state = state._with_writer(about.writer_id)
                if about.table_id not in self.tables:
                    return state
                writers_now = self.writers_of(about.table_id).after(about)
                return replace(state, writers=_with(self.writers, about.table_id, writers_now, NO_WRITERS))
            case SetConsumer() | DropConsumer() as of:
                if of.table_id not in self.tables:
                    return state
                consumers_after = self.consumers_of(of.table_id).after(of, edit.time_ms)
                return replace(state, consumers=_with(self.consumers, of.table_id, consumers_after, NO_CONSUMERS))
            case AddReplica() | DropReplica() | ReportReplica() | TellReplica() | FindReplica() as replica:
                return replace(state, replicas=replicas_after(self.replicas, replica, self.tables))
        if isinstance(edit.payload, CreateJob | AboutJob):
            return state._with_jobs(edit.payload, edit.time_ms)
        raise AssertionError(edit.payload)

    def lacks(self, payload: Payload) -> str | None:
        """The table or replica that an edit names, if it was dropped: then the edit does nothing."""
        if isinstance(payload, CreateTable | AllocateWriter | BeginEpoch | LoseLead | AddReplica):
            return None
        if isinstance(payload, AboutReplica):
            return None if payload.name in self.replicas else f"replica {payload.name}"
        table_id: TableId = payload.table_id  # type: ignore[attr-defined]
        return None if table_id in self.tables else f"table {table_id}"

    def is_same(self, other: CatalogState) -> bool:
        """Whether two states are equal in every field, also those of the tables' definitions."""
        tables, others = self.tables, other.tables
        return (
            replace(self, tables=Tables()) == replace(other, tables=Tables())
            and tables.keys() == others.keys()
            and all(table.is_same(others[id]) for id, table in tables.items())
        )

    def _with_jobs(self, edit: CreateJob | AboutJob, time_ms: int) -> CatalogState:
        if edit.table_id not in self.tables:
            return self
        now = jobs_after(self.jobs.get(edit.table_id, NO_JOBS), edit, self.txid, time_ms)
        return replace(self, jobs=_with(self.jobs, edit.table_id, now, NO_JOBS))

    def _with_commit(self, txid: Txid, edit: BeginCommit | EndCommit) -> CatalogState:
        if edit.table_id not in self.tables:
            return replace(self, txid=txid)
        now = self.writers_of(edit.table_id).after(edit)
        # A copy, since replace() takes three times as long.
        after = copy(self)
        after.__dict__.update(txid=txid, writers=_with(self.writers, edit.table_id, now, NO_WRITERS))
        return after

    def _with_writer(self, writer_id: WriterId) -> CatalogState:
        return replace(self, next_writer_id=WriterId(max(self.next_writer_id, writer_id + 1)))


def _with(
    known: PersistentMap[TableId, Known], table_id: TableId, now: Known, nothing: Known
) -> PersistentMap[TableId, Known]:
    """The mapping with one more entry; an empty value is no entry, so that equal states compare as equal."""
    return known.without(table_id) if now == nothing else known.put(table_id, now)
