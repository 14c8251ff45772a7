"""The end of a log that another process writes."""

from __future__ import annotations

from pathlib import Path

from kvstore.files import Files
from kvstore.log.segments import KnownEnd, LogFiles
from logformat.ids import Offset
from tests.support.calls_made import calls_made
from tests.support.logs import IDENTITY, append, open_log


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
