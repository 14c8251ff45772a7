"""A sparse file of 16 GiB in the place of any file or object costs neither memory nor reads, and is called what it is.

All cases of a kind run in one process: the peak of its resident memory (``ru_maxrss``) and what it has read are taken
after each, and compared with what they were once everything had been done with files that are right.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.clock import SystemClock
from kvstore.commit.staging import Staging
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.errors import CorruptData, CorruptImage, InvalidRequest, StoreError
from kvstore.ingest import offsets
from kvstore.ingest.offsets import Taken
from kvstore.meta.state import TableDefinition
from kvstore.meta.writers import OpenCommit
from kvstore.repair.quarantine import Quarantine
from kvstore.replica.client import ObjectStore
from kvstore.replica.follow.copy import following_of
from kvstore.replica.follow.follower import Follower
from kvstore.replica.replica import Replica
from kvstore.request.preparation import request_of
from kvstore.store.store import Store
from logformat.catalog import edits
from logformat.catalog.edits import TableOptions
from logformat.catalog.image import IMAGE_BYTES_MAX, RECORD_BYTES_MAX, read_record
from logformat.catalog.jobs import SourceFile
from logformat.ids import BucketId, Epoch, SchemaId, Sequence, TableId, Txid, WriterId
from logformat.log.segment import SEGMENT_BYTES_MAX
from logformat.log.writer_entry import WRITERS_BYTES_MAX
from logformat.rows.changes import Changes
from tests.repair.conftest import Built
from tests.repair.worlds import OPTIONS, SCHEMA, World, seen
from tests.replica.objects import replica_of, restored
from tests.support.bytes_read import bytes_read
from tests.support.processes import Child, Pipe

HUGE = 16 << 30
LEGAL = {".log": SEGMENT_BYTES_MAX, ".writers": WRITERS_BYTES_MAX}
MEMORY_MAX = 200 << 20
"""Bytes of memory above what the process has after it did all of it once with files that are right."""
READ_MAX = HUGE >> 4
"""Bytes that all that is done to one store reads; a file that is no larger than it may be is read several times."""
DATA_MAX = 1 << 30
"""What the process may take before it is refused: no case may harm the machine, whatever is wrong."""

FILES = {
    "STORE": "STORE",
    "journal": "meta/journal/data.mdb",
    "image": "meta/image/image.*",
    "sealed segment": "tables/1/0/log/00000000000000000000.log",
    "last segment": "tables/1/0/log/*.log",
    "sparse index of a sealed segment": "tables/1/0/log/00000000000000000000.index",
    "sparse index of the last segment": "tables/1/0/log/*.index",
    "writers": "tables/1/0/log/*.writers",
    "index": "tables/1/0/index/data.mdb",
    "locks": "tables/1/0/index/lock.mdb meta/journal/lock.mdb tables/1/0/LOCK",
    "manifest": "tables/1/0/snapshots/*/manifest.json",
    "writers of a snapshot": "tables/1/0/snapshots/*/writers.json",
    "rows of a snapshot": "tables/1/0/snapshots/*/rows.parquet",
}
"""Files of a store; of several that match a pattern, the last."""
UNREAD = [
    "STORE.tmp",
    "meta/image/image.ckpt",
    "tables/1/0/log/00000000000000000003.log.tmp",
    "tables/1/0/index.rebuilt/data.mdb",
    "tables/1/0/snapshots/00000000000000000099.tmp/rows.parquet",
    "lost/repair.00000000000000000001/STORE",
    "staging/1-00112233445566778899aabbccddeeff.batches",
    "staging/00112233445566778899aabbccddeeff-3-17.rows",
]
"""What means nothing, and is removed or left alone."""
HINTS = {"sparse index of a sealed segment", "sparse index of the last segment"}
"""What is wrong in them is no damage, and is not said by a check."""
LIMITED = {
    "STORE",
    "image",
    "sealed segment",
    "last segment",
    "writers",
    "manifest",
    "writers of a snapshot",
    "rows of a snapshot",
}
"""Damage that is said with the size and the limit."""
HOWS = ("replaced", "extended")
CASES = {(name, how): pattern for name, pattern in FILES.items() for how in HOWS}
CASES |= {(name, "with a hole"): FILES[name] for name in ("sealed segment", "last segment", "image", "writers")}
"""Of files that may be large, also one that is not larger than it may be."""
OBJECTS = {
    "STORE": "STORE",
    "TOLD": "TOLD",
    "leader": "leader/*",
    "range of the catalog": "catalog/*.range",
    "snapshot of the catalog": "catalog/*.snapshot",
    "range of a bucket": "tables/1/0/*.range",
    "snapshot of a bucket": "tables/1/0/*.snapshot",
    "follower": "follower/*",
}


OTHERS = dict.fromkeys(["staged rows of a commit", "files of a job", "FOLLOWING"], "CorruptData")
OTHERS |= {"LOCK that is held": "StoreLocked: Another process writes here"}
SAID = {
    ("journal", "replaced"): "A page of an LMDB file is damaged",
    ("index", "replaced"): "The index of a bucket is missing or damaged",
    ("sealed segment", "with a hole"): "bytes after its end",
    ("image", "with a hole"): "An image of the catalog is damaged",
    ("writers", "with a hole"): "A writer snapshot fails its checksum",
}
"""What is damaged otherwise than by its size; of anything else a check says nothing."""


@dataclass
class Outcome:
    """What became of one case: of each thing that was done, what it said; and the worst of memory and reads."""

    said: dict[str, str]
    memory: int
    read: int


def huge(path: Path, how: str) -> None:
    """Make a file one of 16 GiB: of zeros alone, or of what it has and zeros after it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if how == "replaced":
        path.write_bytes(b"")
    path.touch()
    os.truncate(path, LEGAL.get(path.suffix, IMAGE_BYTES_MAX) if how == "with a hole" else HUGE)


