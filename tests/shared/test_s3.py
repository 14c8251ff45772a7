"""Shared tables in an S3 whose requests and answers are lost, cut off, refused, or late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

import kvstore
from kvstore.errors import Unavailable
from kvstore.replica.client import NO_RETRIES, ObjectStore
from kvstore.shared.check import report_of
from kvstore.shared.snapshots import take_snapshots
from kvstore.shared.table import SharedTable
from kvstore.shared.vacuum import remove_unneeded
from kvstore.shared.write import WriteSummary
from tests.shared.hosts import Host, created, read, upserts
from tests.support.flaky_s3 import FAULTS, Fault, flaky

SUM = kvstore.Aggregate({"v": "sum"})


class Way:
    """What happens to requests; nothing, until a test says otherwise."""

    def __init__(self) -> None:
        self.fault: Callable[[str, str], Fault] = lambda _method, _path: "none"


@pytest.fixture
def way(s3_url: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    assert s3_url
    way = Way()
    monkeypatch.setenv("AWS_TIMEOUT", "1s")  # a request that takes longer is one more that fails
    with flaky(s3_endpoint, lambda method, path: way.fault(method, path)) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        yield way


@pytest.fixture
def url(way: Way, s3_url: str) -> str:
    return f"{s3_url}/tables"


@pytest.fixture
def table(url: str) -> SharedTable:
    return created(ObjectStore(url), buckets=2, engine=SUM)


QUICK = {("/epoch/", "unanswered"), ("/epoch/", "late"), (".range", "partial")}


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        pytest.param(part, fault, marks=[] if (part, fault) in QUICK else pytest.mark.long)
        for part in ("/epoch/", ".range")
        for fault in FAULTS
    ],
)
def test_a_put_that_fails_once_is_found_to_be_done_or_is_repeated(
    way: Way, table: SharedTable, tmp_path: Path, part: str, fault: Fault
) -> None:
    host = Host(table, tmp_path / "cache")
    host.write(upserts(range(6), 1))
    faults = [fault]
    way.fault = lambda method, path: faults.pop() if method == "PUT" and part in path and faults else "none"
    if (part, fault) == (".range", "late"):
        with pytest.raises(Unavailable):  # clients do not repeat what has no answer in time
            host.write(upserts(range(6), 2))
    assert host.write(upserts(range(6), 2)) == WriteSummary(2)
    assert not faults
    assert table.newest().epoch == 2
    assert read(table, tmp_path)[0] == dict.fromkeys(range(6), 3)


def test_a_table_in_its_place_is_opened_with_few_requests(
    way: Way, table: SharedTable, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many with 60 epochs as with 10."""
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "objects"))
    host, asked, counts = Host(table, tmp_path / "cache"), [0], []

    def counted(_method: str, _path: str) -> Fault:
        asked[0] += 1
        return "none"

    for epochs in (10, 60):
        while host.write(upserts([epochs], 1)).epoch < epochs:
            pass
        way.fault, asked[0] = counted, 0
        with kvstore.open(url, read_only=True) as store:
            assert store.table("t").offsets()
        way.fault = lambda _method, _path: "none"
        counts.append(asked[0])
    assert counts[0] == counts[1] <= 20


def test_a_commit_that_does_not_arrive_is_not_known_to_be_one(
    way: Way, table: SharedTable, url: str, tmp_path: Path
) -> None:
    """It may yet arrive."""
    faulty = SharedTable("memory://x", ObjectStore(url, retries=NO_RETRIES), table.described)
    host = Host(faulty, tmp_path / "cache")
    way.fault = lambda method, path: "lost" if method == "PUT" and "/epoch/" in path else "none"
    with pytest.raises(Unavailable):
        host.write(upserts(range(6), 1), "w")
    way.fault = lambda _method, _path: "none"
    assert host.write(upserts(range(6), 1), "w") == WriteSummary(1)
    assert read(table, tmp_path)[0] == dict.fromkeys(range(6), 1)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 30))])
def test_writers_and_upkeep_over_a_way_that_fails(
    way: Way, table: SharedTable, url: str, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    usual: list[Fault] = ["refused", "lost", "unanswered", "partial"]

    def fault(_method: str, _path: str) -> Fault:
        return random.choice(usual) if random.random() < 0.05 else "late" if random.random() < 0.001 else "none"

    client = ObjectStore(url, retries=NO_RETRIES)
    way.fault = fault
    shared = SharedTable("memory://x", client, table.described)
    hosts = [Host(shared, tmp_path / name) for name in ("one", "two")]
    number = 0
    while number < 8:
        try:
            match random.randrange(8):
                case 0:
                    take_snapshots(shared, tmp_path / "upkeep", hosts[0].clock, again=False)
                case 1:
                    remove_unneeded(shared, older_than_ms=3_600_000, retain_last=1, dry_run=False)
                case _:
                    random.choice(hosts).write(upserts(range(6), 1 << number), f"write {number}")
                    number += 1
        except Unavailable:
            continue
    way.fault = lambda _method, _path: "none"
    assert report_of(table)
    assert set(table.newest().writers) == {f"write {number}" for number in range(8)}
    assert read(table, tmp_path)[0] == dict.fromkeys(range(6), 2**8 - 1)
