"""Where an export goes: a file that is there as a whole or not at all, or standard output."""

from __future__ import annotations

import io
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast
from uuid import uuid4

from kvstore.cli.printing import StandardOutput
from kvstore.disk.files import Files, refusal, resolved
from kvstore.errors import InvalidRequest
from logformat.paths import TEMPORARY

_ESCAPED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Characters that a terminal may interpret, but for ends of lines and tabs."""


class _Sink(io.RawIOBase):
    """Passes bytes on until the export ends: what a format writes after a failure must not make a part look whole."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = 0
        self.ended = False

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        piece = memoryview(data)  # type: ignore[arg-type] # any buffer
        if not self.ended:
            self._file.write(piece)
        self._size += piece.nbytes
        return piece.nbytes

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        if not self.ended:
            self._file.flush()


class _Terminal(io.RawIOBase):
    """Text on a terminal, with every character escaped that it may interpret."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: object, /) -> int:
        piece = memoryview(data)  # type: ignore[arg-type] # any buffer
        text = self._decoder.decode(bytes(piece))
        shown = _ESCAPED.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
        self._file.write(shown.encode())
        return piece.nbytes

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def standard_output() -> Iterator[BinaryIO]:
    """Standard output; on a terminal, characters that do not print are escaped."""
    out = cast(BinaryIO, StandardOutput())
    with _while_whole(cast(BinaryIO, _Terminal(out)) if sys.stdout.isatty() else out) as sink:
        yield sink
        sink.flush()


@contextmanager
def replaced(path: Path, files: Files) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when the block ends; if it fails, ``path`` is as before.

    The name of the unfinished file begins with a dot, so no job loads it.

    Raises:
        InvalidRequest: There can't be such a file.
        NotAStore: The symbolic links of the path form a loop.
        StoreFull, LogFailed: The disk is full or failed.
    """
    path = resolved(path)
    if path.exists() and not path.is_file():
        raise InvalidRequest("Only a regular file can be replaced; leave --to out for standard output.", path=path)
    unfinished = path.with_name(f".{path.name}.{uuid4().hex[:8]}{TEMPORARY}")
    try:
        opened = unfinished.open("xb")
    except OSError as error:
        raise InvalidRequest(
            "There can't be a file here; check the directory.", path=path, reason=error.strerror
        ) from error
    try:
        with opened:
            with _while_whole(opened) as sink:
                yield sink
            opened.flush()
            files.sync(opened.fileno())
            files.rename(unfinished, path)
            files.sync_directory(path.parent)
    except OSError as error:  # also of the flush when a file is closed that could not be written
        raise refusal(error, path) from error
    finally:
        with suppress(FileNotFoundError):
            files.remove(unfinished)


@contextmanager
def _while_whole(file: BinaryIO) -> Iterator[BinaryIO]:
    sink = _Sink(file)
    try:
        yield cast(BinaryIO, sink)
    finally:
        sink.ended = True
