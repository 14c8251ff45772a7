"""Every type has a JSON form, and what is read from it is what was written."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import SchemaMismatch
from logformat.rows.json_form import from_json, from_text, to_json
from logformat.rows.python_values import MISFITS
from tests.cli.commands import fine

FORMS: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), True, True),
    (pa.int8(), -128, -128),
    (pa.int64(), -(2**63), -(2**63)),
    (pa.uint64(), 2**64 - 1, 2**64 - 1),
    (pa.float16(), 0.1, 0.1),
    (pa.float32(), 0.1, 0.1),
    (pa.float64(), 0.1, 0.1),
    (pa.float64(), math.nan, "NaN"),
    (pa.float32(), math.inf, "Infinity"),
    (pa.float16(), -math.inf, "-Infinity"),
    (pa.string(), 'é\x1b\n"', 'é\x1b\n"'),
    (pa.binary(), b"\0\xff", "AP8="),
    (pa.binary(2), b"ab", "YWI="),
    (pa.decimal128(38, 2), Decimal("1.50"), "1.50"),
    (pa.decimal128(5, -2), Decimal("1E+3"), "1000"),
    (pa.date32(), dt.date(1, 2, 3), "0001-02-03"),
    (pa.time32("s"), dt.time(23, 59, 59), "23:59:59"),
    (pa.time32("ms"), dt.time(0, 0, 0, 5000), "00:00:00.005"),
    (pa.time64("us"), dt.time(1, 2, 3, 4), "01:02:03.000004"),
    (pa.time64("ns"), 1, "00:00:00.000000001"),
    (pa.timestamp("s"), -1, "1969-12-31T23:59:59"),
    (pa.timestamp("ms"), 1, "1970-01-01T00:00:00.001"),
    (pa.timestamp("us", "UTC"), 1, "1970-01-01T00:00:00.000001Z"),
    (pa.timestamp("ns", "UTC"), -1, "1969-12-31T23:59:59.999999999Z"),
    (pa.duration("s"), 2**62, "PT4611686018427387904S"),
    (pa.duration("ms"), -1500, "-PT1.500S"),
    (pa.duration("us"), 0, "PT0.000000S"),
    (pa.duration("ns"), 1, "PT0.000000001S"),
    (pa.list_(pa.binary()), [b"a", None], ["YQ==", None]),
    (pa.map_(pa.date32(), pa.float64()), [(dt.date(1970, 1, 1), math.nan)], [["1970-01-01", "NaN"]]),
    (pa.struct({"d": pa.duration("s"), "n": pa.int8()}), {"d": None, "n": 1}, {"d": None, "n": 1}),
]


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
