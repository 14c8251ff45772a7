"""Images that are damaged, gone, older or another's: the one before and the journal are enough, or it is said."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import UUID

import msgspec
import pytest

from kvstore.disk.files import Files
from kvstore.errors import CorruptImage, UnsupportedVersion
from kvstore.meta import image
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from kvstore.meta.state import CatalogState
from logformat.catalog import image as bytes_of
from logformat.ids import Epoch
from tests.checkpoint.catalogs import STORE, Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Two images, of edits 40 and 80; the journal begins after edit 35."""
    catalog = Catalog(tmp_path / "s", seed=3)
    for _ in range(2):
        catalog.append(40)
        catalog.controller().checkpoint()
    assert (catalog.image_txids, catalog.first_edit) == ([80, 40], 36)
    catalog.append(3)
    return catalog


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_every_flipped_bit_is_detected_and_the_image_before_is_used(catalog: Catalog) -> None:
    path = catalog.image_path()
    whole = path.read_bytes()
    random = Random(1)
    for place, _ in enumerate(whole):
        flip(path, 8 * place + random.randrange(8))
        with pytest.raises(CorruptImage):
            image.load(path, STORE)
        if not place % 50:
            journal = catalog.opened()
            assert journal.state().is_same(catalog.expected)
            assert journal.base == 40
            assert [each.where["path"] for each in journal.images.damaged] == [path]
            journal.close()
        path.write_bytes(whole)


def test_the_next_checkpoint_replaces_a_damaged_image(catalog: Catalog) -> None:
    flip(catalog.image_path(), 999)
    done = catalog.controller().checkpoint()
    assert (done.txid, done.previous, done.dropped_edits) == (83, 40, 0)
    assert catalog.image_txids == [83, 40]
    assert catalog.reloaded().is_same(catalog.expected)


def test_an_image_that_is_damaged_and_as_new_as_the_catalog_is_made_again(catalog: Catalog) -> None:
    catalog.controller().checkpoint()
    flip(catalog.image_path(), 999)
    done = catalog.controller().checkpoint()
    assert (done.txid, done.written, catalog.image_txids) == (83, True, [83, 80])
    image.load(catalog.image_path(), STORE)


def test_what_is_missing_is_named(catalog: Catalog) -> None:
    flip(catalog.image_path(0), 999)
    flip(catalog.image_path(1), 999)
    with pytest.raises(CorruptImage, match="missing=1 to 35") as caught:
        catalog.reloaded()
    assert all(name in str(caught.value) for name in ("image.00000000000000000080", "image.00000000000000000040"))
    with pytest.raises(CorruptImage, match="missing=1 to 35"):
        catalog.controller().checkpoint()
    assert catalog.image_txids == [80, 40]
    assert catalog.first_edit == 36


def test_without_images_a_whole_journal_is_enough(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "s")
    catalog.append(20)
    catalog.controller().checkpoint()
    flip(catalog.image_path(), 999)
    assert catalog.reloaded().is_same(catalog.expected)
    catalog.image_path().unlink()
    assert catalog.reloaded().is_same(catalog.expected)


def test_a_journal_from_a_backup_is_not_written_on(catalog: Catalog, tmp_path: Path) -> None:
    """Its next edit would have a txid that another edit had."""
    shutil.copytree(catalog.path / "meta/journal", tmp_path / "backup")
    catalog.append(20)
    catalog.controller().checkpoint()
    catalog.journal.close()
    shutil.rmtree(catalog.path / "meta/journal")
    shutil.copytree(tmp_path / "backup", catalog.path / "meta/journal", copy_function=shutil.copyfile)
    with pytest.raises(CorruptImage, match="journal_ends=83 known=103"):
        catalog.opened().state()


def test_an_image_of_another_store_or_name_is_not_used(catalog: Catalog) -> None:
    other = Journal(catalog.path, Files(), catalog.clock, UUID(int=1), leadership=CatalogLeadership())
    with pytest.raises(CorruptImage):
        other.state()
    assert "another store" in str(other.images.damaged[0])
    other.close()
    shutil.copyfile(catalog.image_path(1), catalog.path / "meta/image/image.00000000000000000082")
    journal = catalog.opened()
    assert journal.state().is_same(catalog.expected)
    assert journal.base == 80
    assert "name of another" in str(journal.images.damaged[0])


def test_an_image_of_a_newer_version_stops_everything(catalog: Catalog) -> None:
    path = catalog.image_path()
    found = image.load(path, STORE)
    newer = msgspec.structs.replace(found.head, format=2)
    path.write_bytes(b"".join(bytes_of.encode_image(newer, image.items_of(found.state))))
    with pytest.raises(UnsupportedVersion, match=r"upgrade.*format=2"):
        catalog.reloaded()
    with pytest.raises(UnsupportedVersion):
        catalog.controller().checkpoint()


def test_links_and_files_that_are_no_images_are_not_followed(catalog: Catalog, tmp_path: Path) -> None:
    path = catalog.image_path()
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    (catalog.path / "meta/image/image.99.old").write_bytes(b"")
    journal = catalog.opened()
    assert journal.state().is_same(catalog.expected)
    assert journal.base == 40
    assert len(journal.images.damaged) == 1


def test_an_image_that_reads_back_as_another_is_none(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: a field that is forgotten, memory that fails."""
    items_of = image.items_of

    def forgetful(state: CatalogState) -> Iterator[bytes_of.Item]:
        return iter([*items_of(state)][:-1])

    epoch = image.head_of(catalog.image_path()).epoch
    with monkeypatch.context() as patch:
        patch.setattr(image, "items_of", forgetful)
        with pytest.raises(CorruptImage, match="differs from the catalog"):
            catalog.controller().checkpoint()
    assert catalog.image_txids == [80, 40]
    assert catalog.controller().checkpoint().txid == 83
    assert image.head_of(catalog.image_path()).epoch == Epoch(epoch + 1)
