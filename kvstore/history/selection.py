"""Which changes are undone: those of a writer, an epoch, a job or a task, or all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvstore.arguments import integer, integer_within, shown
from kvstore.errors import InvalidRequest
from kvstore.history.origin import Origin
from logformat.ids import OFFSET_MAX


@dataclass
class Selection:
    """Changes by their origin; None stands for any. It notes which writers it has met, for one undo.

    Attributes:
        writer: Name or id of a writer.
        epoch, job, task: See :class:`kvstore.history.origin.Origin`.
    """

    writer: str | int | None = None
    epoch: int | None = None
    job: str | None = None
    task: int | None = None
    _seen: set[str] = field(default_factory=set)
    _taken: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, writer: Any, epoch: Any, job: Any, task: Any) -> Selection:
        """A selection from a caller's arguments.

        Raises:
            InvalidRequest: An argument is not possible.
        """
        if writer is not None and not isinstance(writer, str):
            writer = integer("writer", writer)
        if job is not None and not isinstance(job, str):
            raise InvalidRequest("`job` is the name of an ingestion job.", job=shown(job))
        if task is not None and job is None:
            raise InvalidRequest("A task is one of a job; give `job`, too.", task=shown(task))
        if job is not None and (writer is not None or epoch is not None):
            raise InvalidRequest("Give either a writer and its epoch, or a job and its task.", job=job)
        return cls(
            writer,
            None if epoch is None else integer_within("epoch", epoch, 0, OFFSET_MAX),
            job,
            None if task is None else integer_within("task", task, 0, OFFSET_MAX),
        )

    @property
    def is_all(self) -> bool:
        """Whether every change is selected."""
        return self.described() == {}

    def described(self) -> dict[str, Any]:
        """What it selects by."""
        named = {"writer": self.writer, "epoch": self.epoch, "job": self.job, "task": self.task}
        return {name: value for name, value in named.items() if value is not None}

    def takes(self, origin: Origin) -> bool:
        """Whether changes of this origin are selected."""
        if self.is_all:
            return True
        if origin.writer is not None:
            self._seen.add(origin.writer)
        is_selected = (
            self.writer in (None, origin.writer, origin.writer_id, str(origin.writer_id))
            and self.epoch in (None, origin.epoch)
            and self.job in (None, origin.job)
            and self.task in (None, origin.task)
            # An epoch alone is that of a commit, never the incarnation of a writer of batches.
            and (self.epoch is None or self.writer is not None or origin.counts_epochs)
        )
        if is_selected and origin.writer is not None and origin.writer_id is not None:
            self._taken[origin.writer_id] = origin.writer
        return is_selected

    def check_found(self) -> None:
        """Refuse a selection that has taken nothing, or the epochs of several writers or runs.

        Raises:
            InvalidRequest: It has.
        """
        if self.is_all:
            return
        if not self._taken:
            raise InvalidRequest(
                "No change in this range has this origin; Table.history() shows the origin of each change.",
                **self.described(),
                writers=sorted(self._seen),
            )
        if self.epoch is not None and len(self._taken) > 1:
            names = sorted({*self._taken.values()})
            raise InvalidRequest(
                "Several writers have this epoch; give the writer, too."
                if len(names) > 1
                else "Several runs of this writer have this epoch; give the id of one in place of its name.",
                **self.described(),
                **({"writers": names} if len(names) > 1 else {"ids": sorted(self._taken)}),
            )
