"""Batches of a load end at the same rows, however the rows were read."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, strategies as st

from kvstore.cli.load.portions import portions
from logformat.rows.value_bytes import row_bytes
from tests.support.examples import slow

SCHEMA = pa.schema(
    {
        "n": pa.int32(),
        "s": pa.string(),
        "l": pa.list_(pa.struct({"b": pa.binary(), "f": pa.float64()})),
        "m": pa.map_(pa.string(), pa.list_(pa.int8())),
    }
)
TEXTS = st.one_of(st.none(), st.text("aé", max_size=9))
ROWS = st.fixed_dictionaries(
    {
        "n": st.one_of(st.none(), st.integers(0, 9)),
        "s": TEXTS,
        "l": st.one_of(
            st.none(),
            st.lists(
                st.one_of(st.none(), st.fixed_dictionaries({"b": st.binary(max_size=5), "f": st.floats(0, 1)})),
                max_size=3,
            ),
        ),
        "m": st.one_of(
            st.none(),
            st.lists(st.tuples(st.text("ab", max_size=3), st.lists(st.integers(0, 9), max_size=3)), max_size=2),
        ),
    }
)


@slow(60)
@given(st.lists(ROWS, max_size=30), st.lists(st.integers(0, 7), max_size=30), st.integers(1, 8), st.integers(1, 300))
def test_where_a_batch_ends_depends_on_the_rows_alone(
    rows: list[dict[str, object]], pieces: list[int], rows_max: int, bytes_max: int
) -> None:
    whole = pa.RecordBatch.from_pylist(rows, SCHEMA)
    cut, place = [], 0
    for length in [*pieces, len(rows)]:
        cut.append(whole.slice(place, length))
        place += length
    found = list(portions(cut, rows_max, bytes_max))
    assert [each.to_pylist() for each in found] == [
        each.to_pylist() for each in portions([whole] if rows else [], rows_max, bytes_max)
    ]
    more = [each.append_column("more", pa.nulls(len(each), pa.int64())) for each in cut]
    assert [len(each) for each in portions(more, rows_max, bytes_max)] == list(map(len, found))
    assert [row for batch in found for row in batch.to_pylist()] == whole.to_pylist()
    sizes = row_bytes(whole, nulls=False).tolist()
    place = 0
    for batch in found:
        end = place + batch.num_rows
        assert 0 < batch.num_rows <= rows_max
        assert batch.num_rows == 1 or sum(sizes[place:end]) <= bytes_max
        # Nothing more would have fitted.
        assert batch.num_rows == rows_max or end == len(rows) or sum(sizes[place : end + 1]) > bytes_max
        place = end


def test_a_row_counts_what_is_in_it() -> None:
    rows = [
        {"n": 1, "s": "é", "l": [{"b": b"abc", "f": 0.5}, None], "m": [("a", [1, 2])]},
        {"n": None, "s": None, "l": None, "m": None},
    ]
    whole = pa.RecordBatch.from_pylist(rows, SCHEMA)
    lists = 4 + (4 + 3 + 8) + (4 + 0 + 8)
    maps = 4 + (4 + 1) + (4 + 2)
    assert row_bytes(whole).tolist() == [4 + (4 + 2) + lists + maps, 4 + 4 + 4 + 4]
    assert row_bytes(whole[1:]).tolist() == [16]
