"""States a disk may be in after a power cut at this moment.

* Bytes that overwrite others are torn at sectors, and a sector that was not written keeps what it held.
* Bytes after the old end may be cut anywhere, or be zeros.
* ``ext4``: changes of names get there in order, and so do the writes of one file. ``strict``: in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.crash.vfs import Contents, Cut, Directory, Disk, File, Mode, Write, apply, contents_of, rename

SECTOR = 512
ROT = "rot"


@dataclass(frozen=True, slots=True)
class State:
    """What a disk holds.

    Attributes:
        kind: ``kill`` (all that was written), ``durable`` (only what is), ``names`` and ``bytes`` (of what waits all of
            one and nothing of the other), ``prefix`` (in order up to somewhere, the last write torn), ``random``,
            ``rot`` (a durable byte changed).
    """

    mode: Mode | None
    kind: str
    contents: Contents

    def key(self) -> int:
        """The same for the same contents."""
        return hash(frozenset(self.contents.items()))


def states_of(disk: Disk, random: Random, *, draws: int) -> Iterator[State]:
    """Some states; ``draws`` random ones of each mode."""
    yield State(None, "kill", disk.seen())
    for mode, names in disk.names.items():
        yield _state(disk, mode, "durable", 0, _Durable())
        if names.waiting:
            yield _state(disk, mode, "names", len(names.waiting), _Durable())
        yield _state(disk, mode, "bytes", 0, _Seen())
    if not any(file.waiting for file in _files(disk)) and not any(names.waiting for names in disk.names.values()):
        return
    for _ in range(draws):
        yield _state(disk, "ext4", "prefix", random.randint(0, len(disk.names["ext4"].waiting)), _Prefix(random))
        yield _state(disk, "strict", "random", random, _Any(random))


def _state(disk: Disk, mode: Mode, kind: str, names_kept: int | Random, choice: _Durable) -> State:
    names = disk.names[mode]
    durable = {directory: dict(entries) for directory, entries in names.durable.items()}
    if isinstance(names_kept, int):
        kept = names.waiting[:names_kept]
    else:
        likely = names_kept.choice((0.2, 0.5, 0.8, 1.0))
        kept = [renaming for renaming in names.waiting if names_kept.random() < likely]
    rename(durable, kept)
    contents = contents_of(disk.root, lambda directory: durable.get(directory, {}), choice.bytes_of)
    return State(mode, kind, contents)


def _files(disk: Disk) -> Iterator[File]:
    seen = [*disk.root.names.values()]
    while seen:
        node = seen.pop()
        if isinstance(node, File):
            yield node
        elif isinstance(node, Directory):
            seen += node.names.values()


class _Durable:
    """Of each file only what is durable."""

    def bytes_of(self, file: File) -> bytes:
        return file.durable


class _Seen(_Durable):
    """Of each file all that waits too; but not what a failed sync lost."""

    def bytes_of(self, file: File) -> bytes:
        if not file.waiting:
            return file.durable
        image = bytearray(file.durable)
        for change in file.waiting:
            apply(image, change)
        return bytes(image)


class _Prefix(_Durable):
    """Of each file the first so many changes that wait, the last of them torn."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def bytes_of(self, file: File) -> bytes:
        if not file.waiting:
            return file.durable
        image = bytearray(file.durable)
        kept = self._random.randint(0, len(file.waiting))
        for number, change in enumerate(file.waiting[:kept], 1):
            _tear(image, change, self._random) if number == kept else apply(image, change)
        return bytes(image)


class _Any(_Durable):
    """Of each file any of the changes that wait, some of them torn, and perhaps a length that came before its bytes."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def bytes_of(self, file: File) -> bytes:
        if not file.waiting:
            return file.durable
        random, image = self._random, bytearray(file.durable)
        for change in file.waiting:
            chance = random.random()
            if chance < 0.45:
                apply(image, change)
            elif chance < 0.75:
                _tear(image, change, random)
        if random.random() < 0.3:
            image.extend(bytes(max(0, file.size - len(image))))
        return bytes(image)


def _tear(image: bytearray, change: Write | Cut, random: Random) -> None:
    """Apply a part of a change."""
    if isinstance(change, Cut) or not change.data:
        apply(image, change)
        return
    start, stop = change.position, change.position + len(change.data)
    end = len(image)
    for at in range(start - start % SECTOR, min(stop, end), SECTOR):
        low, high = max(at, start), min(at + SECTOR, stop, end)
        if low < high and random.random() < 0.5:
            image[low:high] = change.data[low - start : high - start]
    if stop <= end:
        return
    first = max(start, end)
    length = random.randint(0, stop - first)
    added = change.data[first - start : first - start + length]
    if random.random() < 0.5:
        # The length is there already, and of the bytes some sectors.
        keep = [added[at : at + SECTOR] if random.random() < 0.5 else b"" for at in range(0, length, SECTOR)]
        whole = b"".join(part.ljust(SECTOR, b"\0") for part in keep)
        added = whole[: stop - first].ljust(stop - first, b"\0")
    if added:
        apply(image, Write(first, added))
