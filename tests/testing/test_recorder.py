"""Recorded calls around a table: what is in the history, and the verdicts on it."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import pytest

import kvstore
from kvstore import errors
from kvstore.testing import Recorder, certify, read_history
from tests.support.processes import Child
from tests.testing import recorded

COLUMNS = {"k": "string", "v": "int64"}
CALLS = 150


class Rows:
    """A table in memory whose calls can fail."""

    primary_key = ("k",)

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.error: BaseException | None = None

    def get(self, key: Any) -> Any:
        self.fail()
        return self.rows.get(key)

    def upsert(self, data: Mapping[str, Any]) -> None:
        self.fail()
        self.rows[data["k"]] = dict(data)

    def put_if(self, row: Mapping[str, Any], expected: Any) -> bool:
        self.fail()
        if self.rows.get(row["k"]) != expected:
            return False
        self.rows[row["k"]] = dict(row)
        return True

    def delete(self, keys: Any) -> None:
        self.fail()
        self.rows.pop(keys, None)

    def fail(self) -> None:
        if self.error is not None:
            raise self.error


class Ticks:
    """A clock that moves by a second each time it is asked."""

    def __init__(self) -> None:
        self.ticks = itertools.count(1)

    def now_ms(self) -> int:
        raise AssertionError

    def monotonic(self) -> float:
        return float(next(self.ticks))


def in_threads(*calls: Callable[[], None]) -> None:
    raised: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []


def test_threads_and_reading_processes_of_a_table_are_linearizable(tmp_path: Path) -> None:
    store, path = tmp_path / "store", tmp_path / "history"
    with kvstore.open(store) as opened:
        table = opened.create_table("t", COLUMNS, primary_key="k")
        recorder = Recorder(table, path)
        new = itertools.count().__next__
        with (
            Child(recorded.read_until_stopped, store, path, 1) as one,
            Child(recorded.read_until_stopped, store, path, 2) as two,
        ):
            assert [one.hear(), two.hear()] == ["reading", "reading"]
            in_threads(
                *(lambda seed=seed: recorded.work(recorder, Random(seed), CALLS, new) for seed in range(3))  # type: ignore[misc]
            )
            one.say("stop")
            two.say("stop")
            reads = one.hear() + two.hear()
        history = recorder.history()
        recorder.close()
        assert opened.check().ok
    assert len(list(path.iterdir())) == 3
    verdict = certify(history, "map")
    assert verdict, str(verdict)
    assert verdict.operations >= 3 * CALLS + reads
    assert len({record["process"] for record in history}) == 5


class Stale:
    """A client with a bug: some reads come from a cache."""

    def __init__(self, table: Any, random: Random) -> None:
        self._table, self._random = table, random
        self._cached: dict[Any, Any] = {}
        self.primary_key = table.primary_key
        self.upsert, self.put_if, self.delete = table.upsert, table.put_if, table.delete

    def get(self, key: Any) -> Any:
        if key not in self._cached or self._random.random() < 0.3:
            self._cached[key] = self._table.get(key)
        return self._cached[key]


def test_a_client_with_stale_reads_is_a_violation_of_a_few_operations(tmp_path: Path) -> None:
    with kvstore.open(tmp_path) as opened:
        table = opened.create_table("t", COLUMNS, primary_key="k")
        recorder = Recorder(Stale(table, Random(0)))
        new = itertools.count().__next__
        in_threads(
            *(lambda seed=seed: recorded.work(recorder, Random(seed), CALLS, new) for seed in range(3))  # type: ignore[misc]
        )
    verdict = certify(recorder.history(), "map")
    assert verdict.outcome == "violation"
    assert verdict.smallest is not None
    assert 1 <= verdict.smallest.operations <= 6
    assert not certify(verdict.smallest, "map")
    last = verdict.smallest[-1]
    assert last["f"] in ("read", "cas")


def test_a_killed_process_leaves_at_most_one_unknown_outcome(tmp_path: Path) -> None:
    store, path = tmp_path / "store", tmp_path / "history"
    with kvstore.open(store) as opened:
        opened.create_table("t", COLUMNS, primary_key="k")
    for _ in range(2):
        with Child(recorded.write_until_killed, store, path) as child:
            assert child.hear() == "writing"
            child.kill()
    with kvstore.open(store) as opened:
        recorder = Recorder(opened.table("t"), path)
        for _ in range(2):
            recorder.get("a")
        history = recorder.history()
        recorder.close()
    invoked = [record for record in history if record["type"] == "invoke"]
    assert len(invoked) - len([record for record in history if record["type"] == "ok"]) <= 2
    assert len({record["process"] for record in history}) == 3
    assert certify(history, "map")
    lost = [record | ({"value": ["a", None]} if record["f"] == "read" else {}) for record in history]
    assert not certify(lost, "map")


def test_calls_become_records() -> None:
    recorder = Recorder(Rows(), clock=Ticks())
    recorder.upsert({"k": "a", "v": 1, "w": None})
    assert recorder.get("a") == {"k": "a", "v": 1, "w": None}
    assert not recorder.put_if({"k": "a", "v": 2}, expected=None)
    assert recorder.put_if({"k": "a", "v": 2}, expected={"k": "a", "v": 1, "w": None})
    recorder.delete("a")
    assert recorder.get("a") is None
    history = recorder.history()
    assert [(record["type"], record["f"], record["value"], record["time"] // 10**9) for record in history] == [
        ("invoke", "write", ["a", {"v": 1}], 1),
        ("ok", "write", ["a", {"v": 1}], 2),
        ("invoke", "read", ["a", None], 3),
        ("ok", "read", ["a", {"v": 1}], 4),
        ("invoke", "cas", ["a", [None, {"v": 2}]], 5),
        ("fail", "cas", ["a", [None, {"v": 2}]], 6),
        ("invoke", "cas", ["a", [{"v": 1}, {"v": 2}]], 7),
        ("ok", "cas", ["a", [{"v": 1}, {"v": 2}]], 8),
        ("invoke", "write", ["a", None], 9),
        ("ok", "write", ["a", None], 10),
        ("invoke", "read", ["a", None], 11),
        ("ok", "read", ["a", None], 12),
    ]
    assert certify(history, "map")


OUTCOMES = [
    (errors.StoreLocked("x"), "fail"),
    (errors.StoreFull("x"), "fail"),
    (errors.SchemaMismatch("x"), "fail"),
    (errors.WriterFenced("x"), "fail"),
    (errors.Conflict("x"), "fail"),
    (errors.StoreClosed("x"), "fail"),
    (errors.NotAcknowledged("x"), "info"),
    (errors.LogFailed("x"), "info"),
    (errors.CorruptBatch("x"), "info"),
    (errors.StoreReplaced("x"), "info"),
    (TimeoutError(), "info"),
    (KeyboardInterrupt(), "info"),
]


@pytest.mark.parametrize(("error", "outcome"), OUTCOMES, ids=lambda value: type(value).__name__)
def test_an_error_is_a_failure_only_if_it_says_that_nothing_was_written(error: BaseException, outcome: str) -> None:
    client = Rows()
    recorder = Recorder(client)
    client.error = error
    row = {"k": "a", "v": 1}
    calls: list[Callable[[], Any]] = [
        lambda: recorder.upsert(row),
        lambda: recorder.put_if(row, None),
        lambda: recorder.delete("a"),
        lambda: recorder.get("a"),
    ]
    for call in calls:
        with pytest.raises(type(error)) as raised:
            call()
        assert raised.value is error
    ends = [record for record in recorder.history() if record["type"] != "invoke"]
    assert [(end["f"], end["type"]) for end in ends] == [
        ("write", outcome),
        ("cas", outcome),
        ("write", outcome),
        ("read", "fail"),
    ]
    assert {end["error"] for end in ends} == {type(error).__name__}
    # Refused: nothing is known of the row. Unknown: it may have been written.
    client.error, client.rows["a"] = None, row
    recorder.get("a")
    assert bool(certify(recorder.history(), "map")) == (outcome == "info")


def test_values_that_json_does_not_have_come_back_equal(tmp_path: Path) -> None:
    row = {"k": b"\xff", "v": date(2026, 1, 2), "w": [1, {"x": float("nan")}], "z": "é"}
    recorder = Recorder(Rows(), tmp_path / "new" / "history")
    recorder.upsert(row)
    recorder.get(b"\xff")
    recorder.close()
    (file,) = (tmp_path / "new" / "history").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["invoke", "ok", "invoke", "ok"]
    assert certify(read_history(file), "map")
    changed = {**lines[3], "value": [lines[3]["value"][0], {"v": 2}]}
    assert not certify([*lines[:3], changed], "map")


def test_a_forked_process_writes_into_a_file_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(Rows(), tmp_path)
    recorder.upsert({"k": "a", "v": 1})
    pid = os.fork()
    if pid == 0:
        recorder.get("a")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    recorder.get("a")
    assert len(list(tmp_path.iterdir())) == 2
    assert len({record["process"] for record in recorder.history()}) == 2
    assert certify(recorder.history(), "map")
    recorder.close()


def test_recorders_of_one_process_have_names_of_their_own(tmp_path: Path) -> None:
    for path in (None, tmp_path):
        rows = Rows()
        recorders = [Recorder(rows, path), Recorder(rows, path)]
        for recorder in recorders:
            recorder.get("a")
            recorder.close()
        history = [record for recorder in recorders for record in recorder.history()]
        assert len({record["process"] for record in history}) == 2


def test_what_a_recorder_does_not_take(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as opened:
        with pytest.raises(errors.InvalidRequest, match="primary key"):
            Recorder(opened.create_table("log", {"v": "int64"}, primary_key=None))
        recorder = Recorder(opened.create_table("t", COLUMNS, primary_key="k"))
        for wrong in ([{"k": "a", "v": 1}], "a"):
            with pytest.raises(errors.InvalidRequest, match="one row at a time"):
                recorder.upsert(wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest, match="has no 'k'"):
            recorder.upsert({"v": 1})
        with pytest.raises(errors.InvalidRequest, match="one key"):
            recorder.delete(["a", "b"])
        with pytest.raises(errors.InvalidRequest, match="one key"):
            recorder.get(("a", "b"))
        assert recorder.history() == []
        two = Recorder(opened.create_table("two", {"a": "int64", "b": "int64", "v": "int64"}, primary_key=["a", "b"]))
        two.upsert({"a": 1, "b": 2, "v": 3})
        assert two.get((1, 2)) == two.get({"a": 1, "b": 2}) == {"a": 1, "b": 2, "v": 3}
        assert {tuple(record["value"][0]) for record in two.history()} == {(1, 2)}
        assert certify(two.history(), "map")


def test_files_that_are_no_history(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    for missing in (file, tmp_path):
        with pytest.raises(errors.InvalidRequest, match="There is no history"):
            read_history(missing)
    good = b'{"process": 1, "type": "invoke", "f": "read", "value": null, "time": 1}\n'
    file.write_bytes(good + b'{"process": 1, "ty')
    assert read_history(tmp_path) == [json.loads(good)]
    for bad, message in [(b"{]\n", "no JSON"), (b"[1]\n", "JSON object"), (b"\xff\n", "no JSON")]:
        file.write_bytes(good + bad)
        with pytest.raises(errors.InvalidRequest, match=message) as raised:
            read_history(file)
        assert raised.value.where["line"] == 2
