"""A batch can be read again as it was, whatever the log does with its segment meanwhile."""

from __future__ import annotations

import errno
import gc
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import kvstore
from kvstore.errors import CorruptBatch
from kvstore.log import held_segments
from kvstore.log.held_segments import HeldSegments
from kvstore.log.segments import FoundBatch
from logformat.ids import Offset


def batches_of(path: Path, **options: int) -> list[FoundBatch]:
    """Three batches of a log; their bytes are a copy."""
    with kvstore.open(path, **options) as store:
        table = store.create_table("t", {"k": "int64"}, "k")
        for k in range(3):
            table.upsert({"k": k})
        log = table.bucket(0).handle.log
        batches = log.batches(Offset(0), Offset(3))
        return [replace(each, data=memoryview(bytes(each.data))) for each in batches]


def descriptors(directory: Path) -> int:
    """How many lead into a directory, also to what was removed from it; those of other tests come and go."""
    gc.collect()
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list itself
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(link.startswith(str(directory)) for link in links)


def test_batches_of_a_removed_segment_are_read_again_by_one_descriptor(tmp_path: Path) -> None:
    batches = batches_of(tmp_path / "store")
    before, segments = descriptors(tmp_path), HeldSegments()
    held = [segments.batch(each) for each in batches]
    path = batches[0].path
    path.unlink()
    assert descriptors(tmp_path) == before + 1
    assert [each.read() for each in held if each] == [(each.header, each.data) for each in batches]
    assert HeldSegments().batch(batches[0]) is None, "gone before it was held"
    held.clear()
    assert descriptors(tmp_path) == before, "nothing can be read again, so nothing is held"


def test_a_segment_that_was_written_again_is_another_one(tmp_path: Path) -> None:
    batches = batches_of(tmp_path / "store")
    segments, path = HeldSegments(), batches[0].path
    whole = path.read_bytes()
    path.write_bytes(whole[: batches[1].position])
    first = segments.batch(batches[0])
    assert segments.batch(batches[1]) is None, "it is not there"
    path.rename(path.with_suffix(".old"))
    path.write_bytes(whole)
    second = segments.batch(batches[1])
    for batch, each in ((first, batches[0]), (second, batches[1])):
        assert batch is not None
        assert batch.read() == (each.header, each.data)


def test_damage_since_then_is_an_error(tmp_path: Path) -> None:
    batch = batches_of(tmp_path / "store")[1]
    held = HeldSegments().batch(batch)
    assert held is not None
    descriptor = os.open(batch.path, os.O_WRONLY)
    os.pwrite(descriptor, b"\xff", batch.end - 1)
    os.close(descriptor)
    with pytest.raises(CorruptBatch, match="checksum"):
        held.read()


def test_no_more_segments_are_held_than_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = batches_of(tmp_path / "store", segment_bytes_max=1)
    assert len({each.path for each in batches}) == 3
    monkeypatch.setattr(held_segments, "SEGMENTS_MAX", 2)
    before, segments = descriptors(tmp_path), HeldSegments()
    held = [segments.batch(each) for each in batches]
    assert [each is None for each in held] == [False, False, True]
    assert segments.batch(batches[0]) is not None, "its segment is held already"
    assert descriptors(tmp_path) == before + 2


def test_a_process_without_descriptors_uses_batches_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batches_of(tmp_path / "store")[0]

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(held_segments, "open_file", refuse)
    assert HeldSegments().batch(batch) is None


def test_a_segment_is_opened_once_for_all_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, opened = batches_of(tmp_path / "store"), []
    open_file = held_segments.open_file
    monkeypatch.setattr(held_segments, "open_file", lambda *given: opened.append(given) or open_file(*given))
    segments = HeldSegments()
    held = [segments.batch(each) for each in batches]
    assert all(held)
    assert len(opened) == 1
