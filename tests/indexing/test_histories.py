"""Many short histories of one table whose generations freeze and merge meanwhile: ``find`` is what a scan returns."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore

COLUMNS = {"id": "int64", "mail": "string", "age": "int32"}
QUICK, LONG = 100, 20_000
IDS, MAILS, AGES = range(12), [None, "", "a", "b", "c" * 300], [None, 1, 2, 3]


def changed(random: Random, table: kvstore.Table, model: dict[int, Any]) -> None:
    match random.randrange(8):
        case 0:
            gone = random.sample(IDS, 2)
            table.delete(gone)
            for id in gone:
                model.pop(id, None)
        case 1:
            table.flush()
        case 2:
            age = random.choice(AGES[1:])
            table.update_where(pc.field("age") == age, {"mail": "b"})
            model.update({id: row | {"mail": "b"} for id, row in model.items() if row["age"] == age})
        case _:
            ids = random.sample(IDS, random.randint(1, 3))
            rows = [{"id": id, "mail": random.choice(MAILS), "age": random.choice(AGES)} for id in ids]
            table.upsert(rows)
            model.update({row["id"]: row for row in rows})


def assert_found(random: Random, table: kvstore.Table, model: dict[int, Any]) -> None:
    rows = [model[id] for id in sorted(model)]
    mail, age = random.choice(MAILS), random.choice(AGES[1:])
    by_mail = [row for row in rows if row["mail"] == mail]
    match random.randrange(4):
        case 0:
            assert table.find(mail=mail).to_pylist() == by_mail
        case 1:
            assert table.find_one(mail=mail) == (by_mail[0] if by_mail else None)
        case 2:
            assert table.find(age=(age, None)).to_pylist() == [row for row in rows if (row["age"] or 0) >= age]
        case _:
            wanted = pc.field("mail").isin(pa.array([mail, "a"])) & (pc.field("age") >= age)
            expected = [row for row in rows if row["mail"] in (mail, "a") and (row["age"] or 0) >= age]
            assert table.to_arrow(filter=wanted).to_pylist() == expected


@pytest.mark.parametrize("count", [QUICK, pytest.param(LONG, marks=pytest.mark.long)])
def test_find_is_what_a_scan_returns(tmp_path: Path, count: int) -> None:
    random = Random(count)
    with kvstore.open(tmp_path / "store", durability="none", commit_wait_ms=5, commit_idle_ms=1) as store:
        table = store.create_table("t", COLUMNS, "id", indexes={"by_mail": "mail", "by_age": ["age", "mail"]})
        model: dict[int, Any] = {}
        for _ in range(count):  # a history goes on from the rows that the one before left
            for _ in range(3):
                changed(random, table, model)
                assert_found(random, table, model)
        assert store.check().findings == []
