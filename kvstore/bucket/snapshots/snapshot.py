"""Snapshots of a bucket: its index as of one offset, in files that anything can read (docs/format.md, Snapshot).

* A snapshot gets its name only once it is complete, durable, and read back: an invalid one under its name is damage.
* It is taken from one read transaction of committed data, so all of it is durable in the log.
* Nothing in a snapshot is trusted before the checksums of all its files are verified.
* Only the process that holds the bucket's lock takes and removes snapshots, and sweeps up unfinished ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import UNSET

from kvstore.bucket.snapshots.rows import EncodedRows, FileWriter, RowsWriter, read_rows
from kvstore.disk.address_space import mapped
from kvstore.disk.files import Files, names_in, open_file, read_file
from kvstore.errors import CorruptData, UnsupportedVersion
from kvstore.index.index import View
from kvstore.log.segments import LogEnd, LogFiles, LogIdentity
from kvstore.meta.state import TableDefinition
from logformat import paths
from logformat.checksum import crc32c
from logformat.ids import Offset, WriterId
from logformat.log.index_state import IndexState
from logformat.log.snapshot_manifest import (
    FORMAT,
    MANIFEST_BYTES_MAX,
    FileSum,
    Manifest,
    decode_manifest,
    decode_writers,
    encode_manifest,
    encode_writers,
)
from logformat.log.writer_entry import WriterEntry

KEPT = 2
"""Number of kept snapshots: the newest, and the one before in case that is damaged."""
ROWS_PER_GROUP = 1 << 16
_PIECE_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot whose manifest was read.

    Attributes:
        directory: Where its files are.
        manifest: What it is of.
    """

    directory: Path
    manifest: Manifest

    @property
    def offset(self) -> Offset:
        """Changes before it are in the snapshot, others are not."""
        return self.manifest.applied_offset

    @property
    def log_end(self) -> LogEnd:
        """Where the log had that offset; all before it was durable."""
        return LogEnd(self.manifest.log_base, self.manifest.log_position, self.manifest.applied_offset)

    @property
    def digest(self) -> int:
        """Digest of the rows, as in the state record."""
        return int(self.manifest.digest, 16)

    def state(self) -> IndexState:
        """State of an index with the content of the snapshot."""
        manifest = self.manifest
        return IndexState(
            manifest.table_id,
            manifest.bucket_id,
            applied_offset=manifest.applied_offset,
            synced_base=manifest.log_base,
            synced_position=manifest.log_position,
            synced_offset=manifest.applied_offset,
            row_count=manifest.row_count,
            digest=self.digest,
            last_timestamp=manifest.last_timestamp,
            next_count=manifest.next_count,
            uncounted_ms=manifest.times[0],
            back_offset=manifest.times[1],
        )

    def verify(self) -> None:
        """Verify the checksum of every file.

        Raises:
            CorruptData: One is damaged or missing.
        """
        for name in self.manifest.files:
            self._file(name)

    def writers(self) -> dict[WriterId, WriterEntry]:
        """Writers, each with its whole window.

        Raises:
            CorruptData: They are damaged.
        """
        return decode_writers(bytes(self._file(paths.SNAPSHOT_WRITERS)))

    def rows(self, definition: TableDefinition) -> Iterator[EncodedRows]:
        """Rows as an index holds them, some at a time, in key order.

        Raises:
            CorruptData: They are damaged, or differ from the manifest, which shows at their end.
        """
        yield from verified_rows(self.manifest, self._file(paths.SNAPSHOT_ROWS), definition)

    def _file(self, name: str) -> memoryview:
        path = self.directory / name
        expected = self.manifest.files[name]
        try:
            file = open_file(path)
        except OSError as error:
            raise CorruptData("A file of a snapshot is missing.", path=path, reason=error.strerror) from error
        with file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.bytes:
                raise CorruptData(
                    "A file of a snapshot has another size than its manifest says; run `kvstore repair`.",
                    path=path,
                    bytes=size,
                    expected=expected.bytes,
                )
            if _checksum(file.fileno(), size) != expected.crc32c:
                raise CorruptData("A file of a snapshot fails its checksum.", path=path)
            return mapped(file.fileno(), size, path)


def verified_rows(manifest: Manifest, data: memoryview, definition: TableDefinition) -> Iterator[EncodedRows]:
    """Rows as an index holds them, some at a time, in key order.

    Args:
        manifest: What tells of them.
        data: The file with them, whose checksum is right.

    Raises:
        CorruptData: They are damaged, or differ from the manifest, which shows at their end.
    """
    count = digest = 0
    for rows in read_rows(data, definition):
        count += len(rows.keys)
        digest += int(rows.hashes.sum(dtype=np.uint64))
        yield rows
    if not _matches(manifest, count, digest, definition):
        raise CorruptData("A snapshot has other rows than it says; run `kvstore check`.", rows=count)


