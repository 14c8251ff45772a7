"""Catalogs that have each checksum right and are wrong all the same: refused, with nothing taken of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files
from kvstore.errors import CorruptImage
from kvstore.meta import image
from kvstore.meta.journal import MAP_BYTES
from logformat import paths
from logformat.catalog import edits
from logformat.catalog.edits import BeginEpoch, Edit
from logformat.ids import Epoch, Txid
from tests.checkpoint.catalogs import STORE, Catalog

Journal = dict[int, bytes]


def without_one(journal: Journal) -> None:
    del journal[max(journal) - 2]


def with_two_in_each_others_place(journal: Journal) -> None:
    last = max(journal)
    journal[last], journal[last - 1] = journal[last - 1], journal[last]


def with_one_under_another_number(journal: Journal) -> None:
    journal[max(journal) + 1] = journal[max(journal)]


def with_one_of_a_former_leader(journal: Journal) -> None:
    last = max(journal)
    begin = Edit(txid=Txid(last - 1), epoch=Epoch(3), time_ms=0, payload=BeginEpoch(leader="x"))
    journal[last - 1] = edits.encode(begin)


@pytest.mark.parametrize(
    "change",
    [without_one, with_two_in_each_others_place, with_one_under_another_number, with_one_of_a_former_leader],
)
def test_a_journal(tmp_path: Path, change: Callable[[Journal], None]) -> None:
    catalog = Catalog(tmp_path / "s", seed=2)
    catalog.append(6)
    catalog.journal.close()
    environment = open_environment(catalog.path / paths.JOURNAL, Files(), map_bytes=MAP_BYTES)
    with environment.read() as reading, reading.cursor() as cursor:
        (name,) = [bytes(name).decode() for name in cursor.iternext(values=False)]
    transaction = environment.begin_write()
    database = environment.database_within(transaction, name)
    with transaction.cursor(db=database) as cursor:
        journal = {int.from_bytes(key, "big"): bytes(value) for key, value in cursor.iternext()}
    assert sorted(journal) == list(range(1, 7))
    change(journal)
    transaction.drop(database, delete=False)
    for txid, edit in journal.items():
        transaction.put(txid.to_bytes(8, "big"), edit, db=database)
    transaction.commit()
    environment.close()
    with pytest.raises(CorruptImage, match="run `kvstore check`"):
        catalog.reloaded()


def test_an_image_with_something_of_a_table_it_does_not_have(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "s", seed=2)
    while not catalog.expected.consumers:
        catalog.append(1)
    made = image.image_of(catalog.expected, STORE, epoch=Epoch(1), now_ms=0)
    items = list(image.items_of(catalog.expected))
    gone = next(iter(catalog.expected.consumers))
    others = [item for item in items if not (type(item).__name__ == "Table" and item.table_id == gone)]
    assert len(others) == len(items) - 1
    with pytest.raises(CorruptImage, match="a table it does not have"):
        image.state_of(made.head, others)
    catalog.journal.close()


def test_an_edit_that_is_lost_everywhere(tmp_path: Path) -> None:
    """As a reader asks that has seen it."""
    catalog = Catalog(tmp_path / "s", seed=2)
    catalog.append(3)
    assert catalog.journal.state_at(Txid(3)).is_same(catalog.expected)
    with pytest.raises(CorruptImage, match="has lost edits"):
        catalog.journal.state_at(Txid(4))
    catalog.journal.close()
