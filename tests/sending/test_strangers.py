"""What a broken or hostile process sends to an owner, or how an owner may fail: an error, and no harm to others."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from msgspec import structs

import kvstore
from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.ownership import BucketOwnership
from kvstore.clock import SystemClock
from kvstore.commit import coordinator
from kvstore.disk.files import Files
from kvstore.errors import (
    CorruptData,
    ForkedStore,
    InvalidRequest,
    LogFailed,
    NotAcknowledged,
    NotAStore,
    OffsetOutOfRange,
    StoreLocked,
    StoreReplaced,
    Unavailable,
    UnsupportedVersion,
)
from kvstore.index.index import View
from kvstore.log.segments import FoundBatch, LogFiles
from kvstore.process.calls import Answer
from kvstore.request.encoded import AddedRequest, SmallRequest, encoded_writes
from kvstore.request.preparation import request_of
from kvstore.request.results import AppendResult
from kvstore.request.sums import Amounts, StoredSums
from kvstore.sending import frames, meeting, receiver, requests, sender
from kvstore.sending.frames import BadFrame, Greeting, Kind, frame, frames_in, numbered
from kvstore.sending.meeting import MeetingPlace
from kvstore.sending.requests import Condition
from kvstore.transaction import elsewhere
from kvstore.transaction.table_changes import TableChanges
from logformat import paths
from logformat.ids import BucketId, Offset, TableId, Txid
from logformat.rows.changes import Changes
from tests.sending.writers import create
from tests.support.committers import committer_of
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

TABLE, BUCKET = TableId(1), BucketId(0)


def greeting_of(table: kvstore.Table, **other: Any) -> Greeting:
    handle = table.bucket(0).handle
    lock = handle.lock_identity()
    assert lock is not None
    return Greeting(frames.VERSION, uuid4(), handle.identity.store_id, TABLE, BUCKET, lock)._replace(**other)


def met(path: Path) -> socket.socket:
    """A connection of a stranger to the owner of the bucket, which is this process."""
    found = MeetingPlace(path, Files(), SystemClock()).owner_of(TABLE, BUCKET, lambda: True)
    assert found is not None
    found.settimeout(60)
    return found


def answers(connection: socket.socket) -> list[tuple[Kind, bytes]]:
    """All that the owner says until it ends the connection."""
    connection.shutdown(socket.SHUT_WR)
    data = bytearray()
    try:
        while more := connection.recv(1 << 16):
            data += more
    except ConnectionError:
        pass
    return list(frames_in(data))


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kvstore.Table]:
    """A table whose bucket this process owns."""
    path = tmp_path_factory.mktemp("owned") / "store"
    create(path)
    with kvstore.open(path) as store:
        table = store.table("t")
        table.upsert({"k": 0, "v": "owner", "n": 0})
        yield table
        assert store.check()


def path_of(table: kvstore.Table) -> Path:
    return table.bucket(0).handle.paths.directory.parents[2]


@given(data=st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda body: frame(Kind.GREETING, body))))
@settings(max_examples=15)
def test_garbage_instead_of_a_greeting_ends_the_connection(owned: kvstore.Table, data: bytes) -> None:
    with closing(met(path_of(owned))) as stranger:
        stranger.sendall(data)
        assert answers(stranger) == []
    owned.upsert({"k": 1, "v": "after", "n": 1})


def rows_frame(table: kvstore.Table) -> bytes:
    definition = table.parts.definition
    changes = Changes.of([("upsert", {"k": k, "v": "x", "n": 1}) for k in range(-9, -5)], definition.schema)
    request = request_of(changes, definition, 5, 0)
    return requests.encode(request, definition, Condition([b"\1\2"], [b"never"]))


def few_frame(table: kvstore.Table) -> bytes:
    writes = encoded_writes(table.parts.definition)
    assert writes is not None
    operations = writes.upserts([{"k": -5, "v": "x", "n": 1}, {"k": -6, "v": "y", "n": 1}], 9)
    assert operations is not None
    return requests.encode_few(SmallRequest(operations, writes, Answer(), 5, 0), Condition([b"\1\2"], [b"never"]))


def delete_of(table: kvstore.Table, key: int) -> SmallRequest:
    """A request that deletes a row, and has a writer."""
    writes = encoded_writes(table.parts.definition)
    assert writes is not None
    operation = writes.rows.delete(key)
    assert operation is not None
    return SmallRequest([operation], writes, Answer(), 5, 0)


def add_frame(table: kvstore.Table) -> bytes:
    request = delete_of(table, 0)
    sums = StoredSums.of(request.writes, request.operations[0], Amounts.given(table.parts.definition, {"n": 1}))
    assert sums is not None
    return requests.encode_add(request, sums)


@given(data=st.data())
@settings(max_examples=60)
def test_a_damaged_request_ends_the_connection_or_is_refused(owned: kvstore.Table, data: st.DataObject) -> None:
    given = [(Kind.WRITE, rows_frame(owned)), (Kind.WRITE_FEW, few_frame(owned)), (Kind.ADD, add_frame(owned))]
    kind, whole = data.draw(st.sampled_from(given))
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged
    path = path_of(owned)
    with closing(met(path)) as stranger:
        stranger.sendall(greeting_of(owned).encode() + numbered(kind, 3, bytes(damaged)))
        found = [each for each, _ in answers(stranger)]
        assert found[0] is Kind.WELCOME
        assert set(found[1:]) <= {Kind.FAILED, Kind.UNCHANGED, Kind.ALTERED, Kind.WRITTEN}
    owned.upsert({"k": 1, "v": "after", "n": 1})
    assert owned.get(1) == {"k": 1, "v": "after", "n": 1}


def transaction_of(table: kvstore.Table) -> bytes:
    """A transaction that is refused, because it has read a row that is not there."""
    with kvstore.open(path_of(table)) as store:
        changes = TableChanges(store.runtime.open_table(store.runtime.definition("t")))
    changes.upsert([{"k": -5, "v": "x", "n": 1}])
    changes.upsert(pa.table({"k": range(100, 200), "v": ["y"] * 100, "n": range(100)}))
    changes.read[BUCKET, changes.code_of(7)] = b"never"
    return elsewhere.encode(elsewhere.Identity("name", 5, Txid(1)), [changes])


@given(data=st.data())
@settings(max_examples=30)
def test_a_damaged_transaction_ends_the_connection_or_is_refused(owned: kvstore.Table, data: st.DataObject) -> None:
    whole = transaction_of(owned)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, min(120, len(damaged) - 1)))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged
    with closing(met(path_of(owned))) as stranger:
        stranger.sendall(greeting_of(owned).encode() + numbered(Kind.TRANSACT, 3, bytes(damaged)))
        kind = first_answer(stranger)
        assert kind in (None, Kind.FAILED, Kind.CHANGED, Kind.ALTERED, Kind.TRANSACTED)
        if damaged == whole:
            assert kind is Kind.CHANGED
    owned.upsert({"k": 1, "v": "after", "n": 1})
    assert owned.get(1) == {"k": 1, "v": "after", "n": 1}


def first_answer(connection: socket.socket) -> Kind | None:
    """What the owner says after its welcome; None if it ends the connection."""
    data = bytearray()
    found: list[tuple[Kind, bytes]] = []
    try:
        while len(found) < 2 and (more := connection.recv(1 << 16)):
            data += more
            found += frames_in(data)
    except ConnectionError:
        pass
    return found[1][0] if len(found) > 1 else None


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"version": 99}, UnsupportedVersion),
        ({"store_id": uuid4()}, NotAStore),
        ({"lock": (1, 2)}, StoreReplaced),
    ],
)
def test_a_stranger_is_refused_by_name(owned: kvstore.Table, other: dict[str, object], error: type) -> None:
    path = path_of(owned)
    with closing(met(path)) as stranger:
        stranger.sendall(greeting_of(owned, **other).encode())
        ((kind, content),) = answers(stranger)
    assert kind is Kind.REFUSED
    assert type(frames.decode_error(content)) is error


def own(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store:
        store.table("t").upsert({"k": 0, "v": "owner", "n": 0})
        pipe.send("owns")
        pipe.recv()


@pytest.fixture
def owner(store_path: Path) -> Iterator[Child]:
    create(store_path)
    with Child(own, store_path) as child:
        assert child.hear() == "owns"
        yield child


def test_an_owner_that_is_stopped_is_waited_for_and_then_named(
    owner: Child, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sender.ANSWER_SECONDS <= 30
    assert meeting.MEET_SECONDS <= 10
    monkeypatch.setattr(sender, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(meeting, "MEET_SECONDS", 0.5)
    with kvstore.open(store_path) as store:
        table = store.table("t")
        table.upsert({"k": 1, "v": "met", "n": 1})
        owner.stop()
        try:
            with pytest.raises(NotAcknowledged, match="has not answered"):
                table.upsert({"k": 2, "v": "unknown", "n": 2})
            with pytest.raises(StoreLocked, match=f"it is stopped, or.*holder_pid={owner.pid}"):
                table.upsert({"k": 3, "v": "refused", "n": 3})
            monkeypatch.setattr(coordinator, "COMMIT_WAIT_SECONDS", 0.5)
            with (
                pytest.raises(StoreLocked, match=f"it is stopped, or.*holder_pid={owner.pid}"),
                store.transaction(writer="w", epoch=1) as tx,
            ):
                tx.upsert("t", {"k": 3, "v": "refused", "n": 3})
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        monkeypatch.setattr(sender, "ANSWER_SECONDS", 30)
        monkeypatch.setattr(meeting, "MEET_SECONDS", 30)
        for n in range(4, 8):
            table.upsert({"k": n, "v": "again", "n": n})
        found = {row["k"] for row in rows_of(table)}
        assert found - {2} == {0, 1, 4, 5, 6, 7}
        assert store.check()


def test_processes_that_ask_for_the_bucket_at_once_are_not_taken_for_one_that_recovers_it(
    owner: Child, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold the lock of a recovery for a moment; that of its owner is held all the time."""
    looks, is_written = [None] * 5, BucketOwnership.is_written

    def look(ownership: BucketOwnership) -> bool | None:
        return looks.pop() if looks else is_written(ownership)

    monkeypatch.setattr(BucketOwnership, "is_written", look)
    with kvstore.open(store_path) as store:
        store.table("t").upsert({"k": 1, "v": "met", "n": 1})
        assert looks == []
        assert store.table("t").bucket(0).handle.is_owned_elsewhere()


