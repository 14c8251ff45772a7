"""Named writers and open commits of a table in the catalog. Pure, like the state.

* A name keeps its writer id while its sequences continue; a new run of epochs gets a new id.
* An id that once had a name never writes again without it.
* A commit is open from its first edit until every bucket has its batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvstore.errors import WriterFenced
from kvstore.meta.persistent_map import IndexedMap
from logformat.catalog.edits import BeginCommit, DropWriter, EndCommit, OpenWriter, WriterKind
from logformat.ids import NO_WRITER, Epoch, Sequence, WriterId


@dataclass(frozen=True, slots=True)
class NamedWriter:
    """A writer with a name, as it was last opened.

    Attributes:
        epoch: Its current incarnation; lower ones are fenced. It is no epoch of :meth:`kvstore.Table.apply_epoch`.
        kind: ``batches`` or ``epochs``.
        run: For epochs: the run that numbers them, such as a streaming query; None if the writer named none.
        first_epoch: For epochs: the epoch that has sequence 0.
    """

    writer_id: WriterId
    epoch: Epoch
    kind: WriterKind
    run: str | None = None
    first_epoch: int = 0


@dataclass(frozen=True, slots=True)
class OpenCommit:
    """A commit that some buckets may not have yet; its batches are in ``staged``, or in a file of its ``commit_id``."""

    commit_id: str
    writer_id: WriterId
    writer_epoch: Epoch
    sequence: Sequence
    staged: bytes | None = field(default=None, repr=False)


class NamedWriters(IndexedMap[str, NamedWriter]):
    """Writers by name and by id."""

    __slots__ = ()
    attribute = "writer_id"


@dataclass(frozen=True)
class TableWriters:
    """Writers of one table.

    Attributes:
        named: Writers by name.
        former: Ids that once had a name.
        commits: Open commits, in the order in which they began.
    """

    named: NamedWriters = field(default_factory=NamedWriters)
    former: frozenset[WriterId] = frozenset()
    commits: tuple[OpenCommit, ...] = ()

    def is_named(self, writer_id: WriterId) -> bool:
        """Whether a writer has or had a name, so that it never expires."""
        if writer_id == NO_WRITER:
            return False
        return writer_id in self.former or self.named.found(writer_id) is not None

    def check(self, writer_id: WriterId, epoch: Epoch) -> None:
        """Refuse a writer that lost its name or has a newer incarnation.

        Raises:
            WriterFenced: The writer must not write any more.
        """
        if writer_id in self.former:
            raise WriterFenced(
                "This writer's name was dropped, or another writer has it; open a new writer.", writer_id=writer_id
            )
        name = self.named.found(writer_id)
        if name is not None and epoch < self.named[name].epoch:
            raise WriterFenced(
                "This writer was opened again later; only its newest incarnation may write.",
                writer=name,
                epoch=epoch,
                current_epoch=self.named[name].epoch,
            )

    def in_later_epochs(self, skipped: int) -> TableWriters:
        """The writers with all epochs raised by this number, which fences earlier incarnations."""
        named = {name: replace(each, epoch=Epoch(each.epoch + skipped)) for name, each in self.named.items()}
        return replace(self, named=NamedWriters(named))

    def after(self, edit: OpenWriter | DropWriter | BeginCommit | EndCommit) -> TableWriters:
        """The writers after one more edit; an edit about something dropped does nothing."""
        match edit:
            case OpenWriter():
                writer = self.named.get(edit.name)
                former = (
                    self.former if writer is None or writer.writer_id == edit.writer_id else self._former(edit.name)
                )
                if edit.writer_id in former:
                    former -= {edit.writer_id}
                return replace(self, named=self.named.put(edit.name, opened(edit)), former=former)
            case DropWriter():
                return replace(self, named=self.named.without(edit.name), former=self._former(edit.name))
            case BeginCommit():
                begun = OpenCommit(edit.commit_id, edit.writer_id, edit.writer_epoch, edit.sequence, edit.staged)
                return TableWriters(self.named, self.former, (*self.commits, begun))
            case EndCommit():
                left = [each for each in self.commits if each.commit_id != edit.commit_id]
                return TableWriters(self.named, self.former, tuple(left))

    def _former(self, name: str) -> frozenset[WriterId]:
        writer = self.named.get(name)
        return self.former if writer is None else self.former | {writer.writer_id}


def opened(edit: OpenWriter) -> NamedWriter:
    """The writer that an edit opens."""
    return NamedWriter(edit.writer_id, edit.writer_epoch, edit.kind, edit.run, edit.first_epoch or 0)


NO_WRITERS = TableWriters()
