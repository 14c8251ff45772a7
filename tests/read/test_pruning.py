"""A filter on the key reads only keys that can match, and finds the same rows as a full scan."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import InvalidRequest
from kvstore.index.index import View
from tests.support.examples import slow

KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1) | st.integers(-5, 5)),
    "text": (pa.string(), st.text("ab\0é", max_size=5) | st.sampled_from(["common/" * 20 + end for end in "abcd"])),
    "date": (pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
    "decimal": (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2)),
}
k, v = pc.field("k"), pc.field("v")


def filters(values: st.SearchStrategy[Any], kind: pa.DataType) -> st.SearchStrategy[pc.Expression]:
    scalar = values.map(lambda value: pa.scalar(value, kind))
    simple = st.one_of(
        scalar.map(lambda x: k == x),
        scalar.map(lambda x: k != x),
        scalar.map(lambda x: k < x),
        scalar.map(lambda x: k >= x),
        st.lists(values, max_size=3).map(lambda listed: k.isin(pa.array(listed, kind))),
        st.integers(0, 3).map(lambda n: v == n),
        st.just(v.is_null()),
        st.just(k.is_null()),
    )
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda both: both[0] & both[1]),
            st.tuples(inner, inner).map(lambda both: both[0] | both[1]),
            inner.map(lambda one: ~one),
        ),
        max_leaves=4,
    )


@pytest.mark.parametrize("of", KEYS)
@slow(40)
@given(data=st.data())
def test_a_filter_finds_the_same_rows_as_a_full_scan(
    of: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind, values = KEYS[of]
    schema = pa.schema([pa.field("k", kind, False), pa.field("second", pa.int8(), False), pa.field("v", pa.int64())])
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries({"k": values, "second": st.integers(0, 3), "v": st.none() | st.integers(0, 3)}),
            max_size=60,
        )
    )
    with kvstore.open(tmp_path_factory.mktemp("s") / "store") as store:
        table = store.create_table("t", schema, ["k", "second"])
        table.upsert(rows)
        everything = table.scan().read_all()
        for filter in data.draw(st.lists(filters(values, kind), min_size=1, max_size=5)):
            assert table.scan(filter=filter).read_all() == everything.filter(filter)


@pytest.mark.parametrize(
    ("filter", "rows_read_max"),
    [
        (k == 77_777, 100),
        (k.isin([5, 99_000]), 200),
        ((k >= 50_000) & (k < 50_100) & (v > 0), 300),
        (k < 0, 0),
        (v == 1, 100_000),
    ],
    ids=str,
)
def test_a_selective_filter_reads_few_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filter: pc.Expression, rows_read_max: int
) -> None:
    read = 0
    found_by = View.found

    def counted(view: View, *arguments: Any) -> Any:
        nonlocal read
        for rows in found_by(view, *arguments):
            read += len(rows.keys())
            yield rows

    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())]), "k")
        table.upsert(pa.table({"k": range(100_000), "v": [1] * 100_000}))
        monkeypatch.setattr(View, "found", counted)
        found = table.scan(filter=filter).read_all()
        assert found.num_rows <= read <= rows_read_max


def test_a_filter_that_fails_for_a_key_is_refused_by_the_reader(store: kvstore.Store) -> None:
    table = store.create_table("t", pa.schema([pa.field("k", pa.uint64(), False)]), "k")
    table.upsert([{"k": 1}, {"k": 2**64 - 1}])
    reader = table.scan(filter=k >= 0)  # 0 is an int64, so everything it is compared with must be one
    with pytest.raises(InvalidRequest, match="can't be used on these rows"):
        reader.read_all()
    assert table.scan(filter=k >= pa.scalar(2, pa.uint64())).read_all().to_pylist() == [{"k": 2**64 - 1}]
