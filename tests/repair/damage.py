"""Damage to the files of a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files
from kvstore.index.index import Index

Damage = Callable[[Path, Random], None]


def files_of(store: Path) -> list[str]:
    """Names of all files with content, except locks and the quarantine."""
    found = (each.relative_to(store) for each in store.rglob("*") if each.is_file() and each.stat().st_size)
    named = (each for each in found if each.parts[0] != "lost" and each.name not in ("LOCK", "lock.mdb", "SHIPPING"))
    return sorted(map(str, named))


def flip(path: Path, random: Random) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def blank(path: Path, random: Random) -> None:
    """Overwrite a part with zeros."""
    data = bytearray(path.read_bytes())
    start = random.randrange(len(data))
    stop = min(len(data), start + 1 + random.randrange(600))
    data[start:stop] = bytes(stop - start)
    path.write_bytes(data)


def cut(path: Path, random: Random) -> None:
    """Truncate the file."""
    os.truncate(path, random.randrange(path.stat().st_size))


def delete(path: Path, random: Random) -> None:
    """Remove the file."""
    path.unlink()


KINDS: dict[str, Damage] = {"flip": flip, "blank": blank, "cut": cut, "delete": delete}


def spoil(path: Path, position: int, length: int = 8) -> None:
    """Flip every bit of some bytes."""
    data = bytearray(path.read_bytes())
    data[position : position + length] = bytes(byte ^ 255 for byte in data[position : position + length])
    path.write_bytes(data)


def lose_a_row(directory: Path) -> None:
    """Remove the first row of an index, so that all pages and checksums stay valid."""
    index = Index(open_environment(directory, Files(), map_bytes=1 << 28))
    with index.view() as view:
        state, bounds = view.state(), view.bounds()
    assert bounds is not None
    index.put([bounds[0]], [b""])
    index.commit(state)
    index.close()
