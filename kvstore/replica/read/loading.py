"""Loads what a table's reads in place need: the catalog, the names of the table's objects, and a consistent cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvstore.errors import NoSuchTable, ReplicaBehind
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.replica.client import Client
from kvstore.replica.consistent_cut import BucketHistory, consistent_cut, streams_of
from kvstore.replica.read.recent_commits import CommitLog
from kvstore.replica.source import Source, check_table
from logformat.catalog.replicas import Stream
from logformat.ids import TableId, WriterId

_TRIES = 5


class Cut(NamedTuple):
    """A consistent cut through a table.

    Attributes:
        ends: The end of each bucket.
        settled: The last sequence that all buckets have before their ends, of each writer with recent commits.
    """

    ends: dict[Stream, int]
    settled: dict[WriterId, int]

    @classmethod
    def of(cls, histories: dict[Stream, BucketHistory]) -> Cut:
        """The last cut of some histories.

        Raises:
            ReplicaBehind: There is none.
        """
        writers = {writer for history in histories.values() for writer in history.before}
        ends = consistent_cut(histories, writers)
        last = [history.last(ends[stream]) for stream, history in histories.items()]
        return cls(ends, {writer: min(each.get(writer, -1) for each in last) for writer in writers})


@dataclass(frozen=True)
class LoadedTable:
    """A table of a replica with everything that was listed and read for it."""

    source: Source
    commits: CommitLog
    definition: TableDefinition

    @classmethod
    def of(cls, client: Client, table: str | TableId) -> LoadedTable:
        """Load the table of a name or an id; see :meth:`ReplicaTable.of` for errors."""
        for _ in range(_TRIES):
            source = Source(client, only_catalog=True)
            commits = CommitLog(source)
            definition = found_in(commits.state, table)
            if source.add_table(definition.id):
                break
        else:
            raise ReplicaBehind("The replica changes all the time; try again.")
        for stream in streams_of(definition):
            source.path(stream, source.shipped(stream).end)  # finds holes
        return cls(source, commits, definition)

    def cut(self) -> Cut:
        """The last consistent cut.

        Raises:
            ReplicaBehind: There is none.
            CorruptData: An object is damaged.
        """
        shipped = {stream: self.source.shipped(stream).end for stream in streams_of(self.definition)}
        return Cut.of(self.commits.histories(self.definition, shipped))


def found_in(state: CatalogState, table: str | TableId) -> TableDefinition:
    """The definition of a table by its name or its id.

    Raises:
        NoSuchTable: There is none.
        CorruptData: The table is not possible.
    """
    definition = state.table(table) if isinstance(table, str) else state.tables.get(table)
    if definition is None and isinstance(table, str):
        raise NoSuchTable(
            "The replica has no such table.", table=table, tables=sorted(each.name for each in state.tables.values())
        )
    if definition is None:
        raise NoSuchTable("The table was dropped since it was loaded; load it again.", table_id=table)
    check_table(definition)
    return definition
