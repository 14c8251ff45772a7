"""A disk whose power can be cut: a file system in a file, mounted through a loop device, which a call shuts down.

``EXT4_IOC_SHUTDOWN`` (XFS knows the same call) ends a file system at once: what is not on the disk by then never gets
there, and its journal is not flushed. The next mount replays the journal, as after a power cut.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_SHUTDOWN = 0x8004587D
_WITHOUT_THE_JOURNAL = struct.pack("I", 2)
_BUSY_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Kind:
    """A file system.

    Attributes:
        mounts: Options to mount it with, in turn.
    """

    name: str
    bytes: int
    make: tuple[str, ...]
    mounts: tuple[str, ...]


EXT4 = Kind(
    "ext4",
    64 << 20,
    ("mkfs.ext4", "-q", "-F", "-b", "4096"),
    ("", "commit=1", "commit=1000", "noauto_da_alloc", "data=writeback"),
)
XFS = Kind("xfs", 320 << 20, ("mkfs.xfs", "-q", "-f"), ("", "logbufs=2,logbsize=32k", "wsync"))
KINDS = (EXT4, XFS)


class NotPossible(Exception):
    """No power can be cut on this machine; the message says why."""


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise NotPossible(f"{' '.join(command)}: {error.stderr.strip()}") from error


class Disk:
    """One file system; a context manager. It is mounted in :attr:`path` but while it is off."""

    def __init__(self, kind: Kind, work: Path) -> None:
        self.kind = kind
        self.path = work / f"disk-{kind.name}"
        self._image = work / f"{kind.name}.image"
        self._mounted = False
        self._mounts = 0

    def __enter__(self) -> Self:
        if os.geteuid():
            raise NotPossible("only root may mount a file system")
        if shutil.which(self.kind.make[0]) is None:
            raise NotPossible(f"there is no {self.kind.make[0]}")
        self._image.touch()
        os.truncate(self._image, self.kind.bytes)
        _run(*self.kind.make, str(self._image))
        self.path.mkdir()
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)
        self._image.unlink(missing_ok=True)

    @property
    def options(self) -> str:
        """Those it is mounted with."""
        return self.kind.mounts[(self._mounts - 1) % len(self.kind.mounts)]

    def mount(self) -> None:
        """Switch it on, with the next options; its journal is replayed."""
        self._mounts += 1
        options = ",".join(each for each in ("loop", self.options) if each)
        _run("mount", "-t", self.kind.name, "-o", options, str(self._image), str(self.path))
        self._mounted = True

    def cut(self) -> None:
        """Cut its power: nothing reaches the disk any more. It stays mounted, and refuses everything."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_THE_JOURNAL)
        except OSError as error:
            raise NotPossible(f"{self.kind.name} can't be shut down: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        """Detach it; no process uses it any more."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                _run("umount", str(self.path))
                break
            except NotPossible:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._mounted = False
