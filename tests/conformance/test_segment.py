"""Segments: the next offset, and reads by offset and by time.

Fluss allows holes between the offsets of batches. Here offsets have no gap and a hole is damage, so the space between
two batches of a vector is one batch without records, whose last offset delta covers it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvstore.disk.files import Files
from kvstore.errors import CorruptBatch
from kvstore.log import recovery
from kvstore.log.log import Log
from kvstore.log.segments import LogFiles
from logformat import paths
from logformat.ids import Offset, Position
from logformat.log import segment, sparse_index
from logformat.log.batch import ALIGNMENT, LAYOUTS, MAGIC
from logformat.log.sparse_index import Entry
from tests.conformance.vectors import VECTORS, running
from tests.support.logs import IDENTITY, batch, open_log, read, stretch

KINDS = ("segment", "time_index")


@pytest.mark.parametrize("name", running("segment"))
def test_segment(name: str, tmp_path: Path) -> None:
    vector = VECTORS[name]
    log = begun_at(tmp_path, vector["segment_base"])
    expected = vector.get("expect", {})
    if "next_offset_before" in expected:
        assert next_offset(tmp_path) == expected["next_offset_before"]
    for each in vector["batches"]:
        if each["base"] > log.end.offset:
            log.append([stretch(log.end.offset, each["base"])])
        log.append([batch(each["base"], each["records"])])
    log.sync()
    assert log.end.offset == next_offset(tmp_path) == expected.get("next_offset", log.end.offset)
    if "size" in expected:
        # An empty batch is its header: Fluss's in magic 0, ours in the current magic.
        assert expected["size"] == LAYOUTS[0].size
        assert log.end.position - segment.HEAD_BYTES == -(-LAYOUTS[MAGIC].size // ALIGNMENT) * ALIGNMENT
    for asked in vector.get("reads", ()):
        found = first_batch(tmp_path, asked["offset"], log.end.offset)
        assert found == asked.get("expect_first_batch", asked.get("expect"))


@pytest.mark.parametrize("name", [name for name in running("segment") if len(VECTORS[name]["batches"]) > 1])
def test_a_hole_is_damage(name: str, tmp_path: Path) -> None:
    vector = VECTORS[name]
    first, second = vector["batches"]
    log = begun_at(tmp_path, first["base"])
    # Each says that everything before it was durable, so neither was torn.
    log.append([batch(each["base"], each["records"], durable_end=each["base"]) for each in (first, second)])
    log.close()
    with pytest.raises(CorruptBatch, match=f"A batch has base offset {second['base']};"):
        read(tmp_path, vector["reads"][0]["offset"] - first["records"], second["base"])
    with pytest.raises(CorruptBatch):
        recovery.prepare(tmp_path, IDENTITY, None, Files())


@pytest.mark.parametrize("name", running("time_index"))
def test_time_index(name: str, tmp_path: Path) -> None:
    vector = VECTORS[name]
    entries = [Entry(Offset(offset), time, Position(offset)) for time, offset in listed(vector["entries"])]
    # Fluss asks for the last entry not newer than a time. We ask for the last one older than it, for several batches
    # may have one time and only some have an entry; in whole milliseconds both ask the same.
    for time, answer in vector["lookups"]:
        assert found_in(entries, time, vector["base_offset"]) == answer
    time, answer = vector["empty_lookup"]
    assert found_in([], time, vector["base_offset"]) == answer
    # Its purpose: the first batch that is not older than a time.
    log = begun_at(tmp_path, vector["base_offset"])
    places = []
    before = 0
    for entry in entries:
        log.append([stretch(log.end.offset, entry.offset, timestamp=before)])
        places.append(entry._replace(position=log.end.position))
        log.append([batch(entry.offset, timestamp=entry.timestamp)])
        before = entry.timestamp
    log.sync()
    log.close()
    paths.sparse_index_file(tmp_path, Offset(vector["base_offset"])).write_bytes(sparse_index.encode(places))
    files = LogFiles(tmp_path, IDENTITY)
    for time, _ in vector["lookups"]:
        assert files.first_at_or_after(time, log.end.offset) == next(e.offset for e in entries if e.timestamp >= time)


def begun_at(directory: Path, base: int) -> Log:
    """A log whose only segment begins at an offset, opened for appending."""
    head = segment.SegmentHead(IDENTITY.store_id, IDENTITY.table_id, IDENTITY.bucket_id, Offset(base))
    paths.segment_file(directory, Offset(base)).write_bytes(segment.encode_head(head))
    return open_log(directory)


def next_offset(directory: Path) -> int:
    """The next offset that an opener of the log finds."""
    return recovery.find_end(directory, IDENTITY, None).offset


def first_batch(directory: Path, start: int, end: int) -> int | None:
    """Base offset of the first batch with records at or after an offset."""
    found = (each.header for each in LogFiles(directory, IDENTITY).batches(Offset(start), Offset(end)))
    return next((header.base_offset for header in found if header.record_count), None)


def found_in(entries: list[Entry], time: int, base: int) -> list[int]:
    """Time and offset of an entry, as Fluss returns them: -1 and the segment's base if there is none."""
    entry = sparse_index.before_time(entries, time + 1)
    return [-1, base] if entry is None else [entry.timestamp, entry.offset]


def listed(words: str) -> list[tuple[int, int]]:
    """Entries that a vector gives as "(10*i, 45+10*i) for i in 1..29"."""
    parts: Any = re.fullmatch(r"\((\d+)\*i, (\d+)\+(\d+)\*i\) for i in (\d+)\.\.(\d+)", words)
    each, first, step, start, last = map(int, parts.groups())
    return [(each * i, first + step * i) for i in range(start, last + 1)]
