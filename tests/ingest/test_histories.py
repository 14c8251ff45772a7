"""Random histories: deaths, rebuilds and interruptions of a job do not change its result."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.errors import TaskFailed
from kvstore.ingest.offsets import Overlooked
from tests.ingest.worlds import (
    BAD,
    checkpoint,
    create,
    from_image_only,
    lose_indexes,
    moments,
    outcome,
    recover,
    write,
)

MISHAPS = {"checkpoint": checkpoint, "image": from_image_only, "indexes": lose_indexes, "recovery": recover}
deaths = st.lists(st.tuples(st.integers(1, 14), st.sampled_from([None, *MISHAPS])), max_size=3)
steps = st.one_of(
    st.tuples(st.just("files"), st.integers(1, 5)),
    st.tuples(st.just("run"), deaths),
    st.tuples(st.just("alter"), st.integers(0, 30)),
    st.tuples(st.just("bad file"), deaths),
)


def run_and_die(store: Path, after: int) -> bool:
    """What stands in files after so many steps of a run takes the store's place; whether it came that far."""
    left = [after]
    dead = store.with_name("dead")

    def at(_: str) -> None:
        left[0] -= 1
        if not left[0]:
            shutil.copytree(store, dead)

    with moments(at), suppress(TaskFailed):
        all_taken(store)
    if not dead.exists():
        return False
    shutil.rmtree(store)
    dead.rename(store)
    return True


def play(directory: Path, history: list[tuple[str, object]], seed: int) -> None:
    """Play a history with one store that dies and one that does not."""
    random, names = Random(seed), iter(range(1000))
    source, mortal, whole = directory / "in", directory / "mortal", directory / "whole"
    source.mkdir()
    for store in (mortal, whole):
        create(store, source, max_filter_ratio=0.4)
    for word, given_with in history:
        if word == "files":
            for _ in range(int(given_with)):  # type: ignore[call-overload]
                write(source, f"{next(names):04}.csv", random.randrange(20), 8, more=random.choice(("", BAD)))
        elif word == "alter":
            for store in (mortal, whole):
                with kvstore.open(store) as opened:
                    job = opened.job("j")
                    job.pause()
                    job.alter(offset=f"{given_with:04}.csv", max_files=1 + int(given_with) % 3)  # type: ignore[call-overload]
                    job.resume()
        else:
            if word == "bad file":
                bad = write(source, f"{next(names):04}.csv", 0, 1, more=BAD)
            for after, mishap in given_with:  # type: ignore[attr-defined]
                if run_and_die(mortal, after):
                    MISHAPS.get(mishap, lambda _: None)(mortal)
                else:
                    break
            for store in (mortal, whole):
                resume(store)
                try:
                    all_taken(store)
                except TaskFailed:
                    resume(store)
            if word == "bad file":
                write(source, bad.name, 0, 1)
                for store in (mortal, whole):
                    resume(store)
                    all_taken(store)
    for store in (mortal, whole):
        resume(store)
    overlooked = all_taken(whole)
    assert all_taken(mortal) == overlooked
    if not any(word == "alter" for word, _ in history):
        assert not overlooked.late
    compare(outcome(mortal), outcome(whole))


def all_taken(store: Path) -> Overlooked:
    """Take all files that are there. Some may come late: those before an offset that was set ahead of them."""
    with kvstore.open(store) as opened:
        return opened.job("j").run().overlooked


def resume(store: Path) -> None:
    with kvstore.open(store) as opened:
        job = opened.job("j")
        if job.show().state == "paused":
            job.resume()


def compare(mortal: dict[str, object], whole: dict[str, object]) -> None:
    """One that died may have tried a bad file more often; all else is the same."""
    for each in (mortal, whole):
        each["statistics"].pop("failed_tasks")  # type: ignore[attr-defined]
        each["history"] = [task for task in each["history"] if task[-1] is None][-5:]  # type: ignore[attr-defined]
    assert mortal == whole


@settings(max_examples=5)
@given(st.lists(steps, min_size=3, max_size=6), st.integers(0, 99))
def test_some_histories(history: list[tuple[str, object]], seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        play(Path(directory), history, seed)


@pytest.mark.long
@settings(max_examples=1_000)
@given(st.lists(steps, min_size=3, max_size=10), st.integers(0, 2**32))
def test_many_histories(history: list[tuple[str, object]], seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        play(Path(directory), history, seed)
