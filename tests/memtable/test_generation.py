"""A generation gives each view the rows as of its end, whatever was added since."""

from __future__ import annotations

import threading

from hypothesis import given, strategies as st

from kvstore.memtable.generation import Generation
from logformat.ids import Offset

KEYS = [bytes([2, number]) for number in range(8)]
BATCHES = st.lists(st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(max_size=3)), max_size=8)


def model(batches: list[dict[bytes, bytes | None]], end: int) -> dict[bytes, bytes | None]:
    rows: dict[bytes, bytes | None] = {}
    for batch in batches[:end]:
        rows |= batch
    return rows


@given(batches=BATCHES, since=st.integers(0, 8), ends=st.lists(st.integers(0, 8), min_size=1, max_size=4))
def test_views_of_any_end_have_the_rows_as_of_it(
    batches: list[dict[bytes, bytes | None]], since: int, ends: list[int]
) -> None:
    generation = Generation()
    for offset, batch in enumerate(batches):
        generation.add(Offset(offset), list(batch), list(batch.values()))
    for end in ends:
        rows = model(batches, end)
        run = generation.run(Offset(end))
        assert dict(zip(run.keys, run.rows, strict=True)) == rows
        assert list(run.keys) == sorted(rows)
        for key in KEYS:
            entry = generation.find(key, Offset(end))
            assert (key in rows, rows.get(key)) == (entry is not None, entry and entry[1])
        part = run.between(KEYS[2], KEYS[5])
        assert list(part.keys) == [key for key in run.keys if KEYS[2] <= key < KEYS[5]]
        assert list(run.between(KEYS[5], None).keys) == [key for key in run.keys if key >= KEYS[5]]
    later = generation.since(Offset(since))
    kept = {key for batch in batches[since:] for key in batch}
    rows = model(batches, len(batches))
    assert {key: entry[1] for key in KEYS if (entry := later.find(key, Offset(99)))} == {key: rows[key] for key in kept}
    assert len(later) == len(kept)


def test_a_run_that_is_made_while_keys_are_added_is_whole() -> None:
    generation = Generation()
    generation.add(Offset(0), [b"a"], [b"0"])
    done = threading.Event()

    def add() -> None:
        for number in range(3_000):
            generation.add(Offset(1 + number), [b"%d" % number, b"a"], [b"1", b"%d" % number])
        done.set()

    adding = threading.Thread(target=add)
    adding.start()
    while not done.is_set():
        run = generation.run(Offset(1))
        assert (list(run.keys), list(run.rows)) == ([b"a"], [b"0"])
    adding.join()
    assert len(generation.run(Offset(3_001)).keys) == 3_001
