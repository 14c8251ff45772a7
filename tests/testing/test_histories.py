"""A table and the model agree on every drawn history."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.testing import Answer, History, Model, Refused, changes, histories, rows, schemas

EXPECTED = {"applied", "duplicate", "OutOfOrderSequence", "insert", "update_preimage", "update_postimage", "delete"}
FILES = pa.schema([pa.field("path", pa.string(), nullable=False), pa.field("size", pa.int64())])


def replay(history: History, path: Path) -> None:
    """Give a table and the model all batches; both must answer the same."""
    model = Model(tuple(history.primary_key))
    with kvstore.open(path) as store:
        table = store.create_table("t", history.schema, history.primary_key)
        for batch in history.batches:
            try:
                expected = model.apply(batch.operations, batch.writer, batch.sequence)
            except Refused as refused:
                with pytest.raises(refused.error):
                    table.bucket(0).apply(batch.changes, batch.writer, batch.sequence)
            else:
                answer = table.bucket(0).apply(batch.changes, batch.writer, batch.sequence)
                assert Answer(answer.first_offset, answer.last_offset, answer.duplicated) == expected
        rows = {tuple(row[name] for name in history.primary_key): row for row in table}
        assert rows == model.rows
        assert table.offsets() == {0: (0, model.end)}
        assert store.check().ok


@settings(max_examples=15)
@given(history=histories())
def test_a_table_agrees_with_the_model(history: History, tmp_path_factory: pytest.TempPathFactory) -> None:
    replay(history, tmp_path_factory.mktemp("history") / "store")


def test_histories_repeat_batches_skip_batches_and_share_keys() -> None:
    seen = set()

    @settings(max_examples=100, database=None)
    @given(histories(FILES, ["path"]))
    def look(history: History) -> None:
        assert (history.schema, history.primary_key) == (FILES, ["path"])
        model = Model(("path",))
        for batch in history.batches:
            try:
                duplicated = model.apply(batch.operations, batch.writer, batch.sequence).duplicated
            except Refused as refused:
                seen.add(refused.error.__name__)
            else:
                seen.add("duplicate" if duplicated else "applied")
        seen.update(kind for _, kind, *_ in model.log)

    look()
    assert seen == EXPECTED


@given(st.data())
def test_changes_and_rows_have_the_schema(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    assert data.draw(rows(schema)).schema == schema
    drawn = data.draw(changes(schema, rows_max=3))
    assert drawn.rows.schema == schema
    assert len(drawn) <= 3
