"""What controller and worker tell each other: a task on the worker's command line, one answer on its output."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from logformat.ids import Epoch, Txid


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Make an image.

    Attributes:
        epoch: Of the checkpoint; a worker refuses one that is not higher than those of the images.
        store: Directory of the store.
        txid: The last edit in the image, unless there is an image of a later one.
        seconds: The worker ends itself after so many: its controller may be gone by then.
        directory: Device and inode of the store's directory, if its controller holds it: another may have its path.
    """

    epoch: Epoch
    store: str
    store_id: UUID
    txid: Txid
    seconds: int
    directory: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        """Directory of the store."""
        return Path(self.store)


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="done"):
    """There is an image, and its name is durable.

    Attributes:
        txid: The last edit in it.
        previous: Of the newest image before it that was found right just now; None if there is none.
        bytes: Its size.
        written: Whether it was made now; else there was one of this edit.
    """

    epoch: Epoch
    txid: Txid
    previous: Txid | None
    bytes: int
    written: bool


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="refused"):
    """There is no new image; why not: the name of an error, its message and facts."""

    epoch: Epoch
    error: str
    message: str
    where: dict[str, Any]


Answer = Done | Refused


def encode(message: Task | Answer) -> bytes:
    """A message as one line."""
    return msgspec.json.encode(message)


def decode_task(line: str) -> Task:
    """What :func:`encode` wrote; raises msgspec.DecodeError if it is something else."""
    return _decode(line, Task)


def decode_answer(line: bytes) -> Answer:
    """What :func:`encode` wrote; raises msgspec.DecodeError if it is something else."""
    answer: Answer = _decode(line, Answer)
    return answer


def _decode(line: str | bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:  # it comes from elsewhere, maybe
        raise msgspec.DecodeError(str(error)) from error
