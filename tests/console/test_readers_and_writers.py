"""Pages about what reads and writes a store: writers, consumers, streams, replicas and jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import kvstore
from kvstore.errors import TaskFailed
from tests.cli.commands import fine, run
from tests.console.browser import api, asking, page

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])


def rows(*keys: int) -> kvstore.Changes:
    return kvstore.Changes.upserts(pa.RecordBatch.from_pylist([{"k": key, "v": "x"} for key in keys], SCHEMA))


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with writers, readers, a job that failed, and a replica with a hole."""
    home = tmp_path_factory.mktemp("used")
    (home / "files").mkdir()
    (home / "files/1.csv").write_text("k,v\n10,a\n11,b\n")
    with kvstore.open(home / "store") as store:
        table = store.create_table("t", SCHEMA, primary_key="k", retention=dt.timedelta(days=1))
        for sequence in range(7):
            table.bucket(0).apply(rows(sequence), writer_id=7, sequence=sequence)
        with table.writer("nightly") as writer:
            writer.upsert({"k": 1, "v": "y"})
        table.writer("nightly").close()
        table.apply_epoch(rows(2), "stream", 40, run="query-1")
        store.consumer("late").commit("t", {0: 3})
        table.parts.lease("reading", {0: 5})
        job = store.create_job("import", source=str(home / "files"), format="csv", table="t")
        job.run()
        (home / "files/2.csv").write_text("k,v\nno number,a\n")
        with pytest.raises(TaskFailed):
            job.run()
        store.add_replica(str(home / "replica"), "copy").ship()
        min((home / "replica").rglob("tables/1/0/*.range")).unlink()
        store.replica("copy").check()
        table.upsert([{"k": 99, "v": "z"}])
    return home / "store"


@pytest.fixture(scope="module")
def client(used: Path) -> Iterator[TestClient]:
    with asking(used) as client:
        yield client


def test_a_writer_shows_its_last_five_batches_and_its_next_sequence(client: TestClient) -> None:
    windows = {each["writer_id"]: each for each in api(client, "/tables/1/writers")["windows"]}
    assert [each["sequence"] for each in windows[7]["batches"]] == [2, 3, 4, 5, 6]
    assert (windows[7]["writer"], windows[7]["next_sequence"], windows[7]["fenced"]) == (None, 7, None)
    html = page(client, "/tables/1/writers")
    assert "id 7" in html.text
    assert "/tables/1/changes?bucket=0&start=2" in html.all("a", "href")


def test_writers_show_what_they_send_which_incarnations_are_fenced_and_their_last_epoch(client: TestClient) -> None:
    facts = api(client, "/tables/1/writers")
    named = {each["writer"]: each for each in facts["named"]}
    assert (named["nightly"]["sends"], named["nightly"]["epoch"]) == ("batches", 1)
    assert (named["stream"]["run"], named["stream"]["first_epoch"]) == ("query-1", 40)
    assert [each["job"] for name, each in named.items() if name.startswith("job")] == ["import"]
    by_name = {each["writer"]: each for each in facts["windows"]}
    assert by_name["nightly"]["fenced"] == "opened again as incarnation 1"
    assert (by_name["stream"]["last_epoch"], by_name["stream"]["fenced"]) == (40, None)
    text = page(client, "/tables/1/writers").text
    assert "fenced: opened again" in text
    assert "its last epoch is 40" in text


def test_consumers_and_leases_show_what_they_have_yet_to_read(client: TestClient) -> None:
    found = {each["name"]: each for each in api(client, "/consumers")["readers"]}
    end = api(client, "/tables/1")["logs"][0]["log_end"]
    assert (found["late"]["kind"], found["late"]["positions"], found["late"]["status"]["lags"]) == (
        "consumer",
        [3],
        [end - 3],
    )
    assert (found["reading"]["kind"], found["reading"]["expired"]) == ("lease", False)
    assert found["reading"]["status"]["lag"] == end - 5
    assert f"{end - 3}" in page(client, "/consumers").text
    assert all(each["status"]["lag_seconds"] > 0 for each in found.values() if each["status"]["lag"])
    assert "seconds" in page(client, "/consumers").text
    assert api(client, "/consumers?q=LAT")["readers_all"] == 1
    assert api(client, "/consumers?q=nothing") == {"readers_all": 0, "readers": [], "streams_all": 0, "streams": []}
    page(client, "/consumers?q=nothing")


