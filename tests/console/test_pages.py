"""Each page shows what is in the store, as HTML and as JSON, and the command that prints the same."""

from __future__ import annotations

import datetime as dt
import random
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from starlette.testclient import TestClient

import kvstore
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from tests.cli.commands import fine
from tests.console.browser import LONG, api, asking, page
from tests.support.clocks import SetClock


def test_the_overview_lists_tables_and_says_that_all_is_well(client: TestClient) -> None:
    facts = api(client, "/overview")
    assert [(each["table"], each["id"]) for each in facts["tables"]] == [
        ('<i>"log"</i>', 2), ("files", 1), ("wal", 4), ("wide", 3)
    ]  # fmt: skip
    files = facts["tables"][1]
    assert (files["primary_key"], files["status"]["rows"], files["status"]["changes"]) == (["path"], 2, 7)
    assert facts["tables"][2]["status"]["rows"] is None
    html = page(client, "/")
    assert "All is well." in html.text
    assert {"/tables/1", "/tables/2", "/tables/3", "/tables/4"} <= set(html.all("a", "href"))
    for each in facts["tables"]:
        del each["status"]["rate"]  # only of the tables on a page
    assert api(client, "/tables") == facts["tables"]
    assert [each["table"] for each in api(client, "/overview?q=WI")["tables"]] == ["wide"]


def test_a_table_shows_its_columns_options_and_logs(client: TestClient) -> None:
    facts = api(client, "/tables/3")
    assert [each["name"] for each in facts["columns"]][:3] == ["k", "kind", "c000"]
    assert facts["options"]["merge_engine"] == "last_row"
    assert [(each["bucket"], each["log_start"]) for each in facts["logs"]] == [(0, 0), (1, 0)]
    html = page(client, "/tables/3")
    assert "merge engine" in html.text
    assert "c099" in html.text
    assert "/tables/3/changes?bucket=1" in html.all("a", "href")


def test_the_pages_of_rows_hold_each_row_once(client: TestClient) -> None:
    found = []
    for bucket in (0, 1):
        path: str | None = f"/api/tables/3/rows?bucket={bucket}"
        pages = 0
        while path is not None:
            facts = api(client, path.removeprefix("/api"))
            found += [each["values"]["k"] for each in facts["rows"]]
            path, pages = facts["next"], pages + 1
        assert pages > 2
    assert sorted(found) == list(range(300))


def test_a_wide_table_shows_its_first_columns_or_those_that_are_chosen(client: TestClient) -> None:
    assert api(client, "/tables/3/rows")["columns"] == ["k", "kind", *(f"c{number:03}" for number in range(10))]
    facts = api(client, "/tables/3/rows?column=c099&column=c001")
    assert facts["columns"] == ["k", "kind", "c099", "c001"]
    html = page(client, "/tables/3/rows?column=c099")
    boxes = [given for tag, given in html.elements if tag == "input" and given.get("type") == "checkbox"]
    assert [given["value"] for given in boxes if "checked" in given] == ["c099"]
    assert len(boxes) == 100
    following = next(each for each in html.all("a", "href") if "after" in each)
    assert api(client, following)["columns"] == ["k", "kind", "c099"]
    assert "no such column" in page(client, "/tables/3/rows?column=nope", 400).text


def test_a_key_is_looked_up_in_its_bucket(client: TestClient) -> None:
    assert [each["values"]["c000"] for each in api(client, "/tables/3/rows?key=17&key=x'y")["rows"]] == [17]
    assert api(client, "/tables/3/rows?key=17&key=")["rows"] == []
    assert "There is no row of this key." in page(client, "/tables/1/rows?key=nobody").text
    assert "does not fit" in page(client, "/tables/3/rows?key=seventeen&key=x", 400).text
    assert "one value for each" in page(client, "/tables/3/rows?key=17", 400).text


