"""Messages of controller and worker: a task on the worker's command line, one answer on its standard output."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from logformat.ids import Epoch, Txid


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The task to write an image.

    Attributes:
        epoch: Epoch of the checkpoint; a worker refuses one that is not higher than the epochs of the images.
        store: Directory of the store.
        txid: The last edit in the image, unless there is an image of a later one.
        seconds: The worker ends itself after this time: its controller may have ended.
        directory, catalog: Device and inode of the directories of store and catalog, if the controller holds
            them: their paths may lead elsewhere.
    """

    epoch: Epoch
    store: str
    store_id: UUID
    txid: Txid
    seconds: int
    directory: tuple[int, int] | None = None
    catalog: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        """Directory of the store."""
        return Path(self.store)


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="done"):
    """The answer that the image exists and its name is durable.

    Attributes:
        txid: The last edit in it.
        previous: Txid of the newest image before it that the worker has verified; None if there is none.
        bytes: Its size.
        written: Whether the worker wrote it; False if there was an image of this edit.
    """

    epoch: Epoch
    txid: Txid
    previous: Txid | None
    bytes: int
    written: bool


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="refused"):
    """The answer that there is no new image, with the class name, message and facts of the error."""

    epoch: Epoch
    error: str
    message: str
    where: dict[str, Any]


Answer = Done | Refused


def encode(message: Task | Answer) -> bytes:
    """Encode a message as one line."""
    return msgspec.json.encode(message)


def decode_task(line: str) -> Task:
    """Decode what :func:`encode` wrote; raises msgspec.DecodeError for anything else."""
    return _decode(line, Task)


def decode_answer(line: bytes) -> Answer:
    """Decode what :func:`encode` wrote; raises msgspec.DecodeError for anything else."""
    answer: Answer = _decode(line, Answer)
    return answer


def _decode(line: str | bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:  # of a worker that ended midway
        raise msgspec.DecodeError(str(error)) from error
