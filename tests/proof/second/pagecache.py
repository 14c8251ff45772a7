"""Files as a page cache holds them above a disk, and what a kill or a power cut may leave of them.

* A disk takes sectors or pages one by one, in any order, each as it was at some time since the last sync. So of each
  one it has what the first so many writes made of it.
* The length of a file gets there when it likes; what is missing within it is zeros.
* A name gets there when it likes, too; a rename whole or not at all. A sync of a directory brings its names so far.
* A sync of a file brings its bytes and its length, and no name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.proof.second.supervisor import ROOT, Event, Names, Node, Size, Sync, SyncRange, Write

SECTOR, PAGE = 512, 4096
Image = dict[str, bytes | None]
"""What a disk holds, by path; None for a directory."""


@dataclass(slots=True)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    waiting: list[Write | Size] = field(default_factory=list)

    def seen(self) -> bytes:
        """As processes read it."""
        if not self.waiting:
            return bytes(self.durable)
        content = bytearray(self.durable)
        for change in self.waiting:
            _apply(content, change)
        return bytes(content)

    def sync(self) -> None:
        for change in self.waiting:
            _apply(self.durable, change)
        self.waiting.clear()

    def sync_range(self, start: int, end: int) -> None:
        content = self.seen()
        if len(self.durable) < end:
            self.durable.extend(bytes(end - len(self.durable)))
        self.durable[start:end] = content[start:end]
        self.waiting = [piece for change in self.waiting for piece in _without(change, start, end)]

    def lengths(self) -> list[int]:
        """Those it had since the last sync."""
        found = [len(self.durable)]
        for change in self.waiting:
            end = change.bytes if isinstance(change, Size) else max(found[-1], change.position + len(change.data))
            found.append(end)
        return found

    def left(self, random: Random) -> bytes:
        """What may be on the disk."""
        if not self.waiting:
            return bytes(self.durable)
        unit = random.choice((SECTOR, PAGE))
        steps, likely = len(self.waiting), random.choice((0.1, 0.5, 0.9))
        lengths = self.lengths()
        size = max(lengths)
        content = self.durable + bytes(size - len(self.durable))
        counts: dict[int, int] = {}
        for step, change in enumerate(self.waiting):
            start, end = (
                (change.bytes, size)
                if isinstance(change, Size)
                else (change.position, change.position + len(change.data))
            )
            for number in range(start // unit, -(-end // unit)):
                if number not in counts:
                    whole = random.random() < likely
                    counts[number] = steps if whole else random.choice((0, random.randint(0, steps)))
                if step < counts[number]:
                    low, high = max(start, number * unit), min(end, (number + 1) * unit)
                    data = None if isinstance(change, Size) else change.data[low - start : high - start]
                    content[low:high] = bytes(max(0, high - low)) if data is None else data
        return bytes(content[: random.choice((lengths[-1], random.choice(lengths)))])


def _apply(content: bytearray, change: Write | Size) -> None:
    if isinstance(change, Size):
        del content[change.bytes :]
        content.extend(bytes(change.bytes - len(content)))
        return
    if len(content) < change.position:
        content.extend(bytes(change.position - len(content)))
    content[change.position : change.position + len(change.data)] = change.data


def _without(change: Write | Size, start: int, end: int) -> Iterator[Write | Size]:
    """What of a change is outside of a range."""
    if isinstance(change, Size):
        yield change
        return
    position, data = change.position, change.data
    if before := data[: max(0, start - position)]:
        yield change._replace(data=before)
    if position + len(data) > end:
        skip = max(0, end - position)
        yield change._replace(position=position + skip, data=data[skip:])


@dataclass(slots=True)
class _Naming:
    """A change of names, and the directories that were not synced since."""

    changes: Sequence[tuple[int, str, int | None]]
    waits_for: set[int]


class PageCache:
    """Takes events, and knows at any time what a crash may leave."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._durable: dict[int, dict[str, int]] = {ROOT: {}}
        self._naming: list[_Naming] = []

    def apply(self, event: Event) -> None:
        match event:
            case Node(id, is_directory):
                if is_directory:
                    self._durable[id] = {}
                else:
                    self._files[id] = _File()
            case Names(changes):
                self._naming.append(_Naming(changes, {directory for directory, _, _ in changes}))
            case Write(node) | Size(node):
                self._files[node].waiting.append(event)
            case SyncRange(node, start, end):
                self._files[node].sync_range(start, end)
            case Sync(node) if node in self._files:
                self._files[node].sync()
            case Sync(node):
                for naming in self._naming:
                    naming.waits_for.discard(node)
                while self._naming and not self._naming[0].waits_for:
                    _rename(self._durable, self._naming.pop(0))

    def waits(self) -> bool:
        """Whether anything is not durable."""
        return bool(self._naming) or any(file.waiting for file in self._files.values())

    def killed(self) -> Image:
        """All that was written."""
        return self._image(self._naming, {id: file.seen() for id, file in self._files.items()})

    def lost(self) -> Image:
        """Only what is durable."""
        return self._image([], {id: bytes(file.durable) for id, file in self._files.items()})

    def left(self, random: Random) -> Image:
        """Something in between."""
        how = random.random()
        if how < 0.3:
            kept = self._naming[: random.randint(0, len(self._naming))]
        else:
            likely = random.choice((0.0, 0.2, 0.5, 0.8, 1.0))
            kept = [naming for naming in self._naming if random.random() < likely]
        likely = random.choice((0.0, 0.3, 1.0))
        return self._image(
            kept,
            {
                id: file.left(random) if random.random() < likely else random.choice((file.durable, file.seen()))
                for id, file in self._files.items()
            },
        )

    def _image(self, kept: list[_Naming], contents: dict[int, bytes | bytearray]) -> Image:
        names = {directory: dict(entries) for directory, entries in self._durable.items()}
        chosen = set(map(id, kept))
        for naming in self._naming:
            if not naming.waits_for or id(naming) in chosen:
                _rename(names, naming)
        image: Image = {}
        paths = [("", ROOT)]
        while paths:
            path, node = paths.pop()
            for name, found in names[node].items():
                if found in self._files:
                    image[path + name] = bytes(contents[found])
                else:
                    image[path + name] = None
                    paths.append((f"{path}{name}/", found))
        return image


def _rename(names: dict[int, dict[str, int]], naming: _Naming) -> None:
    for directory, name, node in naming.changes:
        if node is None:
            names[directory].pop(name, None)
        else:
            names[directory][name] = node


def put(image: Image, directory: Path) -> None:
    """Write an image into an empty directory."""
    for path in sorted(image):
        content = image[path]
        if content is None:
            os.mkdir(directory / path, 0o700)
        else:
            descriptor = os.open(directory / path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(descriptor, content)
            os.close(descriptor)