def test_the_growth_of_a_log_and_the_lag_of_a_consumer_are_curves(client: TestClient) -> None:
    status = api(client, "/tables/1")["status"]
    assert len(status["rate"]["changes"]) == 40
    assert sum(status["rate"]["changes"]) == pytest.approx(status["changes"], abs=1)
    (late,) = (each for each in api(client, "/consumers")["readers"] if each["name"] == "late")
    lags = late["status"]["over_time"]["lags"]
    assert (lags[-1], max(lags)) == (late["status"]["lag"], late["status"]["lag"])
    assert lags[0] < lags[-1]
    for path, words in (("/", "Changes over time"), ("/tables/1", "Changes over time"), ("/consumers", "Lag over")):
        html = page(client, path)
        assert [each for each in html.all("svg", "aria-label") if each.startswith(words)]
        assert all(each.startswith("M0 ") for each in html.all("path", "d"))


def test_streams_that_write_are_listed_without_jobs(client: TestClient) -> None:
    streams = api(client, "/consumers")["streams"]
    assert [(each["writer"], each["table"], each["run"]) for each in streams] == [("stream", "t", "query-1")]
    assert "query-1" in page(client, "/consumers").text


def test_jobs_show_what_the_command_line_prints(client: TestClient, used: Path) -> None:
    (printed,) = fine("job", "show", used, "import", "--json").lines
    assert api(client, "/jobs/job?name=import") == printed
    (listed,) = api(client, "/jobs")["jobs"]
    assert listed == {"job": "import", "status": printed}
    html = page(client, "/jobs/job?name=import")
    assert "More rows do not fit" in html.text
    assert "failed: " in html.text
    assert f"{used}/jobs/" in html.text
    assert "/jobs/job?name=import" in page(client, "/jobs").all("a", "href")
    page(client, "/jobs/job?name=nothing", 400)
    page(client, "/jobs/job", 400)


def test_replicas_show_their_lag_and_the_findings_of_the_last_check(client: TestClient, used: Path) -> None:
    (listed,) = run("replica", "ls", used, "--json").lines
    assert api(client, "/replicas")["replicas"] == listed
    facts = api(client, "/replicas/replica?name=copy")
    (finding,) = facts["findings"]
    assert (finding["kind"], finding["start"]) == ("MISSING_VERSION", 0)
    html = page(client, "/replicas/replica?name=copy")
    assert "MISSING_VERSION" in html.text
    assert f"kvstore replica repair {used} copy" in html.text
    page(client, "/replicas/replica?name=nothing", 400)


def test_a_hole_of_a_replica_is_a_range_on_a_line_and_in_words(client: TestClient) -> None:
    facts = api(client, "/replicas/replica?name=copy")
    bucket = next(each for each in facts["streams"] if each["stream"] == "tables/1/0")
    (hole,) = bucket["missing"]
    assert (bucket["start"], hole[0], bucket["store_end"]) == (0, 0, bucket["end"] + 1)
    html = page(client, "/replicas/replica?name=copy")
    kinds = [given["class"] for tag, given in html.elements if tag == "rect"]
    assert {"shipped", "missing", "lag"} == set(kinds)
    assert f"missing: offsets 0 to {hole[1] - 1}" in html.text
    drawn = [given for tag, given in html.elements if tag == "rect"]
    assert all(0 <= float(given["x"]) <= 1000 - float(given["width"]) for given in drawn)


def test_the_objects_of_a_stream_are_listed_when_they_are_asked_for(client: TestClient) -> None:
    path = "/replicas/replica?name=copy&stream=tables%2F1%2F0"
    assert path in page(client, "/replicas/replica?name=copy").all("a", "href")
    assert api(client, "/replicas/replica?name=copy")["objects"] is None
    objects = api(client, path)["objects"]
    assert len(objects["missing"]) == 1
    assert objects["objects_all"] == len(objects["objects"])
    assert "as the replica lists them now" in page(client, path).text
    other = api(client, "/replicas/replica?name=copy&stream=tables/9/0")["objects"]
    assert other["error"]["class"] == "InvalidRequest"


def test_a_replica_that_can_not_be_reached_shows_what_the_store_knows(used: Path) -> None:
    moved = used.parent / "elsewhere"
    (used.parent / "replica").rename(moved)
    try:
        with asking(used) as client:
            facts = api(client, "/replicas/replica?name=copy&stream=catalog")
            assert facts["objects"]["error"]["class"] == "Unavailable"
            assert len(facts["findings"]) == 1
            page(client, "/replicas/replica?name=copy&stream=catalog")
    finally:
        moved.rename(used.parent / "replica")


def test_a_store_without_readers_says_so(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("log", {"n": "int64"}).upsert([{"n": 1}])
    with asking(tmp_path / "s") as client:
        assert "No writer of this table has a name" in page(client, "/tables/1/writers").text
        assert "has no replica" in page(client, "/replicas").text
        assert "has no ingestion job" in page(client, "/jobs").text
        assert "is registered" in page(client, "/consumers").text
