from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from kvstore.testing.strategies import KEY_TYPES, SCALAR_TYPES, foreign_types, schemas
from logformat.errors import InvalidRequest, UnsupportedVersion
from logformat.rows.schema import (
    COLUMNS_MAX,
    NESTING_MAX,
    RESERVED_NAMES,
    fixed_width,
    from_json,
    is_variable,
    normalise,
    normalise_type,
    to_json,
)


def nested(depth: int) -> pa.DataType:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


@given(schemas())
def test_a_stored_schema_survives_a_round_trip_through_json(schema: pa.Schema) -> None:
    again = from_json(json.loads(json.dumps(to_json(schema))))
    assert again.equals(schema, check_metadata=True)
    assert str(again) == str(schema)  # equality ignores the names of inner fields, so compare these too


def test_the_json_of_a_schema_is_frozen() -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.timestamp("us", "UTC"), nullable=False),
            ("b", pa.binary(3)),
            ("c", pa.decimal128(10, -2)),
            ("d", pa.list_(pa.field("item", pa.int8(), nullable=False))),
            ("e", pa.map_(pa.string(), pa.float16())),
            ("f", pa.struct([("x", pa.bool_())])),
        ]
    )
    assert to_json(schema) == [
        {"name": "a", "type": "timestamp[us, tz=UTC]", "nullable": False},
        {"name": "b", "type": {"fixed_size_binary": 3}, "nullable": True},
        {"name": "c", "type": {"decimal128": [10, -2]}, "nullable": True},
        {"name": "d", "type": {"list": {"name": "item", "type": "int8", "nullable": False}}, "nullable": True},
        {
            "name": "e",
            "type": {
                "map": [
                    {"name": "key", "type": "string", "nullable": False},
                    {"name": "value", "type": "halffloat", "nullable": True},
                ]
            },
            "nullable": True,
        },
        {"name": "f", "type": {"struct": [{"name": "x", "type": "bool", "nullable": True}]}, "nullable": True},
    ]


def nested_json(depth: int) -> dict[str, Any]:
    column: dict[str, Any] = {"name": "a", "type": "int8", "nullable": True}
    for _ in range(depth):
        column = {"name": "a", "type": {"list": column}, "nullable": True}
    return column


def test_a_type_at_the_nesting_limit_is_read() -> None:
    assert to_json(from_json([nested_json(NESTING_MAX)])) == [nested_json(NESTING_MAX)]


@pytest.mark.parametrize(
    "column",
    [
        {"name": "a", "type": "int9", "nullable": True},
        {"name": "a", "type": "list<item: int8>", "nullable": True},
        {"name": "a", "type": {"tensor": [1]}, "nullable": True},
        {"name": "a", "type": {"decimal128": [5]}, "nullable": True},
        {"name": "a", "type": {"decimal128": [99, 2]}, "nullable": True},
        {"name": "a", "type": {"decimal128": [39, 2]}, "nullable": True},
        {"name": "a", "type": {"decimal256": [38, 2]}, "nullable": True},
        {"name": "a", "type": {"decimal256": [77, 2]}, "nullable": True},
        {"name": "a", "type": {"decimal512": [77, 2]}, "nullable": True},
        {"name": "a", "type": {"fixed_size_binary": "3"}, "nullable": True},
        {"name": "a", "type": None, "nullable": True},
        {"name": "a", "type": "int8"},
        {"type": "int8", "nullable": True},
        {"name": "a", "type": {"list": "int8"}, "nullable": True},
        {"name": "a", "type": {"map": [{"name": "k", "type": "int8", "nullable": True}] * 2}, "nullable": True},
        nested_json(NESTING_MAX + 1),
    ],
    ids=lambda column: str(column)[:80],
)
def test_json_that_is_not_a_schema_is_refused(column: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedVersion):
        from_json([column])


