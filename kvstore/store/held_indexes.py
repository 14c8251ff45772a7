"""Indexes that grow because a reader holds their free pages: an open scan, of any process."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.errors import CorruptData
from kvstore.index.space import HeldIndex
from kvstore.meta.state import TableDefinition
from kvstore.table.open_table import OpenTable
from logformat import paths
from logformat.ids import BucketId

LOOK_BYTES = 16 << 20
"""Size of an index from which it is looked at; so many held bytes are worth a warning."""


def held_indexes(
    store: Path, tables: Iterable[TableDefinition], opened: Callable[[TableDefinition], OpenTable]
) -> Iterator[HeldIndex]:
    """Large indexes with pages that a reader holds. Small ones are not opened.

    Args:
        opened: Returns the open table of a definition.
    """
    for table in tables:
        for bucket in map(BucketId, range(table.buckets)):
            data = paths.bucket_directory(store, table.id, bucket) / f"{paths.INDEX}/{LMDB_FILES[0]}"
            with suppress(CorruptData, FileNotFoundError):  # `kvstore check` reports what is damaged or missing
                if data.stat().st_size >= LOOK_BYTES:
                    yield from _held(table, bucket, opened(table))


def _held(table: TableDefinition, bucket: BucketId, opened: OpenTable) -> Iterator[HeldIndex]:
    handle = opened.handles[bucket]
    space = handle.space()
    if space is None or not space.readers or not space.held_bytes:
        return
    oldest = space.readers[0]
    yield HeldIndex(
        table=table.name,
        bucket=bucket,
        bytes=space.bytes,
        free_bytes=space.free_bytes,
        held_bytes=space.held_bytes,
        pid=oldest.pid,
        commits=oldest.commits,
        since_ms=handle.scans_since_ms if oldest.pid == os.getpid() else None,
        process_since_ms=_began_ms(oldest.pid),
    )


def warning_of(held: HeldIndex) -> str | None:
    """What to do about it; None if few bytes are held."""
    if held.held_bytes < LOOK_BYTES:
        return None
    if held.since_ms is not None:
        since = f"since {_text(held.since_ms)}"
    elif held.process_since_ms is not None:
        since = f"which began at {_text(held.process_since_ms)}"
    else:
        since = "which can't be seen from here"
    return (
        f"The index of {held.table}/{held.bucket} has {held.bytes} bytes; a scan of process {held.pid}, {since}, holds"
        f" {held.held_bytes} of them, and has seen none of the last {held.commits} commits. End it; then"
        " `kvstore compact` makes the file small again."
    )


def _text(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _began_ms(pid: int) -> int | None:
    """When a process of this machine began; None if the system does not say."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        (boot,) = [line.split()[1] for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime ")]
        return 1000 * int(boot) + 1000 * int(after_name[19]) // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
