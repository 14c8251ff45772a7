"""Every type has a JSON form, and what is read from it is what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import SchemaMismatch
from logformat.rows.json_form import from_json, from_text, to_json
from logformat.rows.python_values import MISFITS
from tests.cli.commands import fine
from tests.support.json_forms import FORMS


@pytest.mark.parametrize(("kind", "value", "form"), FORMS, ids=[f"{kind}-{form}" for kind, _, form in FORMS])
def test_a_value_has_its_form_and_comes_back(kind: pa.DataType, value: Any, form: Any) -> None:
    column = pa.array([None, value, None, value], kind)
    for part in (column, column[1:], column[:1], column[:0]):
        forms = to_json(part)
        assert forms == [None if null else form for null in part.is_null().to_pylist()]
        cells = [None if each is None else each if isinstance(each, str) else json.dumps(each) for each in forms]
        for again in (from_json(forms, kind), from_text(pa.array(cells, pa.string()), kind)):
            again.validate(full=True)
            assert again.type == kind
            assert str(again) == str(part) or again.equals(part)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (pa.int8(), 128),
        (pa.int8(), 1.0),
        (pa.int8(), "1"),
        (pa.int8(), True),
        (pa.bool_(), 1),
        (pa.float64(), "one"),
        (pa.float32(), 1e300),
        (pa.string(), 1),
        (pa.binary(), "no base64!"),
        (pa.binary(2), "YQ=="),
        (pa.decimal128(5, 2), "1.505"),
        (pa.decimal128(5, 2), 1.5),
        (pa.date32(), "2024-02-30"),
        (pa.date32(), 1),
        (pa.time32("s"), "24:00:00"),
        (pa.time32("s"), "12:00:00.5"),
        (pa.timestamp("s"), "2024-01-01T00:00:00Z"),
        (pa.timestamp("s", "UTC"), "2024-01-01T00:00:00"),
        (pa.timestamp("s"), "2024-01-01T00:00:00.5"),
        (pa.duration("s"), "PT1.5S"),
        (pa.duration("s"), "P1D"),
        (pa.duration("ns"), "PT4611686018427387904S"),
        (pa.list_(pa.int8()), {"a": 1}),
        (pa.map_(pa.string(), pa.int8()), [["a"]]),
        (pa.map_(pa.string(), pa.int8()), [[None, 1]]),
        (pa.struct({"a": pa.int8()}), {"b": 1}),
    ],
    ids=str,
)
def test_other_forms_are_refused(kind: pa.DataType, form: Any) -> None:
    with pytest.raises((SchemaMismatch, *MISFITS)):
        from_json([form], kind)


def test_what_scan_prints_load_takes(tmp_path: Path) -> None:
    fields = [pa.field(f"c{at}", kind) for at, (kind, _, _) in enumerate(FORMS)]
    schema = pa.schema([pa.field("k", pa.int64(), False), *fields])
    columns = [pa.array([None, value], kind) for kind, value, _ in FORMS]
    rows = pa.RecordBatch.from_arrays([pa.array([0, 1]), *columns], schema=schema)
    with kvstore.open(tmp_path / "store") as store:
        for name in ("given", "lines", "cells"):
            store.create_table(name, schema, primary_key="k")
        store.table("given").upsert(rows)
    printed = fine("scan", tmp_path / "store", "given", "--json")
    (tmp_path / "lines.jsonl").write_text(printed.out)
    with (tmp_path / "cells.csv").open("w") as file:
        for row in [dict(zip(schema.names, schema.names, strict=True)), *printed.lines]:
            cells = (
                each if isinstance(each, str) else "" if each is None else json.dumps(each) for each in row.values()
            )
            quoted = ('"' + cell.replace('"', '""') + '"' if cell else "" for cell in cells)
            file.write(",".join(quoted) + "\n")
    for name in ("lines.jsonl", "cells.csv"):
        fine("load", tmp_path / "store", name.split(".")[0], tmp_path / name)
        assert fine("scan", tmp_path / "store", name.split(".")[0], "--json").out == printed.out
