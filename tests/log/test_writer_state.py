"""Sequences of writers: new, repeated and out-of-order batches, and expiry."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from kvstore.errors import OutOfOrderSequence, WriterFenced
from kvstore.log.writer_state import WriterStates
from logformat.ids import SEQUENCE_MAX, Epoch, Offset, Sequence, WriterId
from logformat.log.batch import NAMED_WRITER, BatchHeader
from logformat.log.writer_entry import EXPIRY_MS, WINDOW, RememberedBatch, decode_snapshot

WRITER = WriterId(5)


def check(states: WriterStates, sequence: int, *, epoch: int = 0, now_ms: int = 0) -> RememberedBatch | None:
    return states.check(WRITER, Sequence(sequence), Epoch(epoch), now_ms=now_ms, last_offset=Offset(99))


def remember(states: WriterStates, sequence: int, *, epoch: int = 0, timestamp: int = 0, named: bool = False) -> None:
    states.remember(
        BatchHeader(
            writer_id=WRITER,
            batch_sequence=Sequence(sequence),
            base_offset=Offset(10 * sequence),
            last_offset_delta=3,
            writer_epoch=epoch,
            commit_timestamp=timestamp,
            attributes=NAMED_WRITER if named else 0,
        )
    )


@given(count=st.integers(0, 12), sequence=st.integers(0, 14))
def test_only_the_next_sequence_is_new_and_the_last_five_are_known(count: int, sequence: int) -> None:
    states = WriterStates({})
    for sent in range(count):
        assert check(states, sent) is None
        remember(states, sent)
    if sequence == count:
        assert check(states, sequence) is None
    elif count - WINDOW <= sequence < count:
        seen = check(states, sequence)
        assert seen is not None
        assert (seen.base_offset, seen.last_offset) == (10 * sequence, 10 * sequence + 3)
    else:
        with pytest.raises(OutOfOrderSequence, match=f"at offset 99: {sequence} .incoming batch seq.., {count - 1} "):
            check(states, sequence)


def test_the_sequence_wraps_around() -> None:
    states = WriterStates({})
    remember(states, SEQUENCE_MAX - 1)
    remember(states, SEQUENCE_MAX)
    assert check(states, 0) is None
    remember(states, 0)
    assert check(states, 1) is None
    seen = check(states, SEQUENCE_MAX)
    assert seen is not None
    assert seen.base_offset == 10 * SEQUENCE_MAX


def test_a_replay_may_begin_with_any_sequence() -> None:
    states = WriterStates({})
    remember(states, 10)
    remember(states, 11)
    assert check(states, 12) is None
    assert check(states, 10) is not None


def test_an_older_epoch_is_fenced_and_a_newer_one_continues() -> None:
    states = WriterStates({})
    remember(states, 0, epoch=3)
    with pytest.raises(WriterFenced):
        check(states, 1, epoch=2)
    with pytest.raises(WriterFenced):
        check(states, 0, epoch=2)
    assert check(states, 1, epoch=4) is None


def test_an_unnamed_writer_expires_after_seven_days_of_the_logs_time() -> None:
    for named in (False, True):
        states = WriterStates({})
        remember(states, 0, timestamp=1000, named=named)
        assert check(states, 1, now_ms=1000 + EXPIRY_MS - 1) is None
        if named:
            assert check(states, 1, now_ms=1000 + EXPIRY_MS) is None
        else:
            with pytest.raises(OutOfOrderSequence):
                check(states, 1, now_ms=1000 + EXPIRY_MS)
            assert check(states, 0, now_ms=1000 + EXPIRY_MS) is None
            remember(states, 0, timestamp=1000 + EXPIRY_MS)
            assert len(states.all()[WRITER].batches) == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0, 1, EXPIRY_MS // 2, EXPIRY_MS - 1, EXPIRY_MS, 2 * EXPIRY_MS])),
        max_size=20,
    )
)
def test_every_replay_expires_the_same_writers_wherever_it_begins(steps: list[tuple[int, int]]) -> None:
    """Writer 0 has a name; -1 (here 4) means no writer, but its batches advance the log's time too."""
    states, now, last = WriterStates({}), 0, {}
    for number, (writer, later) in enumerate(steps):
        now += later
        header = BatchHeader(
            writer_id=WriterId(writer if writer < 4 else -1),
            batch_sequence=Sequence(number),
            commit_timestamp=now,
            attributes=NAMED_WRITER if writer == 0 else 0,
        )
        before, reloaded = states.all(), WriterStates(states.all())
        changed = states.remember(header)
        assert reloaded.remember(header) == changed
        assert reloaded.all() == states.all()
        assert {id: entry for id, entry in (before | changed).items() if entry is not None} == states.all()
        if writer < 4:
            last[writer] = now
        last = {id: time for id, time in last.items() if id == 0 or now - time < EXPIRY_MS}
        assert {id: entry.batches[-1].timestamp for id, entry in states.all().items()} == last


def test_batches_without_a_writer_are_never_out_of_order() -> None:
    states = WriterStates({})
    assert states.check(WriterId(-1), Sequence(-1), Epoch(0), now_ms=0, last_offset=Offset(0)) is None
    assert states.remember(BatchHeader()) == {}
    assert states.all() == {}


def test_a_snapshot_has_all_writers() -> None:
    states = WriterStates({})
    for sequence in range(7):
        remember(states, sequence, epoch=2, timestamp=sequence)
    offset, writers = decode_snapshot(states.snapshot(Offset(64)))
    assert offset == 64
    assert writers == states.all()
    assert [batch.sequence for batch in writers[WRITER].batches] == [2, 3, 4, 5, 6]
