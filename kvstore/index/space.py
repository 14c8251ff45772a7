"""Space of an index: pages that are free, and which readers keep freed pages from being used again."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.disk.environment import Environment
from kvstore.disk.pages import free_pages


@dataclass(frozen=True, slots=True)
class IndexReader:
    """An open read transaction.

    Attributes:
        pid: Its process.
        commits: Number of commits since the one that it reads.
    """

    pid: int
    commits: int


@dataclass(frozen=True, slots=True)
class IndexSpace:
    """Space of an index.

    Attributes:
        bytes: Size of the file.
        free_bytes: Of that, pages that hold nothing; a compaction gives them back.
        held_bytes: Of these, pages that can't be used again before a reader ends.
        readers: Readers of earlier commits, the oldest first.
    """

    bytes: int
    free_bytes: int
    held_bytes: int
    readers: list[IndexReader]


@dataclass(frozen=True, slots=True)
class HeldIndex:
    """An index whose free pages can't be used because of a reader.

    Attributes:
        bytes, free_bytes, held_bytes: See :class:`IndexSpace`.
        pid: Process of the oldest reader.
        commits: Number of commits since the one that it reads.
        since_ms: When its scan began, if this process is it; otherwise None: LMDB does not record it.
        process_since_ms: When its process began; None if that can't be seen. Its scan began later.
    """

    table: str
    bucket: int
    bytes: int
    free_bytes: int
    held_bytes: int
    pid: int
    commits: int
    since_ms: int | None
    process_since_ms: int | None


def space_of(environment: Environment) -> IndexSpace | None:
    """The space of an index; None if another file has replaced it, or it is committed to all the time.

    Raises:
        CorruptData: A page is damaged.
    """
    with environment.read() as transaction, environment.file() as descriptor:
        last = transaction.id()
        free = None if descriptor is None else free_pages(descriptor, last)
        if free is None:
            return None
        readers = sorted((txn, pid) for pid, txn in environment.readers() if txn < last)
        oldest = readers[0][0] if readers else last + 1
        page_bytes, file_bytes, freed = free
        return IndexSpace(
            file_bytes,
            page_bytes * sum(freed.values()),
            page_bytes * sum(count for by, count in freed.items() if by >= oldest),
            [IndexReader(pid, last - txn) for txn, pid in readers],
        )
