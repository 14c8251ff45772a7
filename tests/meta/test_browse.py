"""The files of a catalog, read without the store: its images, and its edits one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore.errors import InvalidRequest, NotAStore
from logformat import paths
from logformat.catalog import edits
from logformat.catalog.edits import CreateTable, DropTable, RenameTable


@pytest.fixture
def used(tmp_path: Path) -> Path:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("a", {"k": "int64"}, primary_key="k")
        store.checkpoint()
        store.rename_table("a", "b")
        store.drop_table("b")
    return tmp_path / "s"


def test_edits_are_those_that_the_store_made(used: Path) -> None:
    with kvstore.browse_catalog(used) as catalog:
        found = [edits.decode(data) for data in catalog.edits_after(0)]
        with kvstore.open(used, read_only=True) as store:
            assert [each.txid for each in found] == list(range(1, store.txid + 1))
        kinds = [
            type(each.payload) for each in found if isinstance(each.payload, CreateTable | RenameTable | DropTable)
        ]
        assert kinds == [CreateTable, RenameTable, DropTable]
        for after in range(len(found) + 1):
            assert [edits.decode(data) for data in catalog.edits_after(after)] == found[after:]
        assert edits.decode(catalog.edit(found[-1].txid)) == found[-1]
        assert sum(each.edits for each in catalog.segments()) == len(found)


def test_a_store_that_can_not_be_opened_shows_which_image_is_damaged(used: Path) -> None:
    with kvstore.browse_catalog(used) as catalog:
        (image,) = catalog.images()
        assert image.damage is None
        assert image.head is not None
        assert image.head.txid == image.txid
        path = paths.image_file(used / paths.IMAGES, image.txid)
        assert image.bytes == path.stat().st_size
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        (damaged,) = catalog.images()
        assert (damaged.head, damaged.bytes) == (None, image.bytes)
        assert str(path) in str(damaged.damage)


def test_other_places_and_numbers_are_refused(used: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="no journal"), kvstore.browse_catalog(tmp_path / "none"):
        pass
    with kvstore.browse_catalog(used) as catalog:
        for txid in (-1, "one", 1 << 63):
            with pytest.raises(InvalidRequest, match="txid"):
                catalog.edits_after(txid)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="does not have this edit"):
            catalog.edit(99)
