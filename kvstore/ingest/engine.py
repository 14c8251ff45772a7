"""What reads the files of a task: here, several at a time. Another engine gives the same, in the same order."""

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
        """What each file holds, in their order; raises what the reader raises."""


class EmbeddedEngine:
    """Reads them in threads of this process."""

    def read(self, reader: FileReader, files: Sequence[SourceFile]) -> Iterator[FileRows]:
        """See :class:`Engine`."""
        count = min(os.cpu_count() or 1, _THREADS_MAX)
        reads: deque[Future[FileRows]] = deque()
        with ThreadPoolExecutor(count, "kvstore-ingest") as threads:
            try:
                for file in files:
                    if len(reads) == 2 * count:  # whoever takes them may have enough, and then no more are in memory
                        yield reads.popleft().result()
                    reads.append(threads.submit(reader, file))
                while reads:
                    yield reads.popleft().result()
            finally:
                for read in reads:
                    read.cancel()
