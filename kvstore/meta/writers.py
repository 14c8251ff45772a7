"""Named writers and open commits of a table in the catalog. Pure, like the state.

* A name keeps its writer id while its sequences continue; a new run of epochs gets a new id.
* An id that once had a name never writes again without it.
* A commit is open from its first edit until every bucket has its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvstore.errors import WriterFenced
from logformat.catalog.edits import BeginCommit, DropWriter, EndCommit, OpenWriter, WriterKind
from logformat.ids import Epoch, Sequence, WriterId


@dataclass(frozen=True, slots=True)
class NamedWriter:
    """A writer with a name, as it was last opened.

    Attributes:
        epoch: Its current incarnation; lower ones are fenced.
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
    """A commit that some buckets may not have yet; its batches are staged under ``commit_id``."""

    commit_id: str
    writer_id: WriterId
    writer_epoch: Epoch
    sequence: Sequence


@dataclass(frozen=True)
class TableWriters:
    """Writers of one table.

    Attributes:
        named: Writers by name.
        former: Ids that once had a name.
        commits: Open commits, in the order in which they began.
    """

    named: Mapping[str, NamedWriter] = field(default_factory=dict)
    former: frozenset[WriterId] = frozenset()
    commits: tuple[OpenCommit, ...] = ()

    def is_named(self, writer_id: WriterId) -> bool:
        """Whether a writer has or had a name, so that it never expires."""
        return writer_id in self.former or any(writer.writer_id == writer_id for writer in self.named.values())

    def check(self, writer_id: WriterId, epoch: Epoch) -> None:
        """Refuse a writer that lost its name or has a newer incarnation.

        Raises:
            WriterFenced: The writer must not write any more.
        """
        if writer_id in self.former:
            raise WriterFenced(
                "This writer's name was dropped, or another writer has it; open a new writer.", writer_id=writer_id
            )
        for name, writer in self.named.items():
            if writer.writer_id == writer_id and epoch < writer.epoch:
                raise WriterFenced(
                    "This writer was opened again later; only its newest incarnation may write.",
                    writer=name,
                    epoch=epoch,
                    current_epoch=writer.epoch,
                )

    def in_later_epochs(self, skipped: int) -> TableWriters:
        """The writers with all epochs raised by this number, which fences earlier incarnations."""
        named = {name: replace(each, epoch=Epoch(each.epoch + skipped)) for name, each in self.named.items()}
        return replace(self, named=named)

    def after(self, edit: OpenWriter | DropWriter | BeginCommit | EndCommit) -> TableWriters:
        """The writers after one more edit; an edit about something dropped does nothing."""
        match edit:
            case OpenWriter():
                opened = NamedWriter(edit.writer_id, edit.writer_epoch, edit.kind, edit.run, edit.first_epoch or 0)
                former = self._former(edit.name) - {edit.writer_id}
                return replace(self, named={**self.named, edit.name: opened}, former=former)
            case DropWriter():
                named = {name: writer for name, writer in self.named.items() if name != edit.name}
                return replace(self, named=named, former=self._former(edit.name))
            case BeginCommit():
                begun = OpenCommit(edit.commit_id, edit.writer_id, edit.writer_epoch, edit.sequence)
                return replace(self, commits=(*self.commits, begun))
            case EndCommit():
                return replace(self, commits=tuple(open for open in self.commits if open.commit_id != edit.commit_id))

    def _former(self, name: str) -> frozenset[WriterId]:
        writer = self.named.get(name)
        return self.former if writer is None else self.former | {writer.writer_id}


NO_WRITERS = TableWriters()
