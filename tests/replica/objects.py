"""A replica's objects in memory, which can be lost and damaged, and a client that fails at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import kvstore
from kvstore.disk.files import Files
from kvstore.errors import Unavailable
from kvstore.meta import image
from kvstore.replica.client import Client, check_size
from kvstore.replica.read.restore import Restore, Restored, Target
from kvstore.replica.replica import Replica
from logformat import paths
from logformat.ids import Epoch
from logformat.replica.object_file import ObjectName, parse_name
from tests.support.clocks import SetClock

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])


class Objects:
    """A :class:`kvstore.replica.client.Client` in memory."""

    def __init__(self, held: dict[str, bytes] | None = None) -> None:
        self.held = held if held is not None else {}
        self.modified: dict[str, int] = {}

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        yield from [(name, len(data)) for name, data in self.held.items() if name.startswith(prefix) and name > after]

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        if name not in self.held:
            raise FileNotFoundError(name)
        check_size(name, len(self.held[name]), bytes_max)
        return memoryview(self.held[name])

    def get_first(self, name: str, count: int) -> memoryview:
        if name not in self.held:
            raise FileNotFoundError(name)
        return memoryview(self.held[name])[:count]

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        if name in self.held:
            return False
        self.held[name] = b"".join(pieces)
        return True

    def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
        self.held[name] = b"".join(pieces)

    def delete(self, name: str) -> None:
        self.held.pop(name, None)

    def modified_ms(self, name: str) -> int:
        return self.modified.get(name, 0)

    @property
    def names(self) -> list[ObjectName]:
        """Names of the objects of streams."""
        return sorted(name for name in map(parse_name, self.held) if name is not None)


class Faulty:
    """A place that drops requests, fails after it has done what was asked, and stops in the middle of listings."""

    def __init__(self, objects: Objects, random: Random, share: float = 0.3) -> None:
        self._objects = objects
        self._random = random
        self.share = share

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        for each in self._objects.list(prefix, after):
            self._fails()
            yield each

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        with self._maybe():
            return self._objects.get(name, bytes_max=bytes_max)

    def get_first(self, name: str, count: int) -> memoryview:
        with self._maybe():
            return self._objects.get_first(name, count)

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        with self._maybe():
            return self._objects.create(name, pieces)

    def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
        with self._maybe():
            self._objects.replace(name, pieces)

    def delete(self, name: str) -> None:
        with self._maybe():
            self._objects.delete(name)

    def modified_ms(self, name: str) -> int:
        with self._maybe():
            return self._objects.modified_ms(name)

    @contextmanager
    def _maybe(self) -> Iterator[None]:
        self._fails()  # before it was done
        yield
        self._fails()  # after

    def _fails(self) -> None:
        if self._random.random() < self.share:
            raise Unavailable("no")


def replica_of(store: kvstore.Store, client: Client, name: str = "r") -> Replica:
    """A replica of a store, with a client of the test."""
    if name not in store.replicas:
        store.add_replica((store.path.parent / f"place of {name}").as_uri(), name)
    return Replica(store.runtime, name, lambda: None, lambda _: client)


def restored(client: Client, path: Path, target: Target = None) -> Restored:
    return Restore(client, Files(), SetClock(), lambda _: None).run(path, target)


def save_image(store: kvstore.Store, now_ms: int) -> None:
    """Make an image of the catalog, as the checkpoint worker does, but at a time that the test gives."""
    runtime = store.runtime
    state, images = runtime.catalog(), store.path / paths.IMAGES
    images.mkdir(exist_ok=True)
    made = image.image_of(state, runtime.store_id, epoch=Epoch(state.txid), now_ms=now_ms)
    image.save(paths.image_file(images, state.txid), made, Files())


def changes_of(table: kvstore.Table) -> list[dict[str, Any]]:
    return [row for batch in table.changelog() for row in batch.to_pylist()]
