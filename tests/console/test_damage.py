"""A damaged store, or one whose writer was killed, shows what can be shown, and an error where something can't."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import lmdb
import pytest

import kvstore
from kvstore.errors import CorruptImage
from tests.console.browser import api, asking, page


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with kvstore.open(tmp_path / "s") as store:
        for name in ("one", "two"):
            table = store.create_table(name, {"k": "int64", "v": "int64"}, primary_key="k")
            for value in range(3):
                table.upsert([{"k": 1, "v": value}])
    return tmp_path / "s"


def test_changes_before_the_damage_are_shown_with_the_error_after_them(path: Path) -> None:
    (segment,) = path.glob("tables/1/0/log/*.log")
    data = bytearray(segment.read_bytes())
    with kvstore.open(path, read_only=True) as store:
        *_, last = store.table("one").bucket(0).log.batches(0, 5)
    data[last.position + 200] ^= 1
    segment.write_bytes(data)
    with asking(path) as client:
        facts = api(client, "/tables/1/changes?start=0")
        assert [each["offset"] for batch in facts["batches"] for each in batch["changes"]] == [0, 2]
        assert facts["error"]["class"] == "CorruptBatch"
        html = page(client, "/tables/1/changes?start=0")
        assert "kvstore check" in html.text
        assert "update" in html.text
        assert api(client, "/tables/1/rows")["rows"][0]["values"] == {"k": 1, "v": 2}
        assert api(client, "/tables/2/changes")["log_end"] == 5


def test_a_table_that_can_not_be_read_does_not_hide_the_others(path: Path) -> None:
    shutil.rmtree(path / "tables/1/0/index")
    with asking(path) as client:
        one, two = api(client, "/overview")["tables"]
        assert set(one["status"]) == {"error"}
        assert two["status"]["rows"] == 1
        assert one["status"]["error"]["class"] in page(client, "/").text
        assert [each["name"] for each in api(client, "/tables/1")["columns"]] == ["k", "v"]
        assert "merge engine" in page(client, "/tables/1").text
        assert page(client, "/tables/1/rows", 500).all("a", "href")
        metrics = client.get("/metrics").text
        assert 'kvstore_table_readable{table="one"} 0' in metrics
        assert 'kvstore_table_rows{table="two"} 1' in metrics


def test_lags_of_consumers_are_told_if_those_of_replicas_can_not_be_read(path: Path) -> None:
    with kvstore.open(path) as store:
        store.consumer("late").commit("two", {0: 1})
    damaged = mock.patch("kvstore.replica.registry.lags", side_effect=CorruptImage("planted"))
    with asking(path) as client, damaged:
        assert 'kvstore_consumer_lag_changes{consumer="late",table="two"} 4' in client.get("/metrics").text
        assert api(client, "/overview")["consumers"] == [{"consumer": "late", "table": "two", "lag": 4}]


def test_a_defect_of_the_console_is_a_page_and_json_that_say_so(path: Path) -> None:
    with (
        mock.patch("kvstore.console.store.overview.shutil.disk_usage", side_effect=RuntimeError("planted")),
        asking(path, raises=False) as client,
    ):
        assert "kvstore ui" in page(client, "/", 500).text
        assert api(client, "/overview", 500)["error"]["class"] == "RuntimeError"


def test_the_overview_needs_no_free_space_that_the_system_does_not_tell(path: Path) -> None:
    with (
        mock.patch("kvstore.console.store.overview.shutil.disk_usage", side_effect=FileNotFoundError),
        asking(path) as client,
    ):
        assert api(client, "/overview")["store"]["disk_free_bytes"] is None
        assert "not known" in page(client, "/").text


def test_a_damaged_catalog_is_an_error_that_says_what_to_do_and_goes_once_it_is_repaired(path: Path) -> None:
    journal = path / "meta/journal/data.mdb"
    data = journal.read_bytes()
    journal.write_bytes(bytes(len(data)))
    with asking(path) as client:
        html = page(client, "/", 500)
        assert "kvstore check" in html.text
        assert set(api(client, "/tables", 500)["error"]) == {"class", "message", "do"}
        assert client.get("/metrics").status_code == 500
        journal.write_bytes(data)
        assert len(api(client, "/tables")) == 2


def test_a_damaged_image_is_shown_as_damaged(path: Path) -> None:
    with kvstore.open(path) as store:
        store.checkpoint()
    with asking(path) as client:
        assert [each["checksums"] for each in api(client, "/catalog")["images"]] == ["valid"]
        (image,) = path.glob("meta/image/image.*")
        data = bytearray(image.read_bytes())
        data[len(data) // 2] ^= 1
        image.write_bytes(data)
        (found,) = api(client, "/catalog")["images"]
        assert "is damaged" in found["checksums"]
        assert "damaged: " in page(client, "/catalog").text


def test_edits_are_shown_if_one_of_them_keeps_the_store_from_being_opened(path: Path) -> None:
    with lmdb.open(str(path / "meta/journal"), max_dbs=8) as journal, journal.begin(write=True) as transaction:
        edits = journal.open_db(b"00000000000000000001", transaction)
        assert transaction.put((2).to_bytes(8, "big"), b"damaged", db=edits)
    with asking(path) as client:
        assert "kvstore check" in page(client, "/", 500).text
        *_, damaged, first = api(client, "/catalog")["edits"]
        assert (set(damaged["content"]), first["content"]["edit"]) == ({"error"}, "CreateTable")
        assert damaged["content"]["error"]["class"] in page(client, "/catalog").text
        page(client, "/catalog/edit?txid=2")


def test_the_other_edits_are_shown_if_the_journal_lacks_one(path: Path) -> None:
    with kvstore.open(path) as store:
        store.create_table("three", {"k": "int64"}, primary_key="k")
    with lmdb.open(str(path / "meta/journal"), max_dbs=8) as journal, journal.begin(write=True) as transaction:
        edits = journal.open_db(b"00000000000000000001", transaction)
        assert transaction.delete((2).to_bytes(8, "big"), db=edits)
    with asking(path) as client:
        *_, missing, first = api(client, "/catalog")["edits"]
        assert (missing["txid"], first["content"]["edit"]) == (2, "CreateTable")
        assert "does not have this edit" in missing["content"]["error"]["message"]
        assert "does not have this edit" in page(client, "/catalog").text
        page(client, "/catalog/edit?txid=2", 400)


def test_a_store_whose_writer_was_killed_is_shown_and_not_changed(path: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    with kvstore.open(path) as store:
        store.table("one").upsert([{"k": 2, "v": 2}])
        store.flush()
        store.table("one").upsert([{"k": 3, "v": 3}])
        shutil.copytree(path, killed)  # what a kill leaves
    before = _files(killed)
    with asking(killed) as client:
        assert {each["values"]["k"] for each in api(client, "/tables/1/rows")["rows"]} >= {1, 2}
        page(client, "/tables/1/changes")
        page(client, "/")
    assert _files(killed) == before


def test_a_page_shows_what_a_writer_wrote_since_the_last_one(path: Path) -> None:
    with asking(path) as client, kvstore.open(path) as store:
        end = api(client, "/tables/1/changes")["log_end"]
        store.table("one").upsert([{"k": 9, "v": 9}])
        store.create_table("three", {"k": "int64"}, primary_key="k")
        store.flush()
        assert api(client, "/tables/1/changes")["log_end"] == end + 1
        assert [each["table"] for each in api(client, "/tables")] == ["one", "three", "two"]
        store.drop_table("one")
        assert api(client, "/tables/1/rows", 404)["error"]["class"] == "NoSuchTable"


@pytest.mark.parametrize("asked", ["/api/tables", "/api/tables/1", "/metrics"])
def test_a_store_that_was_replaced_is_opened_again(path: Path, tmp_path: Path, asked: str) -> None:
    with kvstore.open(tmp_path / "other") as store:
        store.create_table("other", {"k": "int64"}, primary_key="k")
    with asking(path) as client:
        assert "one" in client.get(asked).text
        path.rename(tmp_path / "former")
        assert client.get(asked).status_code >= 400
        (tmp_path / "other").rename(path)
        answer = client.get(asked)
        assert answer.status_code == 200
        assert "other" in answer.text
        assert '"one"' not in answer.text


def _files(store: Path) -> dict[str, bytes]:
    return {str(each.relative_to(store)): each.read_bytes() for each in store.rglob("*")
            if each.is_file() and each.name != "lock.mdb"}  # fmt: skip


def test_a_directory_of_the_store_that_was_replaced_is_opened_again(path: Path, tmp_path: Path) -> None:
    with asking(path) as client:
        page(client, "/tables/2/rows")
        (path / "tables/2").rename(tmp_path / "former")
        shutil.copytree(tmp_path / "former", path / "tables/2")
        found = [client.get("/api/tables/2/rows") for _ in range(3)]
        assert {each.json()["error"]["class"] for each in found if each.status_code != 200} <= {"StoreReplaced"}
        assert found[-1].status_code == 200