def offsets(bucket: Path) -> list[Offset]:
    """Offsets of the snapshots that a bucket's directory lists, the newest first."""
    offsets_there = map(paths.snapshot_offset, names_in(bucket / paths.SNAPSHOTS))
    return sorted((offset for offset in offsets_there if offset is not None), reverse=True)


def read(bucket: Path, identity: LogIdentity, offset: Offset) -> Snapshot:
    """A snapshot by its offset; only the manifest is read.

    Raises:
        CorruptData: Its manifest is damaged or missing, or another one's.
    """
    directory = paths.snapshot_directory(bucket, offset)
    path = directory / paths.SNAPSHOT_MANIFEST
    try:
        manifest = decode_manifest(read_file(path, bytes_max=MANIFEST_BYTES_MAX))
    except OSError as error:
        raise CorruptData("The manifest of a snapshot is missing.", path=path, reason=error.strerror) from error
    except CorruptData as error:
        raise type(error)(error.message, **{**error.where, "path": path}) from error
    if LogIdentity(manifest.store_id, manifest.table_id, manifest.bucket_id) != identity or (
        manifest.applied_offset != offset or set(manifest.files) != {paths.SNAPSHOT_ROWS, paths.SNAPSHOT_WRITERS}
    ):
        raise CorruptData("A snapshot belongs elsewhere.", path=directory)
    return Snapshot(directory, manifest)


def readable(bucket: Path, identity: LogIdentity) -> Iterator[Snapshot]:
    """Snapshots with a valid manifest, the newest first."""
    for offset in offsets(bucket):
        with suppress(CorruptData):
            yield read(bucket, identity, offset)


def newest_valid(bucket: Path, identity: LogIdentity) -> Snapshot | None:
    """The newest snapshot with valid files."""
    for newest in readable(bucket, identity):
        with suppress(CorruptData):
            newest.verify()
            return newest
    return None


def sweep(bucket: Path, files: Files) -> None:
    """Remove unfinished snapshots, and those whose removal was not completed."""
    for stray in (bucket / paths.SNAPSHOTS).glob(f"*{paths.TEMPORARY}"):
        files.remove_tree(stray)


def take(
    bucket: Path,
    identity: LogIdentity,
    reading: Callable[[], AbstractContextManager[View]],
    current: Callable[[], TableDefinition],
    files: Files,
    *,
    now_ms: int,
    step: Callable[[], None] = lambda: None,
) -> Snapshot:
    """Take a snapshot of a view; an existing valid one of the same offset is returned instead.

    Args:
        reading: A view of what is committed; given up as soon as it is read.
        current: The table as the catalog has it now; asked once the view is there, so that it knows every row's schema.
        step: Called between pieces of work; what it raises ends the work.

    Raises:
        CorruptData: The index is damaged, or what was written does not read back as it was.
        UnsupportedVersion: A newer version took one of that offset.
        OSError: The disk refused. Whatever is raised, nothing is left but maybe a directory that means nothing.
    """
    snapshots = bucket / paths.SNAPSHOTS
    with ExitStack() as unless_done:
        with reading() as view:
            offset = view.state().applied_offset
            try:
                taken = read(bucket, identity, offset)
                taken.verify()
                files.sync_directory(snapshots)  # the process that took it may have died before that
                return taken
            except UnsupportedVersion:
                raise
            except CorruptData:
                pass  # there is none, or it is replaced
            files.make_directory(snapshots)
            sweep(bucket, files)
            directory = paths.snapshot_directory(bucket, offset)
            unfinished = directory.with_name(directory.name + paths.TEMPORARY)
            unless_done.callback(_give_up, unfinished, files)
            files.make_directory(unfinished)
            definition, writers = current(), view.writers()
            written = _write(unfinished, identity, view, writers, definition, files, now_ms=now_ms, step=step)
        files.sync_directory(unfinished)
        read_back(written, writers, definition, step)
        if directory.exists():
            _remove(directory, files)  # it was damaged
        files.rename(unfinished, directory)
        files.sync_directory(snapshots)
        unless_done.pop_all()
    # Even if the disk fails now, the snapshot is complete.
    with suppress(OSError):
        for old in offsets(bucket)[KEPT:]:
            _remove(paths.snapshot_directory(bucket, old), files)
    return Snapshot(directory, written.manifest)


