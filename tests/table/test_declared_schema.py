"""Schemas declared by dicts, dataclasses and pydantic models."""

from __future__ import annotations

import dataclasses
import datetime as dt
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from operator import itemgetter
from typing import Annotated, Any, Literal, NewType, NotRequired, Required, TypedDict
from uuid import NAMESPACE_URL, UUID, uuid5

import pyarrow as pa
import pyarrow.compute as pc
import pydantic
import pytest
import typing_extensions

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
    assert table["a"] == dataclasses.asdict(file)


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


class Place(typing_extensions.TypedDict):
    town: Required[str]
    at: tuple[float, ...] | None


class Partly(TypedDict):
    k: str
    n: NotRequired[int]


class Tree(TypedDict):
    k: str
    children: list[Tree]


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
        ({"k": Decimal}, "Annotated.*decimal128"),
        ({"k": set[str]}, "declare a list"),
        ({"k": list}, r"list\[str\]"),
        ({"k": tuple[int, str]}, "declare a class"),
        ({"k": dict[str | None, int]}, "Keys are flat, not null"),
        ({"k": dict[tuple[int, ...], int]}, "Keys are flat, not null"),
        ({"k": Color}, "Members of an Enum"),
        ({"k": Annotated[Level, pa.string()]}, "don't go into"),
        ({"k": Annotated[int, pa.string()]}, "don't go into"),
        ({"k": Annotated[UUID, pa.binary(8)]}, "don't go into"),
        ({"k": str, "v": Annotated[dt.datetime, pa.date32()] | None}, "column=v"),
        (Tree, "A class can't be a field of itself"),
        (Partly, "Every row has every column"),
        ({"k": int | str}, "column=k"),
        ({"k": "decimal128(99, 2)"}, "decimal128"),
        ({1: "int64"}, "name of a column"),
        ({"k": "int64", "\ud800": "string"}, "printable text"),
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


UserId = NewType("UserId", int)


class Size(IntEnum):
    SMALL, LARGE = 1, 2


class Inner(pydantic.BaseModel):
    kind: Kind
    sizes: dict[str, Size]

    @pydantic.computed_field
    def text(self) -> str:
        return f"{self.kind}"


@dataclasses.dataclass(frozen=True)
class Everything:
    id: UUID
    owner: UserId
    size: Size
    level: Annotated[Level, pa.int8()] | None
    raw: Annotated[UUID, pa.binary(16)]
    day: dt.date
    time: dt.time
    at: dt.datetime
    local: Annotated[dt.datetime, pa.timestamp("us")]
    lasts: dt.timedelta
    price: Annotated[Decimal, pa.decimal128(10, 2)]
    mode: Literal["r", "w", None]
    path: tuple[str, ...]
    place: Place
    part: Part | None
    inner: Inner
    by_day: dict[dt.date, list[dict[UUID, Part]]]
    nothing: dict[str, int] | None
    counted: int = dataclasses.field(init=False, default=7)


ONE = UUID(int=1)
EVERYTHING = Everything(
    id=ONE,
    owner=UserId(1),
    size=Size.LARGE,
    level=Level.HIGH,
    raw=ONE,
    day=AT.date(),
    time=dt.time(1, 2, 3),
    at=AT,
    local=AT.replace(tzinfo=None),
    lasts=dt.timedelta(1),
    price=Decimal("1.50"),
    mode=None,
    path=("a", "b"),
    place={"town": "Bonn", "at": (1.0,)},
    part=Part(1),
    inner=Inner(kind=Kind.FILE, sizes={"a": Size.SMALL}),
    by_day={AT.date(): [{ONE: Part(2)}, {}]},
    nothing=None,
)
PYDANTIC: Any = pydantic.create_model(
    "Everything", **{field.name: (field.type, ...) for field in dataclasses.fields(Everything)}
)


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("alters", [False, True])
def test_an_object_that_was_written_is_made_of_its_row(open_store: Any, count: int, alters: bool) -> None:
    given = [dataclasses.replace(EVERYTHING, id=UUID(int=n)) for n in range(count)]
    with open_store() as store:
        table = store.create_table("t", Everything, "id", buckets=2)
        table.upsert(given if count > 1 else given[0])
    with open_store() as store:  # what the declaration says stays
        table = store["t"]
        if alters:
            store.add_columns("t", {"more": dict[str, int] | None})
        for each in given:
            assert table.get(each.id, into=Everything) == each
        row = table[given[0].id]
        assert row["inner"] == {"kind": "file", "sizes": {"a": 1}}
        assert row["by_day"] == {AT.date(): [{str(ONE): {"n": 2, "share": None}}, {}]}
        assert row in list(table)
        assert table.get(UUID(int=count), into=Everything) is None
        model = PYDANTIC(**row)
        assert table.get(given[0].id, into=PYDANTIC) == model
        assert model.by_day == EVERYTHING.by_day
        table.upsert(model)
        assert table.get(given[0].id, into=Everything) == given[0]


