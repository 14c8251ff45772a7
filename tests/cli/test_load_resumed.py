"""A load that was interrupted, wherever, and is started again makes the changelog it would have made at once."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import kvstore
from kvstore.clock import SystemClock
from logformat.log.writer_entry import EXPIRY_MS
from tests.cli.commands import ROOT, SMALL_BATCHES, changelog_of, fine, process, run, small_batches

ROWS, BATCH = 47, 5
KINDS = {"log": ["--append-only"], "keyed": ["--key", "k"]}

STOP = """
import os, kvstore
apply, left = kvstore.Bucket.apply, [{after}]
def stopping(*arguments, **named):
    result = apply(*arguments, **named)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), {signal})
    return result
kvstore.Bucket.apply = stopping
"""


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every key twice, so that loading a row again shows in a table with a key too."""
    path = tmp_path_factory.mktemp("loaded") / "f.csv"
    path.write_text("k,n\n" + "".join(f"{at % 23},{at}\n" for at in range(ROWS)))
    return path


@pytest.fixture
def file(tmp_path: Path, shared_file: Path) -> Path:
    """The same, to be changed and moved."""
    return Path(shutil.copy2(shared_file, tmp_path))


@pytest.fixture(scope="module")
def expected(shared_file: Path) -> dict[str, list[dict[str, Any]]]:
    """The changelogs of loads that were not interrupted."""
    store = shared_file.with_name("store")
    fine("init", store)
    with small_batches(BATCH):
        for name, options in KINDS.items():
            fine("load", store, name, shared_file, *options)
    return {name: changelog_of(store, name) for name in KINDS}


@pytest.mark.parametrize(
    ("name", "number"), [("log", signal.SIGINT), ("log", signal.SIGKILL), ("keyed", signal.SIGTERM)]
)
def test_a_load_that_was_stopped_goes_on(
    tmp_path: Path, file: Path, expected: dict[str, Any], name: str, number: signal.Signals
) -> None:
    store = tmp_path / "store"
    fine("init", store)
    script = SMALL_BATCHES.format(rows=BATCH) + STOP.format(after=4, signal=int(number))
    stopped = process("load", store, name, file, *KINDS[name], script=script)
    out, err = stopped.communicate(timeout=600)
    assert out == ""
    if number == signal.SIGINT:
        assert stopped.returncode == 130
        assert re.fullmatch(r"\nkvstore: interrupted; at least (15|20) rows are loaded; repeat the command\n", err)
    else:
        assert stopped.returncode == -number
        assert err == ""
    with small_batches(BATCH):
        printed = fine("load", store, name, file, "--json").lines[0]
    assert printed["rows"] + printed["rows_before"] == ROWS
    assert printed["rows_before"] == 4 * BATCH
    assert changelog_of(store, name) == expected[name]
    assert fine("check", store)