def test_a_bucket_that_gets_another_owner_while_the_first_is_looked_for(
    owner: Child, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, is_owned = [False], BucketHandle.is_owned_elsewhere
    hints, takes_requests = [False], sender.takes_requests
    monkeypatch.setattr(BucketHandle, "is_owned_elsewhere", lambda handle: looks.pop() if looks else is_owned(handle))
    monkeypatch.setattr(sender, "takes_requests", lambda path: hints.pop() if hints else takes_requests(path))
    with kvstore.open(store_path) as store:
        store.table("t").upsert({"k": 1, "v": "met", "n": 1})
        assert looks == hints == []


def test_a_conditional_write_that_is_not_decided_yet_says_that_nothing_was_written(
    owner: Child, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.open(store_path) as store:
        table = store.table("t")
        table.upsert({"k": 1, "v": "met", "n": 1})
        owner.stop()
        monkeypatch.setattr(sender, "ANSWER_SECONDS", 0.5)
        try:
            with pytest.raises(Unavailable, match="nothing was written; try again"):
                table.put_if({"k": 9, "v": "x", "n": 1}, None)
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        monkeypatch.setattr(sender, "ANSWER_SECONDS", 30)
        assert table.put_if({"k": 9, "v": "x", "n": 1}, None)


@pytest.mark.parametrize("has_met", [False, True])
def test_the_error_of_a_handler_of_signals_ends_a_wait_for_the_owner(
    owner: Child, store_path: Path, has_met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_signal: int, _frame: object) -> None:
        raise TimeoutError("the program waits no longer")

    if has_met:  # it connects, and never greets
        monkeypatch.setattr(MeetingPlace, "owner_of", lambda *_: silent)
    silent, other = socket.socketpair()
    before = signal.signal(signal.SIGALRM, end)
    try:
        with kvstore.open(store_path) as store:
            table = store.table("t")
            owner.stop()
            signal.setitimer(signal.ITIMER_REAL, 0.7)
            with pytest.raises(TimeoutError, match="waits no longer"):
                table.upsert({"k": 1, "v": "a", "n": 1})
            os.kill(owner.pid, signal.SIGCONT)
            monkeypatch.undo()
            table.upsert({"k": 2, "v": "b", "n": 2})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        silent.close()
        other.close()


def test_a_lost_answer_is_given_once_more_and_the_row_is_written_once(
    owner: Child, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = iter([True, False] * 3)
    result_in = frames.result_in

    def lose(content: bytes) -> tuple[AppendResult, bytes]:
        if next(lost, False):
            raise BadFrame
        return result_in(content)

    monkeypatch.setattr(frames, "result_in", lose)
    with kvstore.open(store_path) as store:
        table = store.table("t")
        first = table.upsert({"k": 1, "v": "a", "n": 1})
        assert first.duplicated
        assert first.first_offset == 1
        assert table.upsert({"k": 2, "v": "b", "n": 2}).duplicated
        assert table.increment(1, {"n": 1})["n"] == 2
        assert [change["n"] for batch in table.changelog() for change in batch.to_pylist()] == [0, 1, 2, 1, 2]


def test_a_lost_answer_of_an_increment_whose_row_the_log_does_not_have_any_more(
    owner: Child, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = iter([True])
    result_in = frames.result_in

    def lose(content: bytes) -> tuple[AppendResult, bytes]:
        if next(lost, False):
            raise BadFrame
        return result_in(content)

    def expired(_log: LogFiles, start: Offset, _end: Offset) -> Iterator[FoundBatch]:
        raise OffsetOutOfRange("The log begins later.", offset=start)

    with kvstore.open(store_path) as store:
        table = store.table("t")
        table.upsert({"k": 1, "v": "a", "n": 1})
        with monkeypatch.context() as patch:
            patch.setattr(frames, "result_in", lose)
            patch.setattr(LogFiles, "batches", expired)
            with pytest.raises(NotAcknowledged, match="were added") as raised:
                table.increment(1, {"n": 1})
        assert raised.value.where["committed"]
        assert table.increment(1, {"n": 1})["n"] == 3


def test_an_increment_that_can_not_be_decided_changes_nothing(
    owner: Child, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is too large for an answer, so this process reads it."""

    def fail(_: BucketHandle) -> View:
        raise OSError(errno.EMFILE, "too many open files")

    with kvstore.open(store_path) as store:
        table = store.table("t")
        table.upsert({"k": 1, "v": "a" * 70_000, "n": 1})
        with monkeypatch.context() as patch:
            patch.setattr(BucketHandle, "latest", fail)
            with pytest.raises(LogFailed, match="Too many files are open"):
                table.increment(1, {"n": 1})
        owner.kill()
        assert table.increment(1, {"n": 1})["n"] == 2


def test_a_damaged_row_to_which_nothing_can_be_added_is_named(owned: kvstore.Table) -> None:
    definition = owned.parts.definition
    writes = encoded_writes(definition)
    assert writes is not None
    (operation,) = writes.upserts([{"k": 0, "v": "a", "n": 2**63 - 1}], 1) or []
    sums = StoredSums.of(writes, operation, Amounts.given(definition, {"n": 1}))
    assert sums is not None
    stored = operation.value or b""
    request = AddedRequest(sums, SmallRequest([], writes, Answer(), 5, 0))
    with pytest.raises(InvalidRequest, match="does not fit"):
        request.decided(definition, lambda _: [stored])
    with pytest.raises(CorruptData):
        request.decided(definition, lambda _: [stored[:-1] + bytes([stored[-1] ^ 1])])


def add_columns(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store:
        while name := pipe.recv():
            store.add_columns("t", [pa.field(name, pa.int64())])
            store.table("t").upsert({"k": 50, "n": 1, name: 1})
            pipe.send("added")


@pytest.mark.parametrize("size", [1, 2000])
def test_an_answer_that_is_lost_while_the_table_is_altered(
    owner: Child, store_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The request has been applied; its answer is that of the first time, however large the row is."""
    result_in, lost = frames.result_in, ["c1", "c2"]

    def lose(content: bytes) -> tuple[AppendResult, bytes]:
        if is_losing and lost:
            other.say(lost.pop())
            assert other.hear() == "added"
            raise BadFrame
        return result_in(content)

    is_losing = False
    monkeypatch.setattr(frames, "result_in", lose)
    with Child(add_columns, store_path) as other, kvstore.open(store_path) as store:
        table = store.table("t")
        table.upsert({"k": 1, "v": "a" * size, "n": 1})
        is_losing = True
        assert [table.increment(1, {"n": 1})["n"] for _ in range(3)] == [2, 3, 4]
        assert not lost
        assert (table.get(1) or {})["n"] == 4
        other.say("")
        other.join()


def test_a_table_that_refuses_deletes_since_they_were_sent(owned: kvstore.Table) -> None:
    """Then they are sent as columns, and refused as those of callers here."""
    definition, frame = owned.parts.definition, requests.encode_few(delete_of(owned, 0))
    for behavior in ("disable", "ignore"):
        options = structs.replace(definition.options, delete_behavior=behavior)
        with pytest.raises(requests.Altered):
            requests.decode_few(frame, replace(definition, options=options), Answer())


def test_a_table_that_was_altered_meanwhile(owner: Child, store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = store.table("t")
        for n in range(3):
            table.upsert({"k": n, "v": "a", "n": n})
            store.add_columns("t", [pa.field(f"c{n}", pa.int64())])
            table.upsert({"k": n, f"c{n}": n})
        assert [row["c2"] for row in rows_of(table)] == [None, None, 2]


def test_a_store_is_copied_while_it_is_written_by_several(owner: Child, store_path: Path, tmp_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = store.table("t")
        table.upsert({"k": 1, "v": "a", "n": 1})
        table.flush()
        shutil.copytree(store_path, tmp_path / "copy")
    with kvstore.open(tmp_path / "copy") as copy:
        copy.table("t").upsert({"k": 2, "v": "b", "n": 2})


def test_the_path_of_a_store_may_be_longer_than_that_of_a_socket(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 40) / "store"
    path.parent.mkdir()
    create(path)
    with Child(own, path) as child, kvstore.open(path) as store:
        assert child.hear() == "owns"
        store.table("t").upsert({"k": 1, "v": "a", "n": 1})
        senders = path / paths.SENDERS
        assert stat.S_IMODE(senders.stat().st_mode) == 0o700
        assert [each.name for each in senders.iterdir()] == ["0.slot"]


def test_a_socket_is_for_its_user_only(store_path: Path) -> None:
    create(store_path)
    modes: list[int] = []

    def is_owned() -> bool:
        modes.extend(stat.S_IMODE(each.stat().st_mode) for each in (store_path / paths.SENDERS).iterdir())
        return False

    place = MeetingPlace(store_path, Files(), SystemClock())
    assert place.owner_of(TABLE, BUCKET, is_owned) is None
    assert modes == [0o600]
    assert place.waiting() == []


def test_the_socket_of_a_sender_that_was_killed_is_removed_by_the_owner(owned: kvstore.Table) -> None:
    senders = path_of(owned) / paths.SENDERS
    senders.mkdir(exist_ok=True)
    directory = os.open(senders, os.O_RDONLY)
    name = f"{TABLE}.{BUCKET}.{'0' * 32}.socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"/proc/self/fd/{directory}/{name}")
    os.close(directory)
    wait_until(lambda: not (senders / name).exists())


def test_children_of_a_fork_send_for_themselves(owner: Child, store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = store.table("t")
        table.upsert({"k": 1, "v": "parent", "n": 1})
        pid = os.fork()
        if not pid:
            status = 1
            try:
                with pytest.raises(ForkedStore):
                    table.upsert({"k": 2, "v": "child", "n": 2})
                with kvstore.open(store_path) as again:
                    again.table("t").upsert({"k": 2, "v": "child", "n": 2})
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        table.upsert({"k": 3, "v": "parent", "n": 3})
        assert [row["v"] for row in rows_of(table)] == ["owner", "parent", "child", "parent"]


def small_frame(table: kvstore.Table, number: int, k: int) -> bytes:
    """A write without a condition."""
    writes = encoded_writes(table.parts.definition)
    assert writes is not None
    operations = writes.upserts({"k": k, "v": "stranger", "n": number}, 1)
    assert operations is not None
    return numbered(Kind.WRITE_FEW, number, requests.encode_few(SmallRequest(operations, writes, Answer())))


STEPS = st.lists(st.tuples(st.sampled_from(["hold", "give up", "few", "compared", "barrier"]), st.integers(0, 2)))


@given(steps=STEPS, ends=st.booleans())
@settings(max_examples=15, deadline=None)
def test_holds_in_any_order_end(owned: kvstore.Table, steps: list[tuple[str, int]], ends: bool) -> None:
    with closing(met(path_of(owned))) as stranger:
        frames_of = {
            "hold": lambda number: numbered(Kind.HOLD, number),
            "give up": lambda number: numbered(Kind.GIVE_UP, number),
            "few": lambda number: small_frame(owned, number, 1),
            "compared": lambda number: numbered(Kind.WRITE_FEW, number, few_frame(owned)),
            "barrier": lambda number: numbered(Kind.BARRIER, number),
        }
        stranger.sendall(greeting_of(owned).encode() + b"".join(frames_of[name](number) for name, number in steps))
        if not ends:  # the stranger is there, and says nothing more
            owned.upsert({"k": 1, "v": "beside", "n": 1})
        wanted = [number for name, number in steps if name != "give up"]
        found: list[tuple[Kind, bytes]] = []
        data = bytearray()
        while len(found) <= len(wanted):
            data += stranger.recv(1 << 16)
            found += frames_in(data)
        assert found[0][0] is Kind.WELCOME
        assert sorted(frames.number_in(content)[0] for _, content in found[1:]) == sorted(wanted)
    owned.upsert({"k": 1, "v": "after", "n": 1})
    assert owned.get(1) == {"k": 1, "v": "after", "n": 1}


@given(kind=st.sampled_from([Kind.HOLD, Kind.BARRIER]), data=st.binary(max_size=40), keys=st.lists(st.binary()))
@settings(max_examples=15)
def test_keys_of_strangers_are_found_or_end_the_connection(
    owned: kvstore.Table, kind: Kind, data: bytes, keys: list[bytes]
) -> None:
    there = owned.upsert({"k": 7, "v": "there", "n": 7}) and encoded_key(owned, 7)
    for content in (data, requests.encode_values(keys)):
        with closing(met(path_of(owned))) as stranger:
            stranger.sendall(greeting_of(owned).encode() + numbered(kind, 3, content))
            assert first_answer(stranger) in (None, Kind.UNCHANGED)
    with closing(met(path_of(owned))) as stranger:
        stranger.sendall(greeting_of(owned).encode() + numbered(kind, 3, requests.encode_values([there, b"no key"])))
        assert first_answer(stranger) is Kind.UNCHANGED
    owned.upsert({"k": 1, "v": "after", "n": 1})


def encoded_key(table: kvstore.Table, k: int) -> bytes:
    writes = encoded_writes(table.parts.definition)
    assert writes is not None
    operations = writes.upserts({"k": k, "v": "x", "n": 1}, 1)
    assert operations is not None
    return operations[0].code


def test_a_sender_that_floods_does_not_starve_another(owned: kvstore.Table) -> None:
    with closing(met(path_of(owned))) as flooding, closing(met(path_of(owned))) as other:
        for each in (flooding, other):
            each.sendall(greeting_of(owned).encode())
        came, done = threading.Event(), threading.Event()

        def flood() -> None:
            for first in count(0, 500):
                if done.is_set():
                    break
                numbers = range(first, first + 500)
                flooding.sendall(b"".join(small_frame(owned, number, 1000 + number % 50) for number in numbers))

        def receive() -> None:
            while flooding.recv(1 << 16):
                came.set()

        threads = [threading.Thread(target=work) for work in (flood, receive)]
        for each in threads:
            each.start()
        came.wait()
        try:
            other.settimeout(100)
            for number in range(10):
                other.sendall(small_frame(owned, number, 5000 + number))
                kinds: list[Kind] = []
                data = bytearray()
                while Kind.WRITTEN not in kinds:  # the flood does not end before
                    data += other.recv(1 << 16)
                    kinds += [kind for kind, _ in frames_in(data)]
        finally:
            done.set()
        threads[0].join()
        flooding.shutdown(socket.SHUT_RDWR)
        threads[1].join()


def test_a_sender_that_ends_while_its_requests_wait_keeps_no_thread_busy(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[int, int]] = []

    class Poller:
        def __init__(self) -> None:
            poller = select.poll()
            self.register, self.unregister = poller.register, poller.unregister
            self._poll = poller.poll

        def poll(self) -> list[tuple[int, int]]:
            events.extend(there := self._poll())
            return there

    monkeypatch.setattr(receiver, "select", SimpleNamespace(poll=Poller, POLLIN=select.POLLIN))
    create(store_path)
    with kvstore.open(store_path) as store:
        table = store.table("t")
        table.upsert({"k": 0, "v": "owner", "n": 0})
        turn = committer_of(table).turn
        with turn.taken(), ExitStack() as others:
            # More than may wait: nothing more is read then.
            few = [small_frame(table, number, number) for number in range(receiver.WAITING_MAX + 9)]
            with closing(met(store_path)) as stranger:
                stranger.sendall(b"".join([greeting_of(table).encode(), *few]))
            for _ in range(20):  # each time the receiver looks at least once
                other = others.enter_context(closing(met(store_path)))
                other.sendall(greeting_of(table).encode())
                assert [kind for kind, _ in frames_in(bytearray(other.recv(1 << 16)))] == [Kind.WELCOME]
            assert sum(bool(event & select.POLLHUP) for _, event in events) <= 2
        table.upsert({"k": 1, "v": "after", "n": 1})
        assert store.check()
