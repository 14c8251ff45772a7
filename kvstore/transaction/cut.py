"""All buckets of several tables at one cut: no commit is in one of them and not in another.

Theory of operation. A view of each bucket is opened, one after the other, while writing goes on. A commit over several
buckets could come in between. So the catalog is read before and after: if a commit to one of the tables was begun
meanwhile, the views are opened again; and of those that were open before, each view must have its batch.

The catalog of a copy that follows a replica may be ahead of its buckets, or behind them while it takes a round; but
between two rounds all buckets are at one cut. So it is asked whether a round was under way, or one has ended meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from kvstore.bucket.commit_lock import COMMIT_WAIT_SECONDS, pause
from kvstore.errors import Unavailable
from kvstore.log.writer_state import WriterStates
from kvstore.meta.table_catalog import CatalogReads, FixedCatalog
from kvstore.meta.writers import TableWriters
from kvstore.process.meter import TableMeter
from kvstore.table.open_table import OpenTable
from kvstore.transaction.held_bucket import HeldBucket
from logformat import paths


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table at a cut; see :class:`kvstore.table.access.Opened`."""

    handles: Sequence[HeldBucket]
    catalog: CatalogReads
    meter: TableMeter

    def one_moment(self, *_: object) -> AbstractContextManager[object]:
        """Nothing: all buckets are as of the cut."""
        return nullcontext()


def tables_at_one_cut(
    tables: Mapping[str, OpenTable], stack: ExitStack, *, read_only: bool, copy: Path | None = None
) -> dict[str, HeldTable]:
    """Views of all buckets of some tables, at one cut.

    Args:
        stack: Has the views; they end with it.
        read_only: Whether commits that a dead process has left can't be completed here.
        copy: The directory of the store, if it is a copy that follows a replica.

    Returns:
        The tables by the same names.

    Raises:
        Unavailable: A commit was decided and is not completed: its process does not go on, or died and the store may
            only be read here. Or commits come without a pause. Or a copy takes a round for long, or died in one.
        StoreLocked, StoreFull, CorruptData, LogFailed: A commit of a dead process can't be completed.
    """
    if not tables:
        return {}
    catalog = next(iter(tables.values())).catalog
    deadline = catalog.clock.monotonic() + COMMIT_WAIT_SECONDS
    while True:
        with ExitStack() as views:
            before = catalog.state()
            held = {name: _held(opened, views) for name, opened in tables.items()}
            if copy is None:
                whole = [_has(held[name], before.writers_of(opened.catalog.table)) for name, opened in tables.items()]
                after = catalog.state()
                ids = [opened.catalog.table for opened in tables.values()]
                # A commit that began meanwhile has made another object, also if it has ended.
                is_cut = all(whole) and all(after.writers_of(id) is before.writers_of(id) for id in ids)
            else:
                # In this order: what begins after the first is in no view, what ended before is seen by the second.
                is_cut = not (copy / paths.TAKING).exists() and all(map(_is_as_viewed, held.values()))
            if is_cut:
                stack.push(views.pop_all())
                return held
        if catalog.clock.monotonic() >= deadline:
            raise Unavailable(
                "A commit over several buckets is not completed; open the store for writing to do so."
                if copy is None
                else "The copy is taking a round, or its follower died in one; try again, or follow on."
            )
        pause()
        if not read_only:
            for opened in tables.values():
                opened.commits.settle()


def _held(opened: OpenTable, views: ExitStack) -> HeldTable:
    buckets = []
    for handle in opened.handles:
        bucket = HeldBucket(handle, views.enter_context(handle.snapshot()))
        views.callback(bucket.view.end)
        buckets.append(bucket)
    # Read after the views: it has the schemas of all their rows.
    return HeldTable(buckets, FixedCatalog(opened.catalog, opened.catalog.definition()), opened.meter)


def _is_as_viewed(held: HeldTable) -> bool:
    """Whether no bucket has got more since its view was opened."""
    return all(bucket.is_newest() for bucket in held.handles)


def _has(held: HeldTable, writers: TableWriters) -> bool:
    """Whether every view has the batches of the commits that are open."""
    for bucket in held.handles if writers.commits else ():
        known = WriterStates(bucket.view.writers_of(commit.writer_id for commit in writers.commits))
        if not all(known.has(commit.writer_id, commit.sequence) for commit in writers.commits):
            return False
    return True
