"""A changelog is filtered by kind, key, writer and place, followed, and shown down to the bytes of a header."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from starlette.testclient import TestClient

import kvstore
from kvstore.console.query import Query
from kvstore.console.table.definition import Definition
from kvstore.console.table.live import Tail
from tests.cli.commands import fine
from tests.console.browser import api, asking, page

COUNT = 160


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two writers in turn; each second batch of one of them changes the key 0 again."""
    path = tmp_path_factory.mktemp("changes") / "store"
    with kvstore.open(path) as store:
        table = store.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k")
        with table.writer("even") as even, table.writer("odd") as odd:
            for number in range(COUNT):
                writer = odd if number % 2 else even
                writer.upsert({"k": 0 if number % 4 == 1 else number, "v": number})
                writer.flush()
        table.delete([{"k": 2}, {"k": 6}])
        several = store.create_table("several", {"k": "string", "v": "int64"}, primary_key="k", buckets=4)
        several.upsert([{"k": f"key {number}", "v": number} for number in range(12)])
    return path


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[TestClient]:
    with asking(path) as client:
        yield client


@pytest.fixture(scope="module")
def every(client: TestClient) -> list[tuple[int, str]]:
    """Every change, by pages without a filter."""
    return all_pages(client, "/tables/1/changes?start=0", "Later")


def found(facts: Any) -> list[tuple[int, str]]:
    return [(each["offset"], each["change"]) for batch in facts["batches"] for each in batch["changes"]]


def all_pages(client: TestClient, path: str, link: str) -> list[tuple[int, str]]:
    """Changes of a page and of those that its links of this name lead to."""
    changes: list[tuple[int, str]] = []
    while True:
        changes += found(api(client, path))
        links = re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', client.get(path).text)
        following = [unescape(href) for href, words in links if words == link]
        if not following:
            return changes
        path = following[0]


@pytest.mark.parametrize("kinds", [("delete", "update"), ("insert",)])
def test_pages_of_some_kinds_have_every_change_of_them_once(
    client: TestClient, every: list[tuple[int, str]], kinds: tuple[str, ...]
) -> None:
    wanted, asked = [each for each in every if each[1] in kinds], "&".join(f"kind={kind}" for kind in kinds)
    assert len(wanted) > 40
    assert all_pages(client, f"/tables/1/changes?start=0&{asked}", "Later") == wanted
    with mock.patch("kvstore.console.table.stretch.WORK_MAX", 70):  # also if a page reads only a part
        assert all_pages(client, f"/tables/1/changes?start=0&{asked}", "Later") == wanted
    assert found(api(client, f"/tables/1/changes?{asked}")) == wanted[-50:]
    assert sorted(all_pages(client, f"/tables/1/changes?{asked}", "Earlier")) == wanted


def test_a_writer_and_a_key_choose_changes(client: TestClient) -> None:
    facts = api(client, "/tables/1/changes?writer=odd&start=0")
    assert {batch["writer"] for batch in facts["batches"]} == {"odd"}
    of_key = all_pages(client, "/tables/1/changes?key=0&start=0", "Later")
    assert len(of_key) == 1 + COUNT // 4
    assert len(all_pages(client, "/tables/1/changes?key=0&writer=even&start=0", "Later")) == 1
    assert found(api(client, "/tables/1/changes?key=2")) == [found(api(client, "/tables/1/changes?key=2&start=0"))[0],
                                                             (api(client, "/tables/1")["logs"][0]["log_end"] - 2,
                                                              "delete")]  # fmt: skip
    assert facts["filter"] == {"writer": "odd"}
    assert (
        api(client, f"/tables/1/changes?writer={facts['batches'][0]['writer_id']}&start=0")["batches"]
        == facts["batches"]
    )


def test_a_key_is_looked_for_in_its_bucket(client: TestClient) -> None:
    for number in range(12):
        facts = api(client, f"/tables/2/changes?key=key {number}")
        ((change,),) = (batch["changes"] for batch in facts["batches"])
        assert change["after"]["values"]["v"] == number