def test_a_typed_dict_is_a_schema_and_a_row_one_of_it(store: kvstore.Store) -> None:
    table = store.create_table("places", Place, "town")
    assert table.schema.names == ["town", "at"]
    place = Place(town="Bonn", at=(1.0, 2.0))
    table.upsert(place)
    assert table.get("Bonn", into=Place) == place
    assert table["Bonn"] == {"town": "Bonn", "at": [1.0, 2.0]}


def test_maps_that_arrow_declares_come_back_as_pairs_also_beside_dicts(store: kvstore.Store) -> None:
    pairs = pa.map_(pa.string(), pa.int64())
    declared = {"k": int, "d": dict[str, int], "m": pairs, "in_list": pa.list_(pairs), "nested": dict[str, Part]}
    table = store.create_table("t", declared, "k")
    row = {"k": 1, "d": {"a": 1}, "m": [("a", 1), ("a", 2)], "in_list": [[("b", 1)]], "nested": {"p": Part(1)}}
    table.upsert(row)
    found = row | {"nested": {"p": {"n": 1, "share": None}}}
    assert table[1] == found == next(iter(table))
    assert table.to_arrow().to_pylist()[0]["d"] == [("a", 1)]  # as Arrow has them
    store.create_table("copy", table.schema, "k").upsert(table.scan())
    assert store["copy"][1] == found


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=True, extra="forbid")
    name: str = pydantic.Field(alias="Name")
    secret: str = pydantic.Field("none", exclude=True)

    @pydantic.computed_field
    def length(self) -> int:
        return len(self.name)


def test_a_model_is_stored_by_its_fields_without_aliases_and_what_it_computes(store: kvstore.Store) -> None:
    table = store.create_table("t", Aliased, "name")
    table.upsert(Aliased(Name="a"))
    store.add_columns("t", {"more": "int64"})
    assert table["a"] == {"name": "a", "more": None}
    assert table.get("a", into=Aliased) == Aliased(Name="a")


@dataclasses.dataclass
class Narrow:
    k: int
    lacking: int


@pytest.mark.parametrize("into", [Narrow, pydantic.create_model("Narrow", k=int, lacking=int)])
def test_a_row_that_does_not_fit_into_a_class_is_refused(store: kvstore.Store, into: Any) -> None:
    table = store.create_table("t", {"k": int, "v": "string"}, "k")
    table.upsert({"k": 1, "v": "x"})
    with pytest.raises(SchemaMismatch, match=r"(?s)does not fit into this class.*lacking"):
        table.get(1, into=into)
    with pytest.raises(SchemaMismatch, match="does not fit into this class"):
        table.get(1, into=dataclasses.make_dataclass("Wrong", [("k", int), ("v", Kind)]))
    with pytest.raises(SchemaMismatch, match="the row has no at, town"):
        table.get(1, into=Place)
    for wrong in (dict, "Narrow", Narrow(1, 2), int | None):
        with pytest.raises(InvalidRequest, match="A row is made as a dataclass"):
            table.get(1, into=wrong)  # type: ignore[call-overload]