def _write(
    directory: Path,
    identity: LogIdentity,
    view: View,
    writers: Mapping[WriterId, WriterEntry],
    definition: TableDefinition,
    files: Files,
    *,
    now_ms: int,
    step: Callable[[], None],
) -> Snapshot:
    state = view.state()
    count = digest = 0

    def rows_to(file: FileWriter) -> FileSum:
        nonlocal count, digest
        writer = RowsWriter(file, definition)
        for keys, values in view.rows(ROWS_PER_GROUP):
            step()
            digest += int(writer.write(keys, values).sum(dtype=np.uint64))
            count += len(keys)
        return writer.finish()

    sums = {
        paths.SNAPSHOT_ROWS: _file(directory / paths.SNAPSHOT_ROWS, files, rows_to),
        paths.SNAPSHOT_WRITERS: _file(directory / paths.SNAPSHOT_WRITERS, files, _all_of(encode_writers(writers))),
    }
    end = _log_end(bucket=directory.parents[1], identity=identity, state=state)
    has_times = bool(state.uncounted_ms or state.back_offset or any(each.uncounted_ms for each in writers.values()))
    manifest = Manifest(
        format=FORMAT if has_times else 1,
        store_id=identity.store_id,
        table_id=identity.table_id,
        bucket_id=identity.bucket_id,
        schema_id=definition.schema_id,
        applied_offset=state.applied_offset,
        log_base=end.base,
        log_position=end.position,
        row_count=state.row_count,
        digest=f"{state.digest:016x}",
        last_timestamp=state.last_timestamp,
        next_count=state.next_count,
        uncounted_ms=state.uncounted_ms if has_times else UNSET,
        back_offset=state.back_offset if has_times else UNSET,
        created_ms=now_ms,
        files=sums,
    )
    if not _matches(manifest, count, digest, definition):
        raise CorruptData("The index has other rows than it says; run `kvstore check`.", rows=count)
    _file(directory / paths.SNAPSHOT_MANIFEST, files, _all_of(encode_manifest(manifest)))
    return Snapshot(directory, manifest)


def read_back(
    written: Snapshot,
    writers: Mapping[WriterId, WriterEntry],
    definition: TableDefinition,
    step: Callable[[], None],
) -> None:
    """Verify that a snapshot rebuilds its index: after the log has expired, nothing else may be left to rebuild it."""
    if written.writers() != writers:
        raise CorruptData("Writers of a snapshot do not read back as they were written.", path=written.directory)
    for _ in written.rows(definition):
        step()


def _matches(manifest: Manifest, count: int, digest: int, definition: TableDefinition) -> bool:
    # The row count of a log table is that of its records; it has no rows.
    counted = 0 if definition.primary_key is None else manifest.row_count
    return (count, digest % 2**64) == (counted, int(manifest.digest, 16))


def _log_end(bucket: Path, identity: LogIdentity, state: IndexState) -> LogEnd:
    """Position in the log of the offset at which an index was committed."""
    if state.synced_offset == state.applied_offset:
        return LogEnd(state.synced_base, state.synced_position, state.synced_offset)
    # The index was committed during a replay.
    log = LogFiles(bucket / paths.LOG, identity)
    batch = next(iter(log.batches(state.applied_offset, state.synced_offset)))
    return LogEnd(Offset(int(batch.path.stem)), batch.position, state.applied_offset)


def _file(path: Path, files: Files, write: Callable[[FileWriter], FileSum]) -> FileSum:
    descriptor = files.open(path, create=True)
    try:
        return write(FileWriter(descriptor, files))
    finally:
        files.close(descriptor)


def _all_of(data: bytes) -> Callable[[FileWriter], FileSum]:
    def write(file: FileWriter) -> FileSum:
        file.write(data)
        return file.finish()

    return write


def _remove(directory: Path, files: Files) -> None:
    """Remove a snapshot: first its name, so that an incomplete one never has a name."""
    leaving = directory.with_name(f"{directory.name}.old{paths.TEMPORARY}")
    files.remove_tree(leaving)
    files.rename(directory, leaving)
    files.sync_directory(directory.parent)
    files.remove_tree(leaving)


def _give_up(unfinished: Path, files: Files) -> None:
    with suppress(OSError):
        files.remove_tree(unfinished)


def _checksum(descriptor: int, size: int) -> int:
    """Checksum of a file, read in pieces."""
    crc = 0
    for at in range(0, size, _PIECE_BYTES):
        crc = crc32c(os.pread(descriptor, min(_PIECE_BYTES, size - at), at), crc)
    return crc
