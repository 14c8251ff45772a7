"""Conditions of ``--where``: what they select, and how the others are refused."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import InvalidRequest
from kvstore.read.conditions import parse_filter

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "a b": pa.string(),
        "s": pa.string(),
        "d": pa.date32(),
        "t": pa.timestamp("us", "UTC"),
        "yes": pa.bool_(),
        "x": pa.decimal128(5, 2),
        "f": pa.float64(),
        "bytes": pa.binary(),
    }
)
UTC = dt.UTC
ROWS = pa.Table.from_pylist(
    [
        {
            "n": 1,
            "a b": "x",
            "s": "src/a",
            "d": dt.date(2026, 1, 31),
            "t": dt.datetime(2026, 1, 31, 12, tzinfo=UTC),
            "yes": True,
            "x": Decimal("1.50"),
            "f": 0.5,
            "bytes": b"a",
        },
        {
            "n": -2,
            "a b": 'y"',
            "s": "it's",
            "d": dt.date(2026, 2, 1),
            "t": dt.datetime(2026, 2, 1, tzinfo=UTC),
            "yes": False,
            "x": Decimal("2.00"),
            "f": 1e3,
            "bytes": b"b",
        },
        {},
    ],
    SCHEMA,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n = 1", [0]),
        ("n == 1", [0]),
        ("n != 1", [1]),
        ("n <> 1", [1]),
        ("n>-2", [0]),
        ("n >= -2 and n < 1", [1]),
        ("n <= 1", [0, 1]),
        ("n = 1 or n is null", [0, 2]),
        ("n is not null", [0, 1]),
        ("not (n = 1)", [1]),
        ("NOT n = 1 OR n = 1 AND n = 1", [0, 1]),
        ("n = 1 or n = -2 and n = 5", [0]),
        ("(n = 1 or n = -2) and n = 5", []),
        ("n in (1, 5)", [0]),
        ("n not in (1, 5)", [1]),
        ("s like 'src/%'", [0]),
        ("s not like 'src/_'", [1]),
        ("s = 'it''s'", [1]),
        ("\"a b\" = 'x'", [0]),
        ('"a b" = \'y"\'', [1]),
        ("d > '2026-01-31'", [1]),
        ("t = '2026-01-31T13:00:00+01:00'", [0]),
        ("yes = true", [0]),
        ("yes != TRUE", [1]),
        ("x > 1.5", [1]),
        ("x = 2", [1]),
        ("f >= 1e3", [1]),
        ("f < .75", [0]),
        ("bytes = 'YQ=='", [0]),
    ],
)
def test_a_condition_selects_rows(text: str, found: list[int]) -> None:
    expected = [ROWS.slice(at, 1).to_pylist()[0] for at in found]
    assert ROWS.filter(parse_filter(text, SCHEMA)).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "name of a column is expected"),
        ("  ", "the end"),
        ("n", "is expected"),
        ("n =", "a value is expected"),
        ("n = null", "`is null`"),
        ("n = x", "single quotes"),
        ('s = "x"', "single quotes"),
        ("s = 5", "single quotes"),
        ("s = true", "single quotes"),
        ("N = 1", "There is no column N; columns are n, a b"),
        ("n = 1 n = 2", "`and` or `or`"),
        ("(n = 1", "`)` is expected"),
        ("n in 1", "`(` is expected"),
        ("n in ()", "a value is expected"),
        ("n is 1", "`null` is expected"),
        ("n like '%'", "is for text"),
        ("n not 1", "is expected"),
        ("n ! 3", "can't be read"),
        ("n = 1; drop", "can't be read"),
        ("n = 'one'", "expected=int64 given=one"),
        ("n = 1.5", "expected=int64"),
        ("n = 9223372036854775808", "expected=int64"),
        ("d = 'today'", "expected=date32"),
        ("t = '2026-01-31'", "expected=timestamp"),
        ("s = 'open", "can't be read"),
        ("not " * 60 + "n = 1", "nested too deeply"),
    ],
)
def test_other_texts_are_refused(text: str, word: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_filter(text, SCHEMA)
    assert word in str(refused.value)


def test_a_condition_on_values_that_have_no_order_is_refused_before_rows_are_read() -> None:
    schema = pa.schema([("tags", pa.list_(pa.int64()))])
    for text in ("tags = '[1]'", "tags < '[1]'"):
        with pytest.raises(InvalidRequest, match="filter can't be used"):
            kvstore.parse_filter(text, schema)
    with pytest.raises(InvalidRequest, match="A condition is a text"):
        kvstore.parse_filter(pc.field("tags").is_null(), schema)


@given(st.text("n=<>()' and or not in like 12\"s,%", max_size=30))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    with suppress(InvalidRequest):
        ROWS.filter(parse_filter(text, SCHEMA))
