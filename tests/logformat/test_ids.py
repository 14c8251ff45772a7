from __future__ import annotations

from logformat.ids import NO_SEQUENCE, SEQUENCE_MAX, Sequence, next_sequence


def test_sequences_begin_at_0_and_wrap_around_to_0() -> None:
    assert next_sequence(NO_SEQUENCE) == 0
    assert next_sequence(Sequence(0)) == 1
    assert next_sequence(Sequence(SEQUENCE_MAX - 1)) == SEQUENCE_MAX == 2**31 - 1
    assert next_sequence(SEQUENCE_MAX) == 0