def test_rows_are_shown_as_they_were(client: TestClient) -> None:
    def at(place: object) -> list[tuple[str, int]]:
        rows = api(client, f"/tables/1/rows?as_of={place}")["rows"]
        return [(each["values"]["path"], each["values"]["size"]) for each in rows]

    assert (at(2), at(4), at(5), at("")) == ([("a", 1), ("b", 2)], [("a", 3), ("b", 2)], [("a", 3)],
                                             [("a", 3), ("c", 4)])  # fmt: skip
    slider = next(
        given for tag, given in page(client, "/tables/1/rows?as_of=2").elements if given.get("type") == "range"
    )
    assert (slider["name"], slider["min"], slider["max"], slider["value"]) == ("as_of", "0", "7", "2")
    assert "without the 5 changes since then" in page(client, "/tables/1/rows?as_of=2").text
    assert "later than" not in page(client, "/tables/1/rows?as_of=99", 400).text
    assert "time zone" in page(client, "/tables/1/rows?as_of=2026-01-31T12:00:00", 400).text


def test_a_slider_over_time_shows_the_rows_before_the_commits_of_a_time(tmp_path: Path) -> None:
    clock = SetClock(1_000_000_000_000)
    with Store(tmp_path / "s", StoreOptions(), clock=clock) as store:
        table = store.create_table("t", {"k": "int64"}, primary_key="k")
        for key in range(5):
            table.upsert({"k": key})
            table.flush()
            clock.now += 60_000
    with asking(tmp_path / "s") as client:
        found = page(client, "/tables/1/rows?where=k < 4")
        slider = next(each for _, each in found.elements if each.get("name") == "as_of_ms")
        least, most, step = (int(slider[name] or 0) for name in ("min", "max", "step"))
        assert least == 1_000_000_000_000
        assert least + 4 * 60_000 < most <= least + 4 * 60_000 + step
        assert slider["value"] == slider["max"]

        def rows(place: str) -> list[int]:
            return [each["values"]["k"] for each in api(client, f"/tables/1/rows?{place}")["rows"]]

        assert [rows(f"as_of_ms={least + by}") for by in (0, 1, 60_000, 60_001, 240_000)] == [
            [], [0], [0], [0, 1], [0, 1, 2, 3]
        ]  # fmt: skip
        assert rows(f"as_of_ms={most}") == rows("as_of_ms=") == [0, 1, 2, 3, 4]
        then = page(client, f"/tables/1/rows?as_of_ms={least + 60_001}&where=k < 4")
        slider = next(each for _, each in then.elements if each.get("name") == "as_of_ms")
        assert least + 60_000 < int(slider["value"] or 0) <= least + 120_000
        assert "2001-09-09T01:47:40.001Z" in then.all("input", "value"), "the field has the time"
        assert "not both" in page(client, "/tables/1/rows?as_of_ms=5&as_of=3", 400).text
        assert "is a number" in page(client, "/tables/1/rows?as_of_ms=253402300800000", 400).text


def test_a_condition_chooses_rows_as_they_are_and_as_they_were(client: TestClient) -> None:
    def keys(path: str) -> list[int]:
        return [each["values"]["k"] for each in api(client, path)["rows"]]

    facts = api(client, "/tables/3/rows?where=c000 > 290&column=c001")
    assert (facts["columns"], keys("/tables/3/rows?where=c000 > 290")) == (
        ["k", "kind", "c001"], [each["values"]["k"] for each in facts["rows"]]
    )  # fmt: skip
    every = sorted(keys("/tables/3/rows?where=c000 > 290") + keys("/tables/3/rows?where=c000 > 290&bucket=1"))
    assert every == list(range(291, 300))
    html = page(client, "/tables/3/rows?where=c000 > 290")
    assert "c000 > 290" in html.all("input", "value")
    assert "No row here matches" in page(client, "/tables/3/rows?where=c000 < 0").text
    was = api(client, "/tables/1/rows?as_of=2&where=size < 3 and path != 'b'")["rows"]
    assert [each["values"]["size"] for each in was] == [1]
    assert "is expected" in page(client, "/tables/3/rows?where=c000 >", 400).text
    assert "There is no column" in page(client, "/tables/3/rows?where=nope = 1", 400).text