class TestNormalise:
    @given(schemas())
    def test_a_stored_schema_is_unchanged(self, schema: pa.Schema) -> None:
        assert normalise(schema).equals(schema, check_metadata=True)

    @given(schemas(foreign_types()))
    def test_any_other_schema_becomes_a_stored_one(self, schema: pa.Schema) -> None:
        stored = normalise(schema)
        assert (stored.names, [field.nullable for field in stored]) == (
            schema.names,
            [field.nullable for field in schema],
        )
        assert normalise(stored) == stored == from_json(to_json(stored))

    @pytest.mark.parametrize(
        ("given", "stored"),
        [
            (pa.large_string(), pa.string()),
            (pa.string_view(), pa.string()),
            (pa.large_binary(), pa.binary()),
            (pa.binary_view(), pa.binary()),
            (pa.date64(), pa.date32()),
            (pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("ns", "UTC")),
            (pa.decimal32(7, 2), pa.decimal128(7, 2)),
            (pa.decimal64(16, -3), pa.decimal128(16, -3)),
            (pa.decimal256(38, 2), pa.decimal128(38, 2)),
            (pa.dictionary(pa.int8(), pa.string()), pa.string()),
            (pa.dictionary(pa.int32(), pa.large_list(pa.date64())), pa.list_(pa.date32())),
            (pa.large_list(pa.int8()), pa.list_(pa.int8())),
            (pa.list_view(pa.int8()), pa.list_(pa.int8())),
            (pa.large_list_view(pa.string_view()), pa.list_(pa.string())),
            (pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
            (pa.map_(pa.large_string(), pa.date64()), pa.map_(pa.string(), pa.date32())),
            (pa.map_(pa.string(), pa.int8(), keys_sorted=True), pa.map_(pa.string(), pa.int8())),
            (pa.struct([("x", pa.large_list(pa.string_view()))]), pa.struct([("x", pa.list_(pa.string()))])),
        ],
        ids=str,
    )
    def test_a_foreign_type_becomes_the_type_with_the_same_values(
        self, given: pa.DataType, stored: pa.DataType
    ) -> None:
        assert normalise_type(given) == stored

    def test_inner_fields_stay_not_null(self) -> None:
        item = pa.field("item", pa.large_string(), nullable=False)
        given = pa.struct([pa.field("x", pa.large_list(item), nullable=False)])
        inner = normalise_type(given).field("x")
        assert (inner.nullable, inner.type.value_field.nullable) == (False, False)

    def test_metadata_is_not_stored(self) -> None:
        schema = pa.schema([pa.field("a", pa.int8(), metadata={"k": "v"})], metadata={"k": "v"})
        stored = normalise(schema)
        assert (stored.metadata, stored.field("a").metadata) == (None, None)

    @pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
    def test_key_columns_become_not_null_and_others_stay_nullable(self, kind: pa.DataType) -> None:
        stored = normalise(pa.schema([("k", kind), ("v", kind)]), ["k"])
        assert [(field.type, field.nullable) for field in stored] == [(kind, False), (kind, True)]


class TestRefused:
    @pytest.mark.parametrize(
        "kind",
        [
            pa.null(),
            pa.month_day_nano_interval(),
            pa.run_end_encoded(pa.int32(), pa.string()),
            pa.dense_union([pa.field("x", pa.int8())]),
            pa.uuid(),
            pa.binary(0),
            pa.struct([]),
            pa.struct([("x", pa.int8()), ("x", pa.int8())]),
            pa.list_(pa.null()),
            pa.map_(pa.string(), pa.null()),
            pa.struct([("x", pa.null())]),
            pa.dictionary(pa.int8(), pa.null()),
        ],
        ids=str,
    )
    def test_types_that_can_not_be_stored_are_refused(self, kind: pa.DataType) -> None:
        with pytest.raises(InvalidRequest) as refused:
            normalise(pa.schema([("good", pa.int8()), ("bad", kind)]))
        assert refused.value.where["column"] == "bad"

    def test_types_that_nest_too_deep_are_refused(self) -> None:
        assert normalise_type(nested(NESTING_MAX)) == nested(NESTING_MAX)
        with pytest.raises(InvalidRequest) as refused:
            normalise(pa.schema([("deep", nested(NESTING_MAX + 1))]))
        assert refused.value.where["column"] == "deep"

    @pytest.mark.parametrize(
        "kind",
        [
            *(pa.float16(), pa.float32(), pa.float64(), pa.dictionary(pa.int8(), pa.float64())),
            *(pa.list_(pa.int8()), pa.map_(pa.string(), pa.int8()), pa.struct([("x", pa.int8())])),
            pa.list_(pa.int8(), 2),
        ],
        ids=str,
    )
    def test_keys_without_an_order_are_refused(self, kind: pa.DataType) -> None:
        schema = pa.schema([("a", pa.int8()), ("k", kind)])
        assert len(normalise(schema)) == 2
        with pytest.raises(InvalidRequest) as refused:
            normalise(schema, ["a", "k"])
        assert refused.value.where["column"] == "k"

    def test_keys_of_missing_columns_are_refused(self) -> None:
        with pytest.raises(InvalidRequest) as refused:
            normalise(pa.schema([("a", pa.int8())]), ["a", "b"])
        assert refused.value.where["column"] == "b"

    def test_a_column_twice_in_the_key_is_refused(self) -> None:
        with pytest.raises(InvalidRequest):
            normalise(pa.schema([("a", pa.int8())]), ["a", "a"])

    def test_two_columns_of_one_name_are_refused(self) -> None:
        with pytest.raises(InvalidRequest) as refused:
            normalise(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("a", pa.int8())]))
        assert refused.value.where["column"] == "a"

    @pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES), "", "a\nb", "\x00", "x" * 256, "é" * 128, "\u202e"])
    def test_reserved_too_long_and_unprintable_names_are_refused(self, name: str) -> None:
        with pytest.raises(InvalidRequest):
            normalise(pa.schema([(name, pa.int8())]))

    def test_the_columns_of_a_changelog_are_reserved(self) -> None:
        changelog = {"_bucket", "_log_offset", "_change_type", "_commit_timestamp", "_commit_version", "_found"}
        assert changelog <= RESERVED_NAMES

    @pytest.mark.parametrize("name", ["a\nb", "x" * 256])
    def test_too_long_and_unprintable_names_of_inner_fields_are_refused(self, name: str) -> None:
        with pytest.raises(InvalidRequest):
            normalise(pa.schema([("a", pa.struct([(name, pa.int8())]))]))
        assert normalise_type(pa.struct([("_bucket", pa.int8())])).names == ["_bucket"]

    @pytest.mark.parametrize("count", [0, COLUMNS_MAX + 1])
    def test_no_columns_or_too_many_are_refused(self, count: int) -> None:
        with pytest.raises(InvalidRequest):
            normalise(pa.schema([(f"c{i}", pa.int8()) for i in range(count)]))
        assert len(normalise(pa.schema([(f"c{i}", pa.int8()) for i in range(COLUMNS_MAX)]))) == COLUMNS_MAX


@pytest.mark.parametrize("kind", SCALAR_TYPES, ids=str)
def test_the_width_of_a_type_is_that_of_its_values(kind: pa.DataType) -> None:
    assert is_variable(kind) == (kind in (pa.string(), pa.binary()))
    if not is_variable(kind) and kind != pa.bool_():
        assert fixed_width(kind) * 8 == kind.bit_width
    assert fixed_width(pa.bool_()) == 1