Outcomes = dict[tuple[str, str], Outcome]


def said_by(action: Callable[[], object]) -> str:
    """What an action says; its error, if it is one that a user knows."""
    try:
        return str(action())
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    except MemoryError:
        return "MemoryError"


class Meter:
    """Memory and reads of this process, from case to case."""

    def __init__(self) -> None:
        self._begin()

    def begin(self) -> None:
        """From now on it counts; and the process is refused what would harm the machine."""
        self._begin()
        taken = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
        limit = (int(taken.split()[1]) << 10) + DATA_MAX
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def _begin(self) -> None:
        self._before = _peak()

    def measured(self, actions: dict[str, Callable[[], object]]) -> Outcome:
        before = bytes_read()
        said = {name: said_by(action) for name, action in actions.items()}
        return Outcome(said, _peak() - self._before, bytes_read() - before)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def checked(path: Path) -> list[str]:
    with Store(path, OPTIONS, read_only=True) as store:
        return store.check().findings


def written(path: Path) -> int:
    """Open a store as a writer does, and write every bucket."""
    with Store(path, OPTIONS) as store:
        for name in store.list_tables():
            for handle in store.runtime.open_table(store.runtime.definition(name)).handles:
                handle.write()
        return store.table("t").count()


def repaired(world: World, truth: dict[str, Any], *, replica: bool) -> str:
    report = world.repair(replica=replica)
    if report and not (seen(world.path) == truth and not checked(world.path)):
        return "it is other than it was"
    return " ".join(["repaired" if report else "damaged", *report.repaired, *report.left])


