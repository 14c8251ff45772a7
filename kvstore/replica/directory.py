"""Writes objects of a replica in a directory with restricted modes; obstore would apply the umask.

* Files have mode 0600 and directories 0700 from their creation, whatever the umask.
* An object is written under a temporary name and then renamed. The temporary name ends with ``#`` and digits, like
  those of obstore, which does not list such names. A process that dies leaves at most such a file.
* Nothing is synced: a power cut may remove the newest objects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvstore.disk.files import Files
from kvstore.errors import InvalidRequest

_NAME = re.compile(r"(?!\.\.?(/|$))[A-Za-z0-9_.-]+(/(?!\.\.?(/|$))[A-Za-z0-9_.-]+)*")
_FILES = Files()


def make(directory: Path) -> None:
    """Create a directory and its parents, if they do not exist. Existing directories keep their modes.

    Raises:
        OSError: The directory can't be created.
    """
    for each in (*reversed(directory.parents), directory):
        _make_one(each)


def create(directory: Path, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
    """Create an object and return True; if there is one of this name, return False.

    Raises:
        InvalidRequest: The name is not valid.
        OSError: The directory is gone, or the disk is full or failed. The object does not exist.
    """
    with _written(directory, name, pieces) as (temporary, path):
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            _FILES.remove(temporary)
    return True


def replace(directory: Path, name: str, pieces: Sequence[bytes | memoryview]) -> None:
    """Create an object, or replace the one of this name.

    Raises:
        InvalidRequest: The name is not valid.
        OSError: The directory is gone, or the disk is full or failed. The earlier object is unchanged.
    """
    with _written(directory, name, pieces) as (temporary, path):
        try:
            _FILES.rename(temporary, path)
        except OSError:
            _FILES.remove(temporary)
            raise


@contextmanager
def _written(directory: Path, name: str, pieces: Sequence[bytes | memoryview]) -> Iterator[tuple[Path, Path]]:
    """Write the bytes under a temporary name; yields the temporary path and the path of the object."""
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest("This is not a valid name of an object.", object=ascii(name))
    path = directory / name
    for each in reversed(path.relative_to(directory).parents[:-1]):
        _make_one(directory / each)
    temporary = path.with_name(f"{path.name}#{int.from_bytes(os.urandom(7), 'big')}")
    descriptor = _FILES.open(temporary, create=True)
    try:
        os.fchmod(descriptor, 0o600)  # the umask may have removed rights of the owner
        _FILES.write(descriptor, [memoryview(piece).cast("B") for piece in pieces], 0)
    except OSError:
        _FILES.remove(temporary)
        raise
    finally:
        _FILES.close(descriptor)
    yield temporary, path


def _make_one(directory: Path) -> None:
    if directory.is_dir():
        return
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        return
    os.chmod(directory, 0o700)  # the umask may have removed rights of the owner
