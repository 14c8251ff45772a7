"""Bugs the tests plant, to see that they would be found. The product has no switch for any of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from kvstore.bucket import recovery as bucket_recovery, write_path as apply
from kvstore.bucket.committer import Committer
from kvstore.bucket.context import BucketContext
from kvstore.bucket.write_path import Applied, WritePath
from kvstore.disk.environment import Environment
from kvstore.disk.files import Files
from kvstore.index.index import Index
from kvstore.indexing.entries import TableEntries
from kvstore.kernel import library
from kvstore.log import recovery
from kvstore.log.segments import LogFiles
from kvstore.meta.image import TXID_MAX
from kvstore.meta.journal import Journal
from kvstore.options import RANGES
from kvstore.replica.client import ObjectStore
from kvstore.request.encoded import SmallRequest
from kvstore.request.request import Request, group
from kvstore.request.results import AppendResult
from kvstore.table.table import Table
from logformat.checksum import crc32c
from logformat.ids import NO_SEQUENCE, NO_WRITER, Epoch, Txid
from logformat.log import batch as batches
from logformat.log.batch import LogBatch
from logformat.log.change import ChangeType
from logformat.paths import STAGING, UNFINISHED_IMAGE
from logformat.replica.object_file import parse_name
from logformat.rows.changes import Changes

Patches = list[Any]


def _log_is_not_synced() -> Patches:
    sync = Files.sync

    def unless_a_segment(self: Files, descriptor: int) -> None:
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            sync(self, descriptor)

    return [patch.object(Files, "sync", unless_a_segment)]


def _index_is_committed_before_the_log_is_synced() -> Patches:
    def begin_merge(self: WritePath) -> None:
        end = self.log.end
        self._state = self._state._replace(synced_base=end.base, synced_position=end.position, synced_offset=end.offset)
        self.memtable.begin_merge(self._state)

    return [patch.object(WritePath, "begin_merge", begin_merge)]


def _no_other_ways() -> Patches:
    """For bugs of the long way."""
    return [patch.object(apply, "encoded_writes", return_value=None), library.switched_off()]


def _file_is_published_before_it_is_synced() -> Patches:
    def create(self: Files, path: Path, data: bytes) -> int:
        temporary = path.with_name(path.name + ".tmp")
        temporary.unlink(missing_ok=True)
        descriptor = self.open(temporary, create=True)
        self.write(descriptor, [memoryview(data)], 0)
        self.rename(temporary, path)
        self.sync_directory(path.parent)
        self.sync(descriptor)
        return descriptor

    return [patch.object(Files, "create", create)]


def _directories_are_not_synced() -> Patches:
    return [patch.object(Files, "sync_directory")]


def _short_write_is_ignored() -> Patches:
    def write(self: Files, descriptor: int, pieces: Sequence[memoryview], position: int) -> None:
        os.pwritev(descriptor, pieces, position)

    return [patch.object(Files, "write", write)]


def _writers_are_not_stored() -> Patches:
    return [patch.object(Index, "put_writer")]


def _empty_batch_is_not_appended() -> Patches:
    class WithoutEmptyBatches(WritePath):
        def apply(self, request: Request | SmallRequest, *, decided: bool = False) -> Applied:
            now = self._now_ms()
            if request.count or (
                request.writer_id != NO_WRITER and self._first_answer(request, now, decided=decided) is not None
            ):
                return super().apply(request, decided=decided)
            rows = pa.RecordBatch.from_pylist([], self.definition.schema)
            self._writers.remember(self._batch(request, now, rows, np.zeros(0, np.uint8)))
            end = self.state.applied_offset
            return Applied(AppendResult(end, end, False, 0), None)

    return [patch.object(bucket_recovery, "WritePath", WithoutEmptyBatches)]


def _replay_merges_again() -> Patches:
    def catch_up(self: WritePath, log: LogFiles, bytes_max: int | None = None) -> None:
        for found in list(log.batches(self._state.applied_offset, self.log.durable.offset)):
            schema = self.definition.schema_of(found.header.schema_id)
            batch = batches.decode_batch(found.data, schema, validate=False)
            changes = Changes(batch.rows, pa.array(batch.change_types == ChangeType.DELETE))
            keys = group(self._layout.encode_keys(batch.rows))
            request = Request(changes, NO_WRITER, NO_SEQUENCE, Epoch(0), keys)
            self._state = self._state._replace(applied_offset=self.log.end.offset)
            self.log.append([self._merge_rows(request, batch.commit_timestamp)])
            self.publish()

    return [patch.object(WritePath, "catch_up", catch_up)]


def _durable_end_is_ignored() -> Patches:
    return [patch.object(recovery, "was_durable_beyond", return_value=False)]


def _checksum_leaves_the_header_out() -> Patches:
    header = batches.LAYOUTS[batches.MAGIC].size
    encode = batches.encode_parts

    def encode_parts(batch: LogBatch, magic: int = batches.MAGIC, compression: Any = None) -> list[memoryview]:
        whole = bytearray(b"".join(encode(batch, magic, compression)))
        whole[16:20] = crc32c(memoryview(whole)[header:]).to_bytes(4, "little")
        return [memoryview(whole)]

    def checksum(data: memoryview, magic: int) -> int:
        return crc32c(data[header:])

    checksums = patch.object(apply, "encode_parts", encode_parts), patch.object(batches, "checksum", checksum)
    return [*checksums, *_no_other_ways()]


def _entries_stay_when_rows_change() -> Patches:
    def move(self: TableEntries, index: Index, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        with index.view() as view:
            for each, record in view.entries_records().items():
                index.note_entries(each, record.entry_count, are_whole=True)

    return [patch.object(TableEntries, "move", move)]


def _entries_are_whole_too_soon() -> Patches:
    note = Index.note_entries

    def note_entries(self: Index, index_id: int, count: int, *, are_whole: bool) -> None:
        note(self, index_id, count, are_whole=True)

    return [patch.object(Index, "note_entries", note_entries)]


def _image_is_not_synced() -> Patches:
    sync = Files.sync

    def unless_an_image(self: Files, descriptor: int) -> None:
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith(UNFINISHED_IMAGE):
            sync(self, descriptor)

    return [patch.object(Files, "sync", unless_an_image)]


def _images_are_not_synced_by_name() -> Patches:
    return [patch.object(Files, "sync_directory")]


def _segments_go_with_the_newest_image() -> Patches:
    drop = Journal.drop_before

    def all(self: Journal, _: Txid) -> int:
        return drop(self, TXID_MAX)

    return [patch.object(Journal, "drop_before", all)]


def _journal_is_not_flushed_before_an_image() -> Patches:
    return [patch.object(Journal, "flush")]


def _journal_is_not_synced() -> Patches:
    return [patch.object(Environment, "sync")]


def _staged_rows_are_not_synced() -> Patches:
    sync = Files.sync

    def unless_staged(self: Files, descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent.name != STAGING:
            sync(self, descriptor)

    return [patch.object(Files, "sync", unless_staged)]


def _objects_are_reported_and_not_shipped() -> Patches:
    create = ObjectStore.create

    def unless_of_a_stream(self: ObjectStore, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        return parse_name(name) is not None or create(self, name, pieces)

    return [patch.object(ObjectStore, "create", unless_of_a_stream)]


def _task_that_was_applied_is_applied_again() -> Patches:
    return [patch.object(Table, "is_applied", return_value=False)]


def _sync_interval_is_ignored() -> Patches:
    begin = Committer.__init__

    def without_it(self: Committer, path: WritePath, context: BucketContext, *others: Any) -> None:
        options = replace(context.options, sync_interval_ms=RANGES["sync_interval_ms"][1])
        begin(self, path, replace(context, options=options), *others)

    return [patch.object(Committer, "__init__", without_it)]


INTERVAL_BUGS: dict[str, Callable[[], Patches]] = {"sync_interval_is_ignored": _sync_interval_is_ignored}
"""Found by setting the clock ahead, in tests/bucket/test_failures.py."""
JOURNAL_BUGS: dict[str, Callable[[], Patches]] = {
    function.__name__.removeprefix("_"): function
    for function in (_journal_is_not_flushed_before_an_image, _journal_is_not_synced)
}
"""Found where edits need not be durable at once."""
WHOLE_BUGS: dict[str, Callable[[], Patches]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        _staged_rows_are_not_synced,
        _objects_are_reported_and_not_shipped,
        _task_that_was_applied_is_applied_again,
    )
}
"""Found where a whole store is looked at."""
CATALOG_BUGS: dict[str, Callable[[], Patches]] = {
    function.__name__.removeprefix("_"): function
    for function in (_image_is_not_synced, _images_are_not_synced_by_name, _segments_go_with_the_newest_image)
}
"""Found by looking at the catalog alone."""
BUGS: dict[str, Callable[[], Patches]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        _log_is_not_synced,
        _index_is_committed_before_the_log_is_synced,
        _file_is_published_before_it_is_synced,
        _directories_are_not_synced,
        _short_write_is_ignored,
        _writers_are_not_stored,
        _empty_batch_is_not_appended,
        _replay_merges_again,
        _durable_end_is_ignored,
        _checksum_leaves_the_header_out,
        _entries_stay_when_rows_change,
        _entries_are_whole_too_soon,
    )
}


@contextmanager
def planted(bug: str | None) -> Iterator[None]:
    """Have a bug, or none."""
    with ExitStack() as stack:
        for each in (BUGS | CATALOG_BUGS | INTERVAL_BUGS | JOURNAL_BUGS | WHOLE_BUGS)[bug]() if bug is not None else ():
            stack.enter_context(each)
        yield
