"""Puts the objects of a replica that is a directory, where obstore would create them as the umask allows.

* Files have mode 0600 and directories 0700 from the moment they are there, whatever the umask.
* An object is written under a temporary name and then gets its own. That name ends with ``#`` and digits, as obstore's
  do, which it does not list: what dies leaves nothing but such a file.
* Nothing is synced: a power cut may take the newest objects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvstore.errors import InvalidRequest
from kvstore.files import Files

_NAME = re.compile(r"(?!\.\.?(/|$))[A-Za-z0-9_.-]+(/(?!\.\.?(/|$))[A-Za-z0-9_.-]+)*")
_FILES = Files()


def make(directory: Path) -> None:
    """Create a directory, and those it is in, if they are not there. One that is there keeps its mode.

    Raises:
        OSError: It can't be created.
    """
    for each in (*reversed(directory.parents), directory):
        _make_one(each)


def create(directory: Path, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
    """Put an object, unless there is one of that name: then the answer is False.

    Raises:
        InvalidRequest: No object can have that name.
        OSError: The directory is gone, or the disk refuses. There is no such object.
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
    """Put an object in place of whatever has that name.

    Raises:
        InvalidRequest: No object can have that name.
        OSError: The directory is gone, or the disk refuses. What had the name still has it.
    """
    with _written(directory, name, pieces) as (temporary, path):
        try:
            _FILES.rename(temporary, path)
        except OSError:
            _FILES.remove(temporary)
            raise


@contextmanager
def _written(directory: Path, name: str, pieces: Sequence[bytes | memoryview]) -> Iterator[tuple[Path, Path]]:
    """A file with these bytes under a temporary name, and the path of the object."""
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest("No object can have this name.", object=ascii(name))
    path = directory / name
    for each in reversed(path.relative_to(directory).parents[:-1]):
        _make_one(directory / each)
    temporary = path.with_name(f"{path.name}#{int.from_bytes(os.urandom(7), 'big')}")
    descriptor = _FILES.open(temporary, create=True)
    try:
        os.fchmod(descriptor, 0o600)  # the umask may have taken rights of the owner
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
    os.chmod(directory, 0o700)  # the umask may have taken rights of the owner
