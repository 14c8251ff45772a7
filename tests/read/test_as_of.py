"""Earlier states: rows as of every offset of a history."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.testing.model import Model
from tests.support.examples import slow

SCHEMA = pa.schema([pa.field("k", pa.int8(), False), pa.field("v", pa.int64())])
OPERATIONS = st.tuples(
    st.sampled_from(["upsert", "upsert", "delete"]),
    st.builds(lambda k, v: {"k": k, "v": v}, st.integers(0, 7), st.integers(0, 9)),
)


@slow(40)
@given(batches=st.lists(st.lists(OPERATIONS, max_size=8), max_size=8))
def test_rows_as_of_every_offset(
    batches: list[list[tuple[str, dict[str, Any]]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with kvstore.open(tmp_path_factory.mktemp("s") / "store", segment_bytes_max=2000) as store:
        table, model = store.create_table("t", SCHEMA, "k"), Model(("k",))
        for batch in batches:
            table.apply(kvstore.Changes.of(batch, SCHEMA))
            model.apply(batch)
        for offset in range(model.end + 1):
            rows = table.scan(as_of=offset).read_all().to_pylist()
            assert rows == [row for _, row in sorted(model.as_of(offset).items())], offset