def test_pages_with_a_condition_hold_each_row_once_also_if_few_match(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k")
        table.upsert([{"k": key, "v": key % 7} for key in range(1_000)])
    with (
        asking(tmp_path / "s") as client,
        mock.patch("kvstore.console.table.rows.ROWS_READ", 300),
        mock.patch("kvstore.console.table.rows.ROWS_A_TIME", 100),
    ):
        for where, expected in (("v = 3", 143), ("k = 999", 1), ("k >= 0 or v = 1", 1_000)):
            found, path = [], f"/tables/1/rows?where={where}"
            while path:
                facts = api(client, path)
                found += [each["values"]["k"] for each in facts["rows"]]
                path = (facts["next"] or "").removeprefix("/api")
            assert (len(found), len(set(found))) == (expected, expected)
        following = api(client, "/tables/1/rows?where=v = 3 or v = 4")["next"].removeprefix("/api")
        printed = fine(*_command(client, following)[1:], "--json").lines
        assert printed == [each["values"] for each in api(client, following)["rows"]]


def test_an_earlier_state_that_would_read_too_much_is_refused(client: TestClient) -> None:
    with mock.patch("kvstore.console.table.rows.PAST_BYTES_MAX", 1):
        assert "too far back" in page(client, "/tables/1/rows?as_of=2", 400).text
        page(client, "/tables/1/rows")


def test_a_changelog_shows_batches_their_writers_and_what_an_update_changed(client: TestClient) -> None:
    batches = api(client, "/tables/1/changes?start=0&column=size")["batches"]
    changes = [(each["offset"], each["change"], each["changed"]) for batch in batches for each in batch["changes"]]
    assert changes == [(0, "insert", []), (1, "insert", []), (3, "update", ["size"]), (4, "delete", []),
                       (6, "insert", [])]  # fmt: skip
    assert [(each["base_offset"], each["records"], each.get("writer")) for each in batches] == [
        (0, 2, None), (2, 2, None), (4, 1, None), (5, 0, "7"), (6, 1, "nightly")
    ]  # fmt: skip
    update = batches[1]["changes"][0]
    assert (update["before"]["values"], update["after"]["values"]) == (
        {"path": "a", "size": 1},
        {"path": "a", "size": 3},
    )
    text = page(client, "/tables/1/changes?start=0").text
    assert "An empty batch: it changes no row." in text
    assert "1 other shown column is the same." in text


def test_pages_of_changes_never_part_an_update_and_reach_every_change(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k")
        table.upsert([{"k": 0, "v": 0}])
        table.upsert([{"k": 0, "v": 1}, *({"k": 1 + number, "v": 0} for number in range(60))])
        for value in range(60):
            table.upsert([{"k": 0, "v": value + 2}])
    found: list[tuple[int, str, Any]] = []
    with asking(tmp_path / "s") as client:
        path: str | None = "/tables/1/changes?start=0"
        while path is not None:
            facts = api(client, path)
            found += [
                (each["offset"], each["change"], each["before"])
                for batch in facts["batches"]
                for each in batch["changes"]
            ]
            path = None if facts["end"] == facts["log_end"] else f"/tables/1/changes?start={facts['end']}"
        newest = api(client, "/tables/1/changes")
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
    assert len(found) == 1 + 61 + 60
    assert all(before is not None for _, change, before in found if change == "update")
    assert newest["end"] == newest["log_end"]


def test_changes_are_found_by_time_and_never_outside_of_the_log(client: TestClient) -> None:
    assert api(client, "/tables/1/changes?start=2020-01-01T00:00:00Z")["start"] == 0
    assert api(client, "/tables/1/changes?start=2100-01-01T00:00:00Z")["batches"] == []
    assert "OffsetOutOfRange" in page(client, "/tables/1/changes?start=8", 400).text


def test_the_history_of_a_key_shows_its_versions_newest_first(client: TestClient) -> None:
    facts = api(client, "/tables/1/history?key=a")
    assert [(each["offset"], each["change"]) for each in facts["versions"]] == [(3, "update"), (0, "insert")]
    assert api(client, "/tables/1/history?key=c")["versions"][0]["writer"] == "nightly"
    assert "2 versions, the newest first" in page(client, "/tables/1/history?key=b").text
    assert api(client, "/tables/3/history?key=5&key=x'y")["versions_all"] == 1
    assert api(client, "/tables/3/history?key=5&key=x'y&start=9999", 400)["error"]["class"] == "OffsetOutOfRange"
    assert "The log has no change" in page(client, "/tables/1/history?key=nobody").text


def test_a_log_shows_its_segments_and_what_keeps_them(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", segment_bytes_max=1 << 16) as store:
        table = store.create_table("t", {"k": "int64", "v": "string"}, primary_key="k", retention=dt.timedelta(days=3))
        for number in range(4):
            table.upsert([{"k": key, "v": random.Random(key).randbytes(300).hex()} for key in range(200 * number)])
        store.consumer("late").commit("t", {0: 1})
    with asking(tmp_path / "s") as client:
        facts = api(client, "/tables/1/log")
        newest, *others = facts["segments"]
        assert len(others) > 1
        assert newest["kept_because"][-1] == "it is the newest"
        assert {tuple(each["kept_because"]) for each in others} == {("consumer late has yet to read from offset 1",)}
        assert (newest["end_offset"], others[-1]["base_offset"]) == (api(client, "/tables/1/changes")["log_end"], 0)
        html = page(client, "/tables/1/log")
        assert "3 days" in html.text
        links = [each for each in html.all("a", "href") if "start=" in each]
        assert [api(client, each)["start"] for each in links] == [each["base_offset"] for each in facts["segments"]]


def test_the_catalog_shows_its_edits_the_newest_first(client: TestClient) -> None:
    facts = api(client, "/catalog")
    kinds = [each["content"]["edit"] for each in facts["edits"]]
    assert (kinds.count("CreateTable"), kinds.count("OpenWriter")) == (4, 1)
    txids = [each["txid"] for each in facts["edits"]]
    assert txids == sorted(txids, reverse=True)
    assert api(client, f"/catalog?before={txids[1]}")["edits"] == facts["edits"][2:]
    html = page(client, "/catalog")
    edits = [each for each in html.all("a", "href") if each.startswith("/catalog/edit")]
    assert api(client, edits[-1]) == facts["edits"][-1]
    assert "primary_key" in page(client, edits[-1]).text
    assert "does not have this edit" in page(client, "/catalog/edit?txid=99", 400).text


def test_a_log_table_and_a_wal_image_show_what_they_have(client: TestClient) -> None:
    assert [each["change"] for each in api(client, "/tables/2/changes")["batches"][0]["changes"]] == ["append"] * 2
    assert "/tables/2/rows" not in page(client, "/tables/2").all("a", "href")
    assert "see its changes" in page(client, "/tables/2/rows", 400).text
    assert "WAL image" in page(client, "/tables/4/changes").text
    assert len(api(client, "/tables/4/rows")["rows"]) == 1


def test_a_long_value_is_cut_and_saved_whole(client: TestClient) -> None:
    facts = api(client, "/tables/1/changes?start=0")
    inserted = facts["batches"][0]["changes"][1]["after"]
    assert inserted["cut"] == {"note": len(LONG)}
    assert LONG.startswith(inserted["values"]["note"])
    html = page(client, "/tables/1/changes?start=0")
    assert len(html.text) < 20_000
    links = [each for each in html.all("a", "href") if "/cell" in each]
    answers = [client.get(each) for each in links]
    assert [answer.text for answer in answers] == [LONG, LONG]  # of the insert, and of the delete
    assert answers[0].headers["content-disposition"] == 'attachment; filename="note.txt"'
    kept = [each for each in page(client, "/tables/1/rows?key=b&as_of=2").all("a", "href") if "/cell" in each]
    assert [client.get(each).text for each in kept] == [LONG]


def test_a_long_value_of_a_table_with_several_buckets_is_saved_whole(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", {"k": "int64", "v": "string"}, primary_key="k", buckets=2)
        table.upsert([{"k": key, "v": f"{key} " * 200} for key in range(8)])
        table.upsert([{"k": key, "v": f"-{key} " * 200} for key in range(8)])
    saved: dict[int, list[str]] = {}
    with asking(tmp_path / "s") as client:
        for bucket in (0, 1):
            html = page(client, f"/tables/1/changes?bucket={bucket}&start=0")
            saved[bucket] = [client.get(each).text for each in html.all("a", "href") if "/cell" in each]
    assert all(saved.values())
    # The value of the insert, and both values of the update.
    expected = [f"{sign}{key} " * 200 for key in range(8) for sign in ("", "", "-")]
    assert sorted(saved[0] + saved[1]) == sorted(expected)


def test_the_value_before_a_change_is_saved_as_well_as_the_one_after(client: TestClient) -> None:
    saved = {
        (offset, side): client.get(f"/tables/1/cell?column=size&offset={offset}&side={side}").text
        for offset, side in [(0, "after"), (3, "before"), (3, "after"), (4, "before")]
    }
    assert saved == {(0, "after"): "1", (3, "before"): "1", (3, "after"): "3", (4, "before"): "2"}


def test_the_value_of_another_row_or_side_is_never_saved(client: TestClient, tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k", changelog_image="wal")
        for key in (1, 2, 1):
            table.upsert([{"k": key, "v": 10 * key}])
    with asking(tmp_path / "s") as other:
        assert other.get("/tables/1/cell?column=v&offset=2&side=after").text == "10"
        page(other, "/tables/1/cell?column=v&offset=2&side=before", 400)
    for offset, side in [(0, "before"), (4, "after")]:  # of an insert, and of a delete
        page(client, f"/tables/1/cell?column=size&offset={offset}&side={side}", 400)


@pytest.mark.parametrize("path", ["/tables/1/cell", "/tables/1/cell?column=note&key=nobody",
                                  "/tables/1/cell?column=note&offset=5", "/tables/1/cell?column=note&offset=99",
                                  "/tables/1/rows?bucket=1", "/tables/1/rows?as_of=-1", "/?page=0"])  # fmt: skip
def test_what_is_not_there_is_an_error_that_says_so(client: TestClient, path: str) -> None:
    page(client, path, 400)


def test_pages_and_tables_that_are_not_there_are_not_found(client: TestClient) -> None:
    assert "There is no such page" in page(client, "/nothing", 404).text
    assert api(client, "/nothing", 404)["error"]["class"] == "InvalidRequest"
    for id in ("99", "9" * 5_000, "x", "\u0663"):
        assert "dropped" in page(client, f"/tables/{id}", 404).text


def test_prometheus_reads_what_the_files_say(client: TestClient) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'kvstore_table_rows{table="files"} 2' in answer.text
    assert 'kvstore_table_readable{table="<i>\\"log\\"</i>"} 1' in answer.text
    assert 'kvstore_table_rows{table="wal"}' not in answer.text
    assert re.search(r'^kvstore_table_log_bytes\{table="files"\} [1-9]', answer.text, re.MULTILINE)


COMMANDS = {
    "/": "tables",
    "/tables/1": "describe",
    "/tables/3/rows?key=17&key=x'y": "get",
    "/tables/1/rows?column=size&as_of=2027-01-01T00:00:00Z": "scan",
    "/tables/1/rows?as_of=5": "scan",
    "/tables/1/changes?start=2": "changelog",
    "/tables/3/changes?bucket=1&column=c000": "changelog",
    "/tables/1/history?key=a": "history",
    "/tables/3/log?bucket=1": "log ls",
    "/tables/3/rows?key=17&key=x'y&as_of=150": "scan",
    "/tables/3/history?key=5&key=x'y&start=0": "history",
    "/catalog": "meta ls",
    "/catalog/edit?txid=1": "meta show",
}


@pytest.mark.parametrize("path", COMMANDS)
def test_the_command_of_a_page_runs(client: TestClient, shown: Path, path: str) -> None:
    command = _command(client, path)
    assert " ".join(command).startswith(f"kvstore {COMMANDS[path]} {shown} ".rstrip())
    fine(*command[1:])


@pytest.mark.parametrize("path", ["/tables/3/rows?bucket=1", "/tables/3/rows?as_of=5"])
def test_rows_of_one_bucket_of_several_show_no_command(client: TestClient, path: str) -> None:
    # kvstore scan reads all buckets, so it would print other rows.
    assert "in a shell" not in page(client, path).text


def test_the_command_of_a_later_page_of_rows_prints_its_rows(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", {"a": "int64", "the b": "string"}, primary_key=["a", "the b"])
        table.upsert([{"a": number // 2, "the b": "it's" if number % 2 else "-"} for number in range(120)])
    with asking(tmp_path / "s") as client:
        following = api(client, "/tables/1/rows")["next"].removeprefix("/api")
        printed = fine(*_command(client, following)[1:], "--json").lines
        assert printed == [each["values"] for each in api(client, following)["rows"]]


def _command(client: TestClient, path: str) -> list[str]:
    (line,) = re.findall(r"<footer>.*?<code>(.*?)</code>", client.get(path).text)
    return shlex.split(unescape(line))