def _store_cases(pipe: Pipe, world: World, truth: dict[str, Any], place: Path) -> None:
    meter = Meter()

    def case(pattern: str, how: str) -> Outcome:
        copies = {each: world.copied(place / each) for each in ("read", "write", "repair", "alone")}
        for copy in copies.values():
            for each in pattern.split():
                found = sorted(copy.path.glob(each))
                huge(found[-1] if found else copy.path / each, how)
        done = meter.measured(
            {
                "check": lambda: checked(copies["read"].path),
                "open": lambda: written(copies["write"].path),
                "repair": lambda: repaired(copies["repair"], truth, replica=True),
                "repair alone": lambda: repaired(copies["alone"], truth, replica=False),
            }
        )
        shutil.rmtree(place)
        return done

    for what in ("meta/none", "meta/nothing"):
        place.mkdir()
        right = case(what, "replaced")
        assert right.said["check"] == "[]", right
    meter.begin()
    for (name, how), pattern in [*CASES.items(), (("unread", "replaced"), " ".join(UNREAD))]:
        place.mkdir()
        pipe.send(((name, how), case(pattern, how)))
    pipe.send(None)


def _replica_cases(pipe: Pipe, world: World, place: Path) -> None:
    meter, right = Meter(), place / "replica"
    with Store(world.copied(place / "store").path, replace(OPTIONS, edits_per_journal=2)) as store:
        for number in range(2):
            store.create_table(f"u{number}", SCHEMA, "k")
            store.create_table(f"v{number}", SCHEMA, "k")
            store.checkpoint()
        replica = replica_of(store, ObjectStore(str(right), create=True))
        replica.ship()
        with kvstore.follow(str(right), place / "copy") as copy:
            copy.pull()
        store.table("t").upsert([{"k": number, "v": 0, "s": ""} for number in range(9)])
        store.flush()
        replica.ship()
        (status,) = replica.followers()
        name = status.name

    def case(pattern: str, how: str) -> Outcome:
        shutil.copytree(right, place / "damaged")
        shutil.copytree(place / "store", place / "leader")
        shutil.copytree(place / "copy", place / "follower")
        if pattern:
            found = sorted((place / "damaged").glob(pattern))
            huge(found[-1] if found else place / "damaged" / pattern.replace("*", name), how)
        client = ObjectStore(str(place / "damaged"))

        def leads(act: Callable[[Replica], object]) -> object:
            with Store(place / "leader", OPTIONS) as store:
                return act(replica_of(store, client))

        def follows() -> object:
            with Follower(place / "follower", OPTIONS, Files(), SystemClock(), connect=lambda _: client) as copy:
                return copy.pull()

        def follows_from_empty() -> object:
            with kvstore.follow(str(place / "damaged"), place / "restored") as copy:
                return copy.report()

        done = meter.measured(
            {
                "check": lambda: leads(lambda replica: replica.check().findings),
                "restore": lambda: restored(client, place / "copy of it").txid,
                "follow": follows,
                "begin to follow": follows_from_empty,
                "followers": lambda: leads(lambda replica: [each.name for each in replica.followers()]),
                "repair": lambda: leads(lambda replica: replica.repair().findings),
                "ship": lambda: leads(lambda replica: replica.ship().objects),
            }
        )
        for each in ("damaged", "leader", "follower", "restored", "copy of it"):
            shutil.rmtree(place / each, ignore_errors=True)
        return done

    for _ in range(2):
        done = case("", "replaced")
        assert done.said["check"] == "[]", done
    meter.begin()
    for name_of, pattern in OBJECTS.items():
        for how in HOWS:
            pipe.send(((name_of, how), case(pattern, how)))
    pipe.send(None)


