"""The published end of a log: its writer says how far it can't be lost, and other processes read so far.

* The record never says more than what was synced before, or belongs to a commit that is decided. It is not synced
  itself, so it may say less once the machine was started again.
* A bucket that was closed has a void record, unless its index lacks something that the log has.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from kvstore.disk.files import Files
from kvstore.log.segments import LogIdentity
from logformat import paths
from logformat.ids import Offset
from logformat.log.published_end import RECORD_BYTES, VOID, PublishedEnd, decode, encoder

_LOOKS = 100
"""How often a record that is no record is read: it may be being written, by a process that waits for a processor."""


class EndPublisher:
    """Publishes the end of a log, for its one writer.

    A disk that refuses the file refuses nothing else: other processes see changes later then.

    Args:
        bucket: Directory of the bucket.
    """

    def __init__(self, bucket: Path, identity: LogIdentity, files: Files) -> None:
        self._descriptor = -1
        self._encode = encoder(
            PublishedEnd(identity.table_id, identity.bucket_id, identity.store_id, uuid4(), Offset(0))
        )
        with suppress(OSError):
            self._descriptor = files.open_name(bucket / paths.PUBLISHED_FILE, os.O_RDWR | os.O_CREAT)

    def publish(self, offset: Offset) -> None:
        """Say that no change before an offset can be lost."""
        self._write(self._encode(offset))

    def close(self, *, voids: bool) -> None:
        """Close the file.

        Args:
            voids: Whether the index has all of the log, so that nothing has to say how far that is to be read. Else the
                record stays, as that of a process that died.
        """
        if voids:
            self._write(VOID)
        descriptor, self._descriptor = self._descriptor, -1  # first: an interrupted close is not done twice
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, data: bytes) -> None:
        if self._descriptor < 0:
            return
        try:  # `suppress` takes as long as the write
            os.pwrite(self._descriptor, data, 0)
        except OSError:
            return


class EndReader:
    """Reads the published end of a log that another process may be writing.

    Args:
        bucket: Directory of the bucket.
    """

    def __init__(self, bucket: Path, identity: LogIdentity, files: Files) -> None:
        self._path = bucket / paths.PUBLISHED_FILE
        self._identity = identity
        self._files = files
        self._descriptor = -1
        self._data = b""
        self._known: PublishedEnd | None = None

    def read(self) -> PublishedEnd | None:
        """The record; None if no process that publishes writes the log, or has died while it did.

        It is the same object for as long as the file is the same.
        """
        data = self._read()
        if data != self._data:
            self._known, self._data = self._decoded(data), data
        return self._known

    def is_as_read(self) -> bool:
        """Whether the record is still the one that was read last; cheaper than to read it, for each ``get`` asks."""
        if self._descriptor < 0:
            return self._read() == self._data
        try:
            return os.pread(self._descriptor, RECORD_BYTES, 0) == self._data
        except OSError:
            return False

    def close(self) -> None:
        """Close the file until it is read again."""
        descriptor, self._descriptor = self._descriptor, -1  # first: an interrupted close is not done twice
        if descriptor >= 0:
            os.close(descriptor)

    def _read(self) -> bytes:
        if self._descriptor < 0:
            try:
                self._descriptor = self._files.open_name(self._path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                return b""
        try:
            return os.pread(self._descriptor, RECORD_BYTES, 0)
        except OSError:  # it is no file
            return b""

    def _decoded(self, data: bytes) -> PublishedEnd | None:
        for _ in range(_LOOKS):
            end = decode(data)
            if end is not None or data in (b"", VOID):
                break
            data = self._read()  # it was being written
        if end is None:
            return None
        is_own = LogIdentity(end.store_id, end.table_id, end.bucket_id) == self._identity
        return end if is_own else None
