"""Lets a copy elsewhere make an image of the catalog if the store itself has too little memory for it.

* Task, answer and image go through the replica: store and copy have no other connection.
* Every byte of the image is verified before the store uses it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from kvstore.checkpoint.messages import Answer, Done, Refused, Task, decode_answer, decode_task, encode
from kvstore.checkpoint.worker import image_lock
from kvstore.clock import Clock
from kvstore.disk.files import Files, read_file, refusals
from kvstore.errors import CorruptData, StoreError, Unavailable
from kvstore.meta import image
from kvstore.meta.state import CatalogState
from kvstore.replica.client import Client
from logformat import paths
from logformat.catalog.image import IMAGE_BYTES_MAX, Leader
from logformat.ids import Txid
from logformat.replica import follower_status
from logformat.replica.follower_status import (
    MESSAGE_BYTES_MAX,
    STATUS_BYTES_MAX,
    FollowerStatus,
    answer_name,
    image_name,
    task_name,
)

FRESH_SECONDS = 180
"""A copy without a new status for so long may be gone."""
LOOK_SECONDS = 0.5


def followers(client: Client) -> Iterator[FollowerStatus]:
    """The last status of each copy that follows a replica.

    Raises:
        Unavailable: The replica can't be reached.
    """
    for name, _ in list(client.list(follower_status.PREFIX)):
        with suppress(FileNotFoundError, CorruptData):
            yield follower_status.decode(bytes(client.get(name, bytes_max=STATUS_BYTES_MAX)))


def chosen(statuses: Iterable[FollowerStatus], now_ms: int) -> FollowerStatus | None:
    """The copy that should make an image: the one with the most memory of those that can, by a recent status."""
    able = [each for each in statuses if each.obstacle is None and now_ms - each.as_of_ms < 1000 * FRESH_SECONDS]
    return max(able, key=lambda each: (each.free_bytes or 0, each.name), default=None)


class ElsewhereWorker:
    """A copy that makes an image on request; see :class:`kvstore.checkpoint.process.Running`.

    Args:
        name: Name of the copy.
        leader: The leader whose catalog the image must have.

    Raises:
        Unavailable: The replica can't be reached.
    """

    def __init__(self, task: Task, client: Client, name: str, leader: Leader, files: Files) -> None:
        self._task = task
        self._leader = leader
        self._client = client
        self._name = name
        self._files = files
        self._cancelled = threading.Event()
        client.delete(answer_name(name))  # of an earlier task of the same epoch
        client.replace(task_name(name), [encode(task)])

    def answer(self, seconds: float) -> Answer:
        """Wait for the answer, and store the image.

        Raises:
            Unavailable: The copy did not answer in time, has nothing newer, or the replica can't be reached.
            CorruptData: The answer is damaged, or the image is damaged or of another store.
            StoreFull, LogFailed: The disk is full or failed.
        """
        try:
            for _ in range(int(seconds / LOOK_SECONDS)):
                with suppress(FileNotFoundError):
                    found = decode_answer(bytes(self._client.get(answer_name(self._name), bytes_max=MESSAGE_BYTES_MAX)))
                    if found.epoch == self._task.epoch:
                        return found if isinstance(found, Refused) else self._stored_image()
                if self._cancelled.wait(LOOK_SECONDS):
                    break
        except msgspec.DecodeError as error:
            raise CorruptData("The answer of a copy can't be decoded.", copy=self._name) from error
        raise Unavailable("The copy that should make an image of the catalog did not answer in time.", copy=self._name)

    def kill(self) -> None:
        """Stop waiting for the answer."""
        self._cancelled.set()

    def _stored_image(self) -> Done:
        directory = self._task.path / paths.IMAGES
        with refusals(directory):
            self._files.make_directory(directory)
            with image_lock(directory, self._files):
                unfinished = directory / paths.UNFINISHED_IMAGE
                with suppress(FileNotFoundError):
                    self._files.remove(unfinished)
                made = self._client.get(image_name(self._name), bytes_max=IMAGE_BYTES_MAX)
                self._files.publish(unfinished, bytes(made))
                head = image.verify(unfinished, self._task.store_id)
                newest = next(iter(image.txids(directory)), Txid(0))
                if head.leader != self._leader or not newest < head.txid <= self._task.txid:
                    raise Unavailable("The copy has nothing newer yet; try again.", copy=self._name, txid=head.txid)
                path = paths.image_file(directory, head.txid)
                self._files.rename(unfinished, path)
                self._files.sync_directory(directory)
            previous = next(filter(self._is_right, image.txids(directory)[1:]), None)
            return Done(
                epoch=self._task.epoch, txid=head.txid, previous=previous, bytes=path.stat().st_size, written=True
            )

    def _is_right(self, txid: Txid) -> bool:
        try:
            image.verify(paths.image_file(self._task.path / paths.IMAGES, txid), self._task.store_id)
        except (CorruptData, FileNotFoundError):
            return False
        return True


def look_for_task(client: Client, name: str, path: Path, state: CatalogState, files: Files, clock: Clock) -> bool:
    """Make an image if the leader has asked a copy for one; returns whether it has.

    Args:
        name: Name of the copy.
        path: Directory of the copy.
        state: Catalog of the copy.

    Raises:
        Unavailable: The replica can't be reached.
    """
    try:
        task = decode_task(bytes(client.get(task_name(name), bytes_max=MESSAGE_BYTES_MAX)).decode())
    except FileNotFoundError:
        return False
    except (msgspec.DecodeError, UnicodeDecodeError, CorruptData):
        client.delete(task_name(name))
        return False
    answer: Answer
    try:
        made = image.image_of(state, task.store_id, epoch=task.epoch, now_ms=clock.now_ms())
        unfinished = path / paths.IMAGES / (paths.UNFINISHED_IMAGE + paths.TEMPORARY)
        with refusals(path):
            with suppress(FileNotFoundError):
                files.remove(unfinished)
            image.save(unfinished, made, files)
            data = read_file(unfinished, bytes_max=IMAGE_BYTES_MAX)
            files.remove(unfinished)
        client.replace(image_name(name), [data])
        answer = Done(epoch=task.epoch, txid=state.txid, previous=None, bytes=len(data), written=True)
    except StoreError as error:
        where = {name: str(fact) for name, fact in error.where.items()}
        answer = Refused(epoch=task.epoch, error=type(error).__name__, message=error.message, where=where)
    client.replace(answer_name(name), [encode(answer)])
    client.delete(task_name(name))
    return True
