"""Schemas declared by dicts, dataclasses and pydantic models."""

from __future__ import annotations

import dataclasses
import datetime as dt
from decimal import Decimal
from enum import Enum, StrEnum
from operator import itemgetter
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

import pyarrow as pa
import pyarrow.compute as pc
import pydantic
import pytest

import kvstore
from kvstore.errors import InvalidRequest, SchemaMismatch
from kvstore.table.declared_schema import schema_of
from tests.support.tables import rows_of


class Kind(StrEnum):
    FILE = "file"


@dataclasses.dataclass
class Part:
    n: int
    share: float | None = None


@dataclasses.dataclass
class File:
    path: str
    size: int | None
    at: dt.datetime
    price: Annotated[Decimal, pa.decimal128(10, 2)]
    tags: list[str]
    counts: dict[str, int | None]
    kind: Kind
    mode: Literal["r", "w"]
    part: Part | None = None


class Model(pydantic.BaseModel):
    path: str
    size: int | None = None
    day: dt.date


STORED = pa.schema(
    [
        pa.field("path", pa.string(), False),
        pa.field("size", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC"), False),
        pa.field("price", pa.decimal128(10, 2), False),
        pa.field("tags", pa.list_(pa.field("item", pa.string(), False)), False),
        pa.field("counts", pa.map_(pa.string(), pa.int64()), False),
        pa.field("kind", pa.string(), False),
        pa.field("mode", pa.string(), False),
        pa.field("part", pa.struct([pa.field("n", pa.int64(), False), pa.field("share", pa.float64())])),
    ]
)
AT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


def test_a_dataclass_is_a_schema_and_its_instances_are_rows(store: kvstore.Store) -> None:
    table = store.create_table("files", File, "path")
    assert table.schema == STORED
    file = File("a", None, AT, Decimal("1.50"), ["x"], {"y": None}, Kind.FILE, "r", Part(1))
    table.upsert(file)
    table.upsert(dataclasses.replace(file, path=name) for name in "bc")
    with table.writer() as writer:
        writer.upsert([dataclasses.replace(file, path="d", part=None)])
        writer.upsert(dataclasses.replace(file, path="e"))
    assert [row["path"] for row in rows_of(table)] == list("abcde")
    assert table["a"] == dataclasses.asdict(file) | {"counts": [("y", None)]}


def test_a_pydantic_model_is_a_schema_and_its_instances_are_rows(store: kvstore.Store) -> None:
    table = store.create_table("files", Model, "path")
    assert table.schema == pa.schema(
        [pa.field("path", pa.string(), False), pa.field("size", pa.int64()), pa.field("day", pa.date32(), False)]
    )
    rows = [Model(path=name, day=dt.date(2026, 1, 2)) for name in "ab"]
    table.upsert(rows)
    assert [Model(**row) for row in rows_of(table)] == rows


class Color(Enum):
    RED = "red"
    NONE = None


class Level(Enum):
    LOW, HIGH = 1, 2


@dataclasses.dataclass
class Order:
    id: Annotated[UUID, pa.string()]
    bytes: Annotated[UUID, pa.binary(16)]
    level: Annotated[Level, pa.int8()]
    color: Annotated[Color, pa.string()] | None
    others: list[Annotated[UUID, pa.binary()]]


@pytest.mark.parametrize("count", [1, 100])
def test_uuids_and_members_of_enumerations_are_stored_as_the_named_type(store: kvstore.Store, count: int) -> None:
    ids = sorted(uuid5(NAMESPACE_URL, str(n)) for n in range(count))
    table = store.create_table("orders", Order, ["id", "bytes"], buckets=2)
    orders = [Order(id, id, Level.HIGH, Color.RED, [id]) for id in ids]
    stored = [{"id": str(id), "bytes": id.bytes, "level": 2, "color": "red", "others": [id.bytes]} for id in ids]
    table.upsert(orders if count > 1 else orders[0])
    assert sorted(rows_of(table), key=itemgetter("id")) == stored
    id, row = ids[0], stored[0]
    assert table.get((id, id)) == table[id, id] == table.get((str(id), id.bytes)) == row
    assert table.lookup([(id, id)]).drop_columns("_found").to_pylist() == [row]
    assert table.put_if({**row, "color": Color.NONE, "level": Level.LOW}, dataclasses.asdict(orders[0]))
    assert table[id, id] == {**row, "color": None, "level": 1}
    table.update_where(pc.field("id") == str(id), {"color": Color.RED, "level": Level.HIGH})
    assert table[id, id] == row
    table.delete([(each, each) for each in ids])
    assert rows_of(table) == []


@pytest.mark.parametrize("value", [Level.LOW, uuid5(NAMESPACE_URL, "x"), Color.RED])
def test_one_that_stands_for_another_type_is_refused(store: kvstore.Store, value: Any) -> None:
    kind = "string" if isinstance(value, Level) else "int64"
    table = store.create_table("t", {"k": kind, "v": kind}, "k")
    for row in ({"k": value, "v": None}, [{"k": value}] * 20):
        with pytest.raises(SchemaMismatch, match="A value has a different type than the column"):
            table.upsert(row)
    assert len(table) == 0


def test_a_dict_names_types(store: kvstore.Store) -> None:
    declared = {"k": "string", "n": "int64 not null", "at": "timestamp[us, tz=UTC]", "x": pa.int8(), "y": int | None}
    assert store.create_table("t", declared, "k").schema == pa.schema(
        [
            pa.field("k", pa.string(), False),
            pa.field("n", pa.int64(), False),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("x", pa.int8()),
            pa.field("y", pa.int64()),
        ]
    )


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"k": "int"}, "Did you mean `int64`"),
        ({"k": "strng"}, "Did you mean `string`"),
        ({"k": "decimal(10,2)"}, "Did you mean `decimal128"),
        ({"k": "qwertz"}, "Types are"),
        ({"k": Decimal}, "Annotated"),
        ({"k": int | str}, "column=k"),
        ({"k": "decimal128(99, 2)"}, "decimal128"),
        ({1: "int64"}, "name of a column"),
        ({"k": 7}, "column=k"),
        ({"k": [int]}, "column=k"),
        ([("k", "int64")], "A schema is"),
        (Part(1), "A schema is"),
        ("int64", "A schema is"),
        (dataclasses.make_dataclass("Later", [("k", "Unknown")]), "top level"),
        ({}, "1 to 4096 columns"),
    ],
)
def test_a_declaration_that_does_not_say_everything_is_refused(
    store: kvstore.Store, declared: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        store.create_table("t", declared, "k")
    assert store.list_tables() == []


def test_nulls_are_taken_wherever_the_annotation_stands() -> None:
    about = pa.decimal128(10, 2)
    kinds: dict[str, Any] = {
        "inside": Annotated[Decimal | None, about],
        "outside": Annotated[Decimal, about] | None,
        "other": Annotated[int | None, "of bytes"],
        "never": Annotated[int, "of bytes"],
        "in_list": list[Annotated[Decimal | None, about]],
    }
    found = schema_of(kinds)
    assert [field.nullable for field in found] == [True, True, True, False, False]
    assert found.types == [about, about, pa.int64(), pa.int64(), pa.list_(pa.field("item", about))]
