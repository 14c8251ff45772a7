"""State of writers: when it is stored, what happens with damaged and stray snapshots, and expiry."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import lmdb
import pytest

from kvstore.disk.files import Files
from kvstore.errors import CorruptData, OutOfOrderSequence
from kvstore.log import recovery, writer_state
from kvstore.log.writer_state import EXPIRY_MS
from logformat import paths
from logformat.ids import Offset
from logformat.log import segment
from logformat.log.writer_entry import decode_snapshot
from tests.conformance.bucket import Bucket
from tests.conformance.vectors import VECTORS, running
from tests.support.logs import IDENTITY, open_log, stretch

KINDS = ("writer_state", "log_truncate")


def having(field: str) -> list[str]:
    return [name for name in running("writer_state") if field in VECTORS[name]]


def test_every_vector_has_its_runner() -> None:
    ran = [*having("ops"), *having("snapshots"), *having("offset")]
    assert sorted(ran) == sorted(running("writer_state"))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    bucket = Bucket(tmp_path)
    yield bucket
    bucket.path.close()


@pytest.fixture
def whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step between two timestamps counts as it is: the vectors know no limit of it."""
    monkeypatch.setattr(writer_state, "STEP_MS_MAX", 2**63)


@pytest.mark.usefixtures("whole_steps")
@pytest.mark.parametrize("name", having("ops"))
def test_operations(name: str, bucket: Bucket) -> None:
    vector = VECTORS[name]
    failures = {failure["op"]: failure for failure in vector.get("expect_error", ())}
    run = Run(bucket)
    for number, operation in enumerate(vector["ops"]):
        run.one(operation, failures.get(number))
        if "expect_snapshots" in operation:
            assert run.snapshots() == operation["expect_snapshots"]
    expected = vector.get("expect", {})
    if "active_writers" in expected:
        assert bucket.active_writers() == expected["active_writers"]
        assert bucket.map_end() == expected["map_end_offset"]
    if "oldest_snapshot" in expected:
        snapshots = bucket.snapshots()
        assert (snapshots[0], snapshots[-1]) == (expected["oldest_snapshot"], expected["latest_snapshot"])
        assert bucket.windows() == {1: [0, 1, 2]}
    if "damaged_file" in expected:
        assert expected["damaged_file"] == "deleted"
        assert run.damaged is not None
        assert os.fstat(run.damaged.fileno()).st_nlink == 0
        run.damaged.close()
        # Whatever it is rebuilt from, the log after it restores the whole state.
        assert bucket.windows() == run.appended


