"""Engines read the files of a task; all engines give the same rows in the same order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from kvstore.ingest.reading import FileReader, FileRows
from logformat.catalog.jobs import SourceFile

_THREADS_MAX = 8


class Engine(Protocol):
    """Reads files."""

    def read(self, reader: FileReader, files: Sequence[SourceFile]) -> Iterator[FileRows]:
        """Rows of each file, in the order of the files; raises what the reader raises."""


class EmbeddedEngine:
    """Reads several files at a time, in threads of this process."""

    def read(self, reader: FileReader, files: Sequence[SourceFile]) -> Iterator[FileRows]:
        """See :class:`Engine`."""
        count = min(os.cpu_count() or 1, _THREADS_MAX)
        reads: deque[Future[FileRows]] = deque()
        with ThreadPoolExecutor(count, "kvstore-ingest") as threads:
            try:
                for file in files:
                    if len(reads) == 2 * count:  # limits memory: the caller may stop early
                        yield reads.popleft().result()
                    reads.append(threads.submit(reader, file))
                while reads:
                    yield reads.popleft().result()
            finally:
                for read in reads:
                    read.cancel()
