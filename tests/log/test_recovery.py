"""The end of a log whose writer is gone: durable data is there or reported as lost, a torn tail is truncated."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from kvstore.disk.files import Files
from kvstore.errors import CorruptBatch
from kvstore.log import recovery
from kvstore.log.segments import LogEnd, LogFiles
from logformat import paths
from logformat.ids import Offset, Position
from logformat.log import segment, sparse_index
from tests.support.logs import IDENTITY, append, batch, offsets, open_log, read

FIRST = "00000000000000000000.log"


def write_log(directory: Path, count: int = 6, segment_bytes_max: int = 1 << 20) -> LogEnd:
    """Write a log of one-record batches, each synced; returns its end."""
    log = open_log(directory, segment_bytes_max=segment_bytes_max)
    append(log, count)
    log.close()
    return log.end


def place(found_number: int, directory: Path) -> LogEnd:
    """Position of the n-th batch."""
    found = read(directory)[found_number]
    return LogEnd(Offset(0), found.position, found.header.base_offset)


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_an_undamaged_log_is_unchanged(tmp_path: Path) -> None:
    end = write_log(tmp_path)
    before = (tmp_path / FIRST).read_bytes()
    assert recovery.prepare(tmp_path, IDENTITY, end, Files()) == end
    assert recovery.prepare(tmp_path, IDENTITY, None, Files()) == end
    assert (tmp_path / FIRST).read_bytes() == before


@pytest.mark.parametrize("tail", [b"\0" * 40, b"\0" * 4096, b"\xff" * 64, bytes(range(256))])
def test_a_tail_that_was_never_durable_is_truncated(tmp_path: Path, tail: bytes) -> None:
    end = write_log(tmp_path)
    with (tmp_path / FIRST).open("ab") as file:
        file.write(tail)
    assert recovery.prepare(tmp_path, IDENTITY, end, Files()) == end
    assert (tmp_path / FIRST).stat().st_size == end.position


def test_a_torn_last_batch_is_truncated_wherever_it_is_torn(tmp_path: Path) -> None:
    write_log(tmp_path)
    synced = place(5, tmp_path)
    whole = (tmp_path / FIRST).read_bytes()
    for length in range(synced.position, len(whole)):
        (tmp_path / FIRST).write_bytes(whole[:length])
        assert recovery.find_end(tmp_path, IDENTITY, synced) == synced


def test_a_log_shorter_than_its_durable_part_is_refused(tmp_path: Path) -> None:
    end = write_log(tmp_path)
    whole = (tmp_path / FIRST).read_bytes()
    for length in (0, 1, segment.HEAD_BYTES, place(3, tmp_path).position, len(whole) - 1):
        (tmp_path / FIRST).write_bytes(whole[:length])
        with pytest.raises(CorruptBatch, match=FIRST):
            recovery.prepare(tmp_path, IDENTITY, end, Files())
        assert (tmp_path / FIRST).stat().st_size == length


def test_damage_after_the_synced_end_is_refused_if_later_batches_prove_it_durable(tmp_path: Path) -> None:
    """Batch 5 says that the log was durable up to 5 when it was written, so batch 3 was not torn but damaged."""
    write_log(tmp_path)
    synced = place(2, tmp_path)
    broken = read(tmp_path)[3]
    damage(tmp_path / FIRST, broken.position + 100)
    before = (tmp_path / FIRST).read_bytes()
    with pytest.raises(CorruptBatch, match=f"position={broken.position} offset=3"):
        recovery.prepare(tmp_path, IDENTITY, synced, Files())
    with pytest.raises(CorruptBatch):
        recovery.prepare(tmp_path, IDENTITY, None, Files())
    assert (tmp_path / FIRST).read_bytes() == before


def test_a_whole_batch_after_a_hole_is_truncated_if_nothing_there_was_durable(tmp_path: Path) -> None:
    """A power cut may keep a later page and lose an earlier one; none of it was acknowledged."""
    log = open_log(tmp_path)
    append(log, 2)
    synced = log.durable
    log.append([batch(2, durable_end=2), batch(3, durable_end=2)])
    log.close()
    damage(tmp_path / FIRST, synced.position + 100)
    assert recovery.prepare(tmp_path, IDENTITY, synced, Files()) == synced
    assert offsets(tmp_path) == [0, 1]


def test_damage_before_the_synced_end_is_detected_by_readers(tmp_path: Path) -> None:
    end = write_log(tmp_path)
    damage(tmp_path / FIRST, read(tmp_path)[1].position + 100)
    assert recovery.prepare(tmp_path, IDENTITY, end, Files()) == end
    with pytest.raises(CorruptBatch, match="offset=1"):
        offsets(tmp_path, 0, 6)


class TestSegments:
    def test_damage_in_a_sealed_segment_is_refused(self, tmp_path: Path) -> None:
        write_log(tmp_path, 12, segment_bytes_max=1500)
        broken = read(tmp_path)[2]
        assert len(LogFiles(tmp_path, IDENTITY).bases()) > 2
        damage(broken.path, broken.position + 100)
        with pytest.raises(CorruptBatch, match="offset=2"):
            recovery.prepare(tmp_path, IDENTITY, None, Files())

    def test_a_missing_segment_is_refused(self, tmp_path: Path) -> None:
        end = write_log(tmp_path, 12, segment_bytes_max=1500)
        bases = LogFiles(tmp_path, IDENTITY).bases()
        paths.segment_file(tmp_path, bases[1]).unlink()
        with pytest.raises(CorruptBatch):
            recovery.prepare(tmp_path, IDENTITY, None, Files())
        paths.segment_file(tmp_path, bases[-1]).unlink()
        with pytest.raises(CorruptBatch):
            recovery.prepare(tmp_path, IDENTITY, end, Files())

    def test_a_missing_log_is_refused(self, tmp_path: Path) -> None:
        end = write_log(tmp_path)
        (tmp_path / FIRST).unlink()
        with pytest.raises(CorruptBatch):
            recovery.prepare(tmp_path, IDENTITY, end, Files())

    def test_a_segment_of_another_log_is_refused(self, tmp_path: Path) -> None:
        write_log(tmp_path)
        head = segment.decode_head((tmp_path / FIRST).read_bytes())
        other = segment.SegmentHead(head.store_id, type(head.table_id)(99), head.bucket_id, head.base_offset)
        data = (tmp_path / FIRST).read_bytes()
        (tmp_path / FIRST).write_bytes(segment.encode_head(other) + data[segment.HEAD_BYTES :])
        with pytest.raises(CorruptBatch, match="belongs to another log"):
            recovery.prepare(tmp_path, IDENTITY, None, Files())

    @given(position=st.integers(0, segment.HEAD_BYTES - 1), bit=st.integers(0, 7))
    def test_a_damaged_head_is_refused(self, position: int, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
        directory = tmp_path_factory.mktemp("log")
        end = write_log(directory, 1)
        data = bytearray((directory / FIRST).read_bytes())
        data[position] ^= 1 << bit
        (directory / FIRST).write_bytes(data)
        with pytest.raises(CorruptBatch):
            recovery.prepare(directory, IDENTITY, end, Files())

    def test_an_unfinished_segment_is_removed(self, tmp_path: Path) -> None:
        end = write_log(tmp_path)
        leftover = tmp_path / "00000000000000000006.log.tmp"
        leftover.write_bytes(b"half")
        assert recovery.prepare(tmp_path, IDENTITY, end, Files()) == end
        assert not leftover.exists()

    def test_files_of_writers_outside_segment_starts_and_the_end_are_removed(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, 2)
        log.roll(b"kept")
        append(log, 2)
        log.close()
        for stray in (1, 3, 4, 5):
            paths.writers_file(tmp_path, Offset(stray)).write_bytes(b"")
        recovery.prepare(tmp_path, IDENTITY, log.end, Files())
        assert sorted(path.name for path in tmp_path.glob("*.writers")) == [
            f"{offset:020d}.writers" for offset in (2, 4)
        ]

    def test_an_empty_segment_is_used(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, segment_bytes_max=1000)
        append(log, 4)
        log.roll(b"")
        log.close()
        again = open_log(tmp_path)
        append(again, 2)
        assert offsets(tmp_path) == list(range(6))


def test_the_sparse_index_is_repaired(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 600, 8, together=10)
    log.close()
    path = paths.sparse_index_file(tmp_path, Offset(0))
    whole = path.read_bytes()
    beyond = sparse_index.Entry(Offset(10**6), 10**6, Position(10**8))
    for wrong in (b"", b"junk", whole[:50], whole + sparse_index.encode_entry(beyond), None):
        path.unlink() if wrong is None else path.write_bytes(wrong)
        recovery.prepare(tmp_path, IDENTITY, None, Files())
        assert path.read_bytes() == whole