class Run:
    """Operations of one vector, applied to a bucket.

    Attributes:
        appended: Accepted sequences, by writer.
        damaged: The file of the index that was damaged.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.appended: dict[int, list[int]] = {}
        self.damaged: BinaryIO | None = None
        self._epoch_ms = 0
        self._taken: set[int] = set()
        self._deletes = False

    def snapshots(self) -> list[int]:
        """Existing snapshots; after a deletion, only those that the vector took: the log had to continue a bit."""
        if self._deletes:
            return [offset for offset in self.bucket.files() if offset in self._taken]
        return self.bucket.snapshots()

    def one(self, operation: dict[str, Any], failure: dict[str, Any] | None) -> None:
        if "append" in operation:
            self._append(operation["append"], failure)
        elif "snapshot" in operation:
            self._snapshot()
        elif "damage_latest_snapshot" in operation:
            self.damaged = damage(self.bucket, damage_of(operation["damage_latest_snapshot"]))
        elif "expire_at" in operation:
            # Writers expire after seven days, so the vector's time is stretched.
            passed, expiration = (int(re.sub(r"\D", "", operation[field])) for field in ("expire_at", "expiration"))
            self._epoch_ms += EXPIRY_MS * passed // expiration
        elif "delete_snapshots_before" in operation:
            self._delete_before(operation["delete_snapshots_before"])
        elif "truncate_and_reload" in operation and "reopen" not in operation:
            start, end = operation["truncate_and_reload"]
            self.bucket.truncate(end)
            self.bucket.expire(start)
            self.bucket.lose_index()
        elif "reopen" in operation:
            if "now" in operation:
                # The vector's `now` is after its expiration, whose length it does not give; ours is before it.
                self._epoch_ms += EXPIRY_MS
            if self.damaged is None:
                self.bucket.truncate(operation["truncate_and_reload"][1])
            else:
                self.bucket.reopen()
        else:
            raise AssertionError(operation)

    def _append(self, batch: dict[str, Any], failure: dict[str, Any] | None) -> None:
        # Time is the log's: a batch has the clock's time, or that of the batch before.
        self.bucket.clock.now = self._epoch_ms + batch["timestamp"]
        while self.bucket.path.state.applied_offset < batch["first_offset"]:
            self.bucket.append()
        assert failure is None or failure["type"] == "OutOfOrderSequenceException"
        with pytest.raises(OutOfOrderSequence) if failure else nullcontext() as raised:
            result = self.bucket.append(batch["writer"], batch["seq"])
        if failure is not None:
            assert raised is not None
            for part in failure["message"].split(", "):
                assert f" {part.rstrip(')')} batch seq.)" in str(raised.value)
            return
        assert (result.first_offset, result.last_offset) == (batch["first_offset"], batch["last_offset"])
        self.appended.setdefault(batch["writer"], []).append(batch["seq"])

    def _delete_before(self, offset: int) -> None:
        """Snapshots are removed with the segments they precede; the log must reach at least that far."""
        self._deletes = True
        while self.bucket.path.log.end.base < offset:
            self.bucket.append()
            self.bucket.snapshot()
        self.bucket.expire(offset)

    def _snapshot(self) -> None:
        bucket, log = self.bucket, self.bucket.paths.log
        before = {path: path.stat().st_ino for path in log.iterdir() if path.suffix in (".writers", ".log")}
        is_new = bucket.path.log.end.offset not in bucket.files()
        bucket.snapshot()
        after = {path: path.stat().st_ino for path in log.iterdir() if path.suffix in (".writers", ".log")}
        assert bucket.snapshots()[-1] == bucket.path.log.end.offset
        self._taken.add(bucket.snapshots()[-1])
        assert (after != before) == is_new


def damage_of(words: str) -> Callable[[bytes], bytes]:
    """Parse a vector's damage to a file."""
    if words == "truncate file to 0 bytes":
        return lambda _: b""
    if words == "truncate file to half its size":
        return lambda data: data[: len(data) // 2]
    written = re.fullmatch(r"write bytes ([0-9a-f ]+) at half of the file", words)
    assert written is not None, words
    new = bytes.fromhex(written[1])
    return lambda data: data[: len(data) // 2] + new + data[len(data) // 2 + len(new) :]


def damage(bucket: Bucket, change: Callable[[bytes], bytes]) -> BinaryIO:
    """Close a bucket and damage its state of writers: every entry of its index, since that is what a reopen reads.

    Returns the damaged file open, so that no other file gets its inode.
    """
    newest = paths.writers_file(bucket.paths.log, Offset(bucket.files()[-1]))
    with pytest.raises(CorruptData):
        decode_snapshot(change(newest.read_bytes()))
    bucket.close()
    with lmdb.open(str(bucket.paths.index)) as environment, environment.begin(write=True) as transaction:
        entries = [(key, value) for key, value in transaction.cursor() if key[:1] == b"\1"]
        assert entries
        for key, value in entries:
            transaction.put(key, change(value))
    return (bucket.paths.index / "data.mdb").open("rb")


@pytest.mark.parametrize("name", having("snapshots"))
def test_stray_snapshots(name: str, tmp_path: Path) -> None:
    """Those at the start of a segment stay, and one at the end of the log, where the next segment begins."""
    vector = VECTORS[name]
    (base,), end = vector["segment_bases"], max(vector["snapshots"])
    head = segment.SegmentHead(IDENTITY.store_id, IDENTITY.table_id, IDENTITY.bucket_id, Offset(base))
    paths.segment_file(tmp_path, Offset(base)).write_bytes(segment.encode_head(head))
    log = open_log(tmp_path)
    log.append([stretch(base, end)])
    log.sync()
    log.close()
    for offset in vector["snapshots"]:
        paths.writers_file(tmp_path, Offset(offset)).touch()
    assert recovery.prepare(tmp_path, IDENTITY, None, Files()).offset == end
    bases = (paths.writers_base(path.name) for path in tmp_path.iterdir())
    assert sorted(base for base in bases if base is not None) == vector["expect_snapshots"]


@pytest.mark.parametrize("name", having("offset"))
def test_name(name: str) -> None:
    """The same digits; the suffix is ours."""
    vector = VECTORS[name]
    file = paths.writers_file(Path(), Offset(vector["offset"]))
    assert file.stem == Path(vector["expect_file_name"]).stem
    assert paths.writers_base(file.name) == vector["offset"]


@pytest.mark.parametrize("name", running("log_truncate"))
def test_truncate(name: str, bucket: Bucket) -> None:
    vector = VECTORS[name]
    expected = {step["after"]: step for step in vector["expect"]}
    appended = 0
    for operation in vector["ops"]:
        words, number = re.fullmatch(r"([a-z]+?)(?:To)? ?(\d+)?(?: record)?", operation).groups()  # type: ignore[union-attr]
        if words == "append":
            for _ in range(int(number)):
                bucket.append(1, appended)
                appended += 1
        elif words == "snapshot":
            bucket.snapshot()
        else:
            assert words == "truncate"
            bucket.truncate(int(number))
            step = expected.pop(operation)
            assert max(bucket.snapshots(), default=None) == step["latest_snapshot"]
            assert bucket.map_end() == step["map_end_offset"]
            assert bucket.active_writers() == ({"1": int(number) - 1} if int(number) else {})
    assert not expected