def _other_cases(pipe: Pipe, place: Path) -> None:
    definition = TableDefinition(TableId(1), "t", {SchemaId(1): SCHEMA}, ("k",), 2, TableOptions())
    commit = OpenCommit(f"1-{0:032x}", WriterId(7), Epoch(0), Sequence(0))
    staging, files = Staging(place, TableId(1), Files()), Files()
    rows = Changes.of([("upsert", {"k": 1, "v": 2, "s": "x"})], SCHEMA)
    held = ProcessLock(place / "LOCK")
    held.acquire()

    def staged(how: str) -> Callable[[], object]:
        requests = {BucketId(bucket): request_of(rows, definition) for bucket in range(2)}
        path = place / "staging" / f"{commit.commit_id}.batches"
        path.unlink(missing_ok=True)
        staging.write(commit, staging.batches(commit, definition, requests))
        assert staging.request(commit, definition, BucketId(1))
        huge(path, how)
        return lambda: staging.request(commit, definition, BucketId(1))

    def taken(how: str) -> Callable[[], object]:
        directory = place / "jobs"
        directory.mkdir(exist_ok=True)
        (directory / "taken.jsonl").unlink(missing_ok=True)
        Taken(directory, files).add([SourceFile(path="a", size=1, tag="1")], 0)
        huge(directory / "taken.jsonl", how)
        return lambda: Taken(directory, files)

    def following(how: str) -> Callable[[], object]:
        huge(place / "meta" / "FOLLOWING", how)
        return lambda: following_of(place)

    def locked(how: str) -> Callable[[], object]:
        huge(place / "LOCK", how)
        return ProcessLock(place / "LOCK").acquire

    makers = {
        "staged rows of a commit": staged,
        "files of a job": taken,
        "FOLLOWING": following,
        "LOCK that is held": locked,
    }
    meter = Meter()
    meter.begin()
    for name in OTHERS:
        for how in HOWS:
            pipe.send(((name, how), meter.measured({"read": makers[name](how)})))
    pipe.send(None)


def outcomes(main: Callable[..., None], *arguments: object) -> Outcomes:
    """What became of each case, by its name and how the file was made huge."""
    found: Outcomes = {}
    with Child(main, *arguments) as child:
        while (said := child.hear(600)) is not None:
            found[said[0]] = said[1]
    return found


