"""The preview of an undo shows what the commands do that it names, and does nothing itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from unittest import mock

import pytest
from starlette.testclient import TestClient

import kvstore
from tests.cli.commands import fine
from tests.console.browser import api, asking, page


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in which a writer spoilt rows, of which others changed one later."""
    path = tmp_path_factory.mktemp("undo") / "store"
    with kvstore.open(path) as store:
        table = store.create_table("t", {"k": "int64", "v": "string", "w": "int64"}, primary_key="k")
        table.upsert([{"k": key, "v": "right", "w": 0} for key in range(4)])
        with table.writer("bad") as writer:
            writer.upsert({"k": 0, "v": "wrong", "w": 0})
            writer.delete(1)
            writer.upsert({"k": 9, "v": "wrong", "w": 0})
            writer.upsert({"k": 2, "v": "wrong", "w": 0})
        table.upsert([{"k": 2, "v": "later", "w": 0}])
        store.create_table(
            "sums", {"k": "int64", "n": "int64"}, primary_key="k", merge_engine=kvstore.Aggregate({"n": "sum"})
        ).upsert([{"k": 1, "n": 1}])
        several = store.create_table("several", {"k": "int64", "v": "int64"}, primary_key="k", buckets=2)
        several.upsert([{"k": key, "v": 0} for key in range(8)])
        several.upsert([{"k": key, "v": 1} for key in range(8)])
        store.create_table("log", {"n": "int64"}).upsert([{"n": 1}])
    return path


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[TestClient]:
    with asking(path) as client:
        yield client


BAD = "/tables/1/undo?start=earliest&writer=bad"


def test_a_preview_shows_what_becomes_of_each_row_and_what_stays(client: TestClient) -> None:
    preview = api(client, BAD)["preview"]
    assert {name: preview[name] for name in ("store", "update", "delete", "stay")} == {
        "store": 1, "update": 1, "delete": 1, "stay": 1
    }  # fmt: skip
    changes = {(each["before"] or each["after"])["values"]["k"]: each for each in preview["changes"]}
    assert changes[0]["before"]["values"]["v"] == "wrong"
    assert (changes[0]["after"]["values"]["v"], changes[0]["changed"]) == ("right", ["v"])
    assert (changes[1]["before"], changes[9]["after"]) == (None, None)
    assert preview["stay_keys"] == [["2"]]
    html = page(client, BAD)
    assert "What stays as it is (1)" in html.text
    assert "/tables/1/undo" in page(client, "/tables/1").all("a", "href")
    assert page(client, "/tables/1/undo").all("option", "value") == ["bad"]


def test_the_commands_of_a_preview_do_what_it_shows(client: TestClient, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with kvstore.open(path) as store:
        store.add_replica(str(tmp_path / "replica"), "copy").ship()
        store.drop_replica("copy")
    kvstore.restore(str(tmp_path / "replica"), copy)
    with asking(copy) as of_copy:
        source = of_copy.get(BAD).text
        shown = api(of_copy, BAD)["preview"]
        listed = re.findall(r"<code>(.*?)</code>", source)
        save, apply, same = (shlex.split(unescape(each)) for each in listed)
        assert "1 to store, 1 to update, 1 to delete" in fine(*same[1:]).out
        fine(*(str(tmp_path / each) if each == "undo.patch" else each for each in save[1:]))
        before = {each["values"]["k"]: each["values"] for each in api(of_copy, "/tables/1/rows")["rows"]}
        assert before[0]["v"] == "wrong"
        fine(*(str(tmp_path / each) if each == "undo.patch" else each for each in apply[1:]))
        after = {each["values"]["k"]: each["values"] for each in api(of_copy, "/tables/1/rows")["rows"]}
        for change in shown["changes"]:
            key = (change["before"] or change["after"])["values"]["k"]
            assert after.get(key) == (None if change["after"] is None else change["after"]["values"])
        assert after[2]["v"] == "later"
        assert "Nothing would change" in page(of_copy, "/tables/1/undo?start=latest").text


def test_an_undo_that_can_not_be_is_an_error_beside_the_form(client: TestClient) -> None:
    for asked, words in [
        ("/tables/1/undo?start=earliest&writer=nobody", "No change in this range"),
        ("/tables/1/undo?start=yesterday", "an offset, or a time"),
        ("/tables/1/undo?start=999", "OffsetOutOfRange"),
        ("/tables/2/undo?start=earliest", "merge engine"),
        ("/tables/3/undo?start=4", "give one for each"),
    ]:
        html = page(client, asked, 400)
        assert words in html.text, asked
        assert "start" in html.all("input", "name")
        assert api(client, asked, 400).keys() == {"error"}
    page(client, "/tables/4/undo", 400)
    assert api(client, "/tables/1/undo")["preview"] is None


def test_a_batch_leads_to_the_preview_of_its_own_undo(client: TestClient) -> None:
    for table, bucket in ((1, 0), (3, 1)):
        html = page(client, f"/tables/{table}/changes?bucket={bucket}")
        links = [each for each in html.all("a", "href") if "/undo?" in each]
        batches = api(client, f"/tables/{table}/changes?bucket={bucket}")["batches"]
        assert len(links) == len(batches)
        preview = api(client, links[-1])["preview"]
        changed = {change["after"]["values"]["k"] for change in batches[-1]["changes"]}
        shown = {(each["before"] or each["after"])["values"]["k"] for each in preview["changes"]}
        assert shown == changed


def test_a_preview_never_reads_very_many_changes(client: TestClient) -> None:
    with mock.patch("kvstore.console.table.undo.OFFSETS_MAX", 3):
        html = page(client, BAD, 400)
    assert "too many changes" in html.text
    assert "kvstore undo" in html.text