def test_changes_end_where_the_page_is_told_to(client: TestClient) -> None:
    facts = api(client, "/tables/1/changes?start=10&end=12")
    assert (facts["start"], facts["end"]) == (10, 12)
    assert api(client, "/tables/1/changes?end=12")["end"] == 12
    assert api(client, "/tables/1/changes?end=2020-01-01T00:00:00Z")["batches"] == []
    assert "`end` comes before `start`" in page(client, "/tables/1/changes?start=12&end=10", 400).text


def test_a_filter_stays_in_the_form_and_empty_fields_are_no_filter(client: TestClient) -> None:
    html = page(client, "/tables/1/changes?kind=delete&writer=odd&key=2")
    given = [attributes for tag, attributes in html.elements if tag == "input"]
    assert [each["value"] for each in given if "checked" in each] == ["delete"]
    assert {each["name"]: each["value"] for each in given if each["name"] in ("writer", "key")} == {
        "writer": "odd", "key": "2"
    }  # fmt: skip
    assert "No change here matches" in html.text
    assert api(client, "/tables/1/changes?kind=&key=&writer=", 400)["error"]["class"] == "InvalidRequest"
    assert api(client, "/tables/1/changes?key=&writer=")["filter"] == {}
    page(client, "/tables/1/changes?kind=merge", 400)
    page(client, "/tables/1/changes?key=x", 400)


def test_a_batch_shows_the_bytes_of_its_header_and_what_they_mean(client: TestClient, path: Path) -> None:
    asked = "/tables/1/batch?offset=3"
    header = {each["field"]: each for each in api(client, asked)["header"]}
    assert (header["base_offset"]["hex"], header["magic"]["value"]) == ("03 00 00 00 00 00 00 00", 3)
    (printed,) = fine("log", "show", path, "t", 3, "--json").lines
    facts = api(client, asked)
    names = ("base_offset", "last_offset", "records", "bytes", "time", "schema_id", "attributes", "durable_end")
    assert [facts[name] for name in names] == [printed[name] for name in names]
    assert (facts["segment"], facts["position"]) == (printed["segment"], printed["position"])
    assert f"{header['crc']['value']:08x}" == printed["crc"]
    assert len({each["position"] for each in header.values()}) == len(header)
    assert "checksum (CRC-32C)" in page(client, asked).text
    assert asked.replace("?", "?bucket=0&") in page(client, "/tables/1/changes?start=3&end=4").all("a", "href")
    page(client, "/tables/1/batch?offset=9999", 400)
    page(client, "/tables/1/batch", 400)


def test_a_page_at_the_end_of_the_log_can_follow_it(client: TestClient) -> None:
    end = api(client, "/tables/1")["logs"][0]["log_end"]
    (source,) = page(client, "/tables/1/changes?writer=odd").all("section", "data-source")
    assert source == f"/tables/1/changes/live?writer=odd&start={end}"
    assert page(client, "/tables/1/changes?start=0").all("section", "data-source") == []
    assert client.get("/tables/1/changes/live?kind=nothing").status_code == 400
    assert client.get("/tables/9/changes/live").status_code == 404
    assert client.head(source).headers["content-type"].startswith("text/event-stream")


def test_a_tail_gives_each_change_once_and_leaves_out_what_is_too_much(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k")
        definition = Definition.of(table)
        every = Tail.of(store, definition, Query())
        deletes = Tail.of(store, definition, Query([("kind", "delete")]))
        assert every.step(store) is None
        table.upsert([{"k": key, "v": key} for key in range(5)])
        store.flush()
        stretch, _ = every.step(store) or pytest.fail("nothing came")
        assert [each.offset for batch in stretch.batches for each in batch.versions] == [0, 1, 2, 3, 4]
        assert every.step(store) is None
        table.upsert([{"k": key, "v": key} for key in range(100, 300)])
        table.delete(3)
        store.flush()
        stretch, current = every.step(store) or pytest.fail("nothing came")
        assert (every.skipped, stretch.start, every.at) == (151, 156, 206)
        assert "151 offsets came that are not shown" in every.as_html(stretch, current)
        stretch, _ = deletes.step(store) or pytest.fail("nothing came")
        assert [each.offset for batch in stretch.batches for each in batch.versions] == [205]
        store.drop_table("t")
        with pytest.raises(kvstore.errors.NoSuchTable):
            every.step(store)