@pytest.fixture(scope="module")
def of_store(built: Callable[..., Built], tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    world, truth = built()
    return outcomes(_store_cases, world, truth, tmp_path_factory.mktemp("huge") / "copies")


@pytest.fixture(scope="module")
def of_replica(built: Callable[..., Built], tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    world, _ = built((), 1)
    return outcomes(_replica_cases, world, tmp_path_factory.mktemp("huge"))


@pytest.fixture(scope="module")
def of_others(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return outcomes(_other_cases, tmp_path_factory.mktemp("huge"))


def is_cheap(outcome: Outcome) -> bool:
    return outcome.memory < MEMORY_MAX and outcome.read < READ_MAX and "MemoryError" not in outcome.said.values()


@pytest.mark.parametrize(("name", "how"), [*CASES, ("unread", "replaced")])
def test_a_huge_file_of_a_store_costs_neither_memory_nor_reads(of_store: Outcomes, name: str, how: str) -> None:
    assert is_cheap(of_store[name, how]), of_store[name, how]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_check_names_a_huge_file_its_size_and_the_limit(of_store: Outcomes, name: str, how: str) -> None:
    said = of_store[name, how].said["check"]
    if name in LIMITED and how != "with a hole":
        assert Path(FILES[name]).name.strip("*") in said
        assert f"bytes={HUGE} " in said
        assert re.search("(bytes_max|expected)=[0-9]+", said)
        assert "run `kvstore repair`" in said
    elif (name, how) in SAID:
        assert SAID[name, how] in said
    else:
        assert said == "[]"


@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_store_with_a_huge_file_opens_or_is_refused_as_damaged(of_store: Outcomes, name: str, how: str) -> None:
    said = of_store[name, how].said["open"]
    needed = name in ("STORE", "last segment") and how != "with a hole"
    assert said.startswith("Corrupt") == (needed or (name, how) == ("journal", "replaced")), said


@pytest.mark.parametrize(("name", "how"), CASES)
def test_repair_treats_a_huge_file_as_damaged(of_store: Outcomes, name: str, how: str) -> None:
    said = of_store[name, how].said
    if (name, how) == ("journal", "replaced"):  # the replica can't know what was not shipped
        assert "edits after" in said["repair"]
        return
    assert said["repair"].startswith("repaired")
    is_replaced = name in LIMITED | HINTS or (name, how) == ("index", "replaced")
    assert (said["repair"] != "repaired") == (is_replaced and (name, how) != ("last segment", "with a hole"))
    lost = name == "STORE" or ("segment" in name and name not in HINTS and how == "replaced")
    assert said["repair alone"].startswith("damaged" if lost else "repaired")


def test_files_that_are_not_read_may_be_huge(of_store: Outcomes) -> None:
    assert list(of_store["unread", "replaced"].said.values()) == ["[]", "6", "repaired", "repaired"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", OBJECTS)
def test_a_huge_object_of_a_replica_costs_neither_memory_nor_reads(of_replica: Outcomes, name: str, how: str) -> None:
    outcome = of_replica[name, how]
    assert is_cheap(outcome), outcome
    # The repair rebuilds what is bad from the leader.
    assert outcome.said["repair"] == "[]"
    if name == "follower":
        assert outcome.said["check"] == "[]"
        assert not any(said.startswith("Corrupt") for said in outcome.said.values())
        return
    refused = outcome.said["ship" if name == "leader" else "restore"]
    assert refused.startswith("CorruptData")
    assert f"bytes={HUGE}" in refused
    assert outcome.said["check"] == "[]" if name == "leader" else "BAD" in outcome.said["check"]


@pytest.mark.parametrize(
    ("name", "how", "error"), [(name, how, error) for name, error in OTHERS.items() for how in HOWS]
)
def test_any_other_huge_file_is_refused(of_others: Outcomes, name: str, how: str, error: str) -> None:
    outcome = of_others[name, how]
    assert is_cheap(outcome), outcome
    assert re.match(error, outcome.said["read"]), outcome
    assert error.startswith("StoreLocked") or re.search(f"bytes={HUGE} bytes_max=[0-9]+", outcome.said["read"])


def test_an_edit_that_no_reader_would_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "EDIT_BYTES_MAX", 1000)
    payload = edits.DropTable(table_id=TableId(1))
    assert edits.encode(edits.Edit(txid=Txid(1), epoch=Epoch(0), time_ms=0, payload=payload))
    long = edits.AddReplica(name="r", url="x" * 1000)
    with pytest.raises(InvalidRequest, match="at most 1000 bytes"):
        edits.encode(edits.Edit(txid=Txid(1), epoch=Epoch(0), time_ms=0, payload=long))


def test_a_copy_of_what_was_damaged_keeps_its_holes(tmp_path: Path) -> None:
    path, size = tmp_path / "tables" / "x.log", 64 << 20
    path.parent.mkdir()
    path.touch()
    os.truncate(path, size)
    with open(path, "r+b") as file:
        for at in (0, 1 << 25, size - 3):
            file.seek(at)
            file.write(b"abc")
    quarantine = Quarantine(tmp_path, Files())
    quarantine.copy(path)
    copy = quarantine.directory / "tables" / "x.log"
    assert copy.stat().st_size == size
    assert copy.stat().st_blocks <= path.stat().st_blocks
    with open(copy, "rb") as file:
        for at in (0, 1 << 25, size - 3):
            file.seek(at)
            assert file.read(3) == b"abc"


def test_a_record_of_an_image_that_says_it_is_huge_is_not_asked_for() -> None:
    asked = []

    def read(count: int) -> bytes:
        asked.append(count)
        return struct.pack("<II", RECORD_BYTES_MAX + 1, 0)

    with pytest.raises(CorruptImage):
        read_record(read, HUGE)
    assert asked == [8]


def test_a_line_of_the_files_of_a_job_is_read_as_far_as_one_can_be_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "TAKEN_LINE_BYTES_MAX", 200)
    taken = Taken(tmp_path, Files())
    taken.add([SourceFile(path="a", size=1, tag="1")], 0)
    Taken(tmp_path, Files())
    taken.add([SourceFile(path="b" * 200, size=1, tag="1")], 0)
    with pytest.raises(CorruptData, match="The list of files that a job has taken is damaged"):
        Taken(tmp_path, Files())
