"""The end of a log that another process writes."""

from __future__ import annotations

import os
from pathlib import Path

from kvstore.disk.files import Files
from kvstore.log.segments import KnownEnd, LogFiles
from logformat.ids import Offset
from tests.support.calls_made import calls_made
from tests.support.logs import IDENTITY, append, open_log, stretch


def ends(directory: Path, known: KnownEnd, *committed: int) -> list[int]:
    """The end after each of some offsets, asked twice."""
    log = LogFiles(directory, IDENTITY)
    found = [known.after(Offset(offset), log) for offset in committed]
    assert found == [known.after(Offset(offset), log) for offset in committed]
    return found


def test_the_end_is_right_whatever_another_process_has_appended_since(tmp_path: Path) -> None:
    log, known = open_log(tmp_path, segment_bytes_max=1500), KnownEnd(tmp_path, Files())
    assert ends(tmp_path, known, 0) == [0]
    for number in range(1, 20):  # of several segments
        append(log, 1, 2)
        end = 2 * number
        assert ends(tmp_path, known, end - 2, end, 0) == [end] * 3
        log.roll(b"") if number % 7 == 0 else None
        assert ends(tmp_path, known, end - 2, end) == [end] * 2


def test_half_a_batch_after_the_end_is_not_counted_and_the_rest_of_it_is_seen(tmp_path: Path) -> None:
    log, known = open_log(tmp_path), KnownEnd(tmp_path, Files())
    append(log, 2)
    whole = next(tmp_path.glob("*.log")).read_bytes()
    append(log, 1)
    path = next(tmp_path.glob("*.log"))
    longer = path.read_bytes()
    half = len(whole) + (len(longer) - len(whole)) // 2
    for size, end in ((len(whole), 2), (half, 2), (len(longer), 3), (half, 2), (len(whole), 2), (len(longer), 3)):
        path.write_bytes(longer[:size])
        assert ends(tmp_path, known, 2, 1) == [end, end]


def test_asking_again_costs_little_while_nothing_was_written(tmp_path: Path) -> None:
    log, known = open_log(tmp_path), KnownEnd(tmp_path, Files())
    append(log, 5)
    first, again = (calls_made(lambda: known.after(Offset(5), LogFiles(tmp_path, IDENTITY))) for _ in range(2))
    assert again < first / 5


def test_a_log_that_was_cut_and_written_again_to_the_same_size_is_read_again(tmp_path: Path) -> None:
    log, known = open_log(tmp_path), KnownEnd(tmp_path, Files())
    append(log, 2)
    size = log.end.position
    append(log, 1, 8)
    log.close()
    path = next(tmp_path.glob("*.log"))
    os.utime(path, (1, 1))  # written long ago
    assert ends(tmp_path, known, 10) == [10]
    whole = path.stat().st_size
    os.truncate(path, size)
    open_log(tmp_path).append([stretch(2, 10), stretch(10, 11), stretch(11, 12)])
    assert path.stat().st_size == whole
    assert ends(tmp_path, known, 10) == [12]


def test_a_log_that_is_missing_ends_at_the_offset(tmp_path: Path) -> None:
    assert ends(tmp_path, KnownEnd(tmp_path, Files()), 3) == [3]