class _StoppedError(BaseException):
    """As if the process had died."""


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_load_may_be_stopped_at_every_batch(
    tmp_path: Path, file: Path, expected: dict[str, Any], name: str, when: str
) -> None:
    store = tmp_path / "store"
    fine("init", store)
    apply = kvstore.Bucket.apply

    def stopping(*arguments: Any, **named: Any) -> Any:
        if when == "before" and steps.pop():
            raise _StoppedError
        result = apply(*arguments, **named)
        if when == "after":
            raise _StoppedError
        return result

    with small_batches(BATCH):
        for _ in range(-(-ROWS // BATCH) - (when == "before")):
            steps = [True, False]
            with mock.patch.object(kvstore.Bucket, "apply", stopping), pytest.raises(_StoppedError):
                run("load", store, name, file, *KINDS[name])
        fine("load", store, name, file)
        assert changelog_of(store, name) == expected[name]
        printed = fine("load", store, name, file, "--json").lines[0]
    assert (printed["rows"], printed["rows_before"]) == (0, ROWS)


def test_a_load_goes_on_after_the_table_forgot_its_writer(tmp_path: Path, file: Path, expected: dict[str, Any]) -> None:
    """Weeks later, and again weeks later: the log still knows."""
    store = tmp_path / "store"
    fine("init", store)
    apply, now_ms = kvstore.Bucket.apply, SystemClock().now_ms()
    weeks = 4
    for week in range(weeks):
        left = [2]

        def stopping(*arguments: Any, left: list[int] = left, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise _StoppedError
            return apply(*arguments, **named)

        time = now_ms - (weeks - week) * (EXPIRY_MS + 1000)
        with (
            small_batches(BATCH),
            mock.patch.object(SystemClock, "now_ms", lambda _, time=time: time),
            mock.patch.object(kvstore.Bucket, "apply", stopping),
            pytest.raises(_StoppedError),
        ):
            run("load", store, "log", file, "--append-only")
    with small_batches(BATCH):
        printed = fine("load", store, "log", file, "--json").lines[0]
        assert printed["rows_before"] == weeks * 2 * BATCH
        assert changelog_of(store, "log") == expected["log"]
        later = now_ms + 2 * EXPIRY_MS
        with mock.patch.object(SystemClock, "now_ms", return_value=later):
            assert fine("load", store, "log", file).out.endswith("all 47 rows of it were loaded before\n")
    assert changelog_of(store, "log") == expected["log"]
    fine("check", store)


def test_what_makes_another_load(tmp_path: Path, file: Path) -> None:
    store = tmp_path / "store"
    fine("init", store)

    def loaded(*arguments: object) -> int:
        return int(fine("load", store, "log", *arguments, "--json").lines[0]["rows"])

    assert loaded(file, "--append-only") == ROWS
    assert loaded(os.path.relpath(file, ROOT) if Path.cwd() == ROOT else file) == 0
    link = tmp_path / "link.csv"
    link.symlink_to(file)
    assert loaded(link) == 0
    assert loaded(file, "--name", "again") == ROWS
    assert loaded(file, "--name", "again") == 0
    assert loaded(file, "--skip", "40") == ROWS - 40
    moved = file.rename(tmp_path / "moved.csv")
    assert loaded(moved, "--name", "again") == 0
    os.utime(moved)
    assert loaded(moved, "--name", "again") == ROWS


@pytest.mark.parametrize("rows", [10, 3])
def test_two_loads_at_once_are_one(tmp_path: Path, file: Path, rows: int) -> None:
    """The second load finds the batches of the first, although it looked before they were there.

    Of five batches the table knows each; of more only the last ones.
    """
    store = tmp_path / "store"
    fine("init", store)
    fine("create", store, "log", "--column", "k:int64", "--column", "n:int64", "--append-only")
    apply = kvstore.Bucket.apply
    first = [True]

    def overtaken(*arguments: Any, **named: Any) -> Any:
        if first:
            first.clear()
            fine("load", store, "log", file)
        return apply(*arguments, **named)

    with small_batches(rows), mock.patch.object(kvstore.Bucket, "apply", overtaken):
        printed = fine("load", store, "log", file, "--json").lines[0]
    assert (printed["rows"], printed["rows_before"]) == (0, ROWS)
    assert len(changelog_of(store, "log")) == ROWS


@pytest.mark.parametrize("keys", [{"primary_key": "k"}, {"bucket_key": "k"}, {}], ids=["keyed", "log by key", "log"])
def test_a_load_into_several_buckets_may_be_stopped_in_each(tmp_path: Path, file: Path, keys: dict[str, str]) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int64())])
    apply, buckets = kvstore.Bucket.apply, 3
    at_once, stopped = tmp_path / "at once", tmp_path / "stopped"
    for path in (at_once, stopped):
        with kvstore.open(path) as store:
            store.create_table("t", schema, buckets=buckets, **keys)
    with small_batches(2 * BATCH):
        printed = fine("load", at_once, "t", file, "--json").lines[0]
        assert (printed["rows"], printed["first_offset"]) == (ROWS, None)
        left = 0

        def stopping(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if not left:
                raise _StoppedError
            left -= 1
            return apply(*arguments, **named)

        # One or two of three buckets have the last batch.
        for left in (1, 1, 2, 3, 4):  # noqa: B007
            with mock.patch.object(kvstore.Bucket, "apply", stopping), pytest.raises(_StoppedError):
                run("load", stopped, "t", file)
        fine("load", stopped, "t", file)
        assert changelog_of(stopped, "t") == changelog_of(at_once, "t")
        again = fine("load", stopped, "t", file, "--json").lines[0]
    assert (again["rows"], again["rows_before"]) == (0, ROWS)
    with kvstore.open(stopped, read_only=True) as store:
        assert all(end for _, end in store.table("t").offsets().values())
    fine("check", stopped)
