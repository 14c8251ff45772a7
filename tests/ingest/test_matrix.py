"""Wherever a job dies and however it is started again: offset, statistics and rows are those of one that did not."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from tests.ingest.worlds import (
    BAD,
    checkpoint,
    create,
    from_image_only,
    lose_indexes,
    moments,
    outcome,
    recover,
    run,
    short_segments,
    write,
)

TASKS = 2


class Died(BaseException):
    """An error that no code catches."""


MOMENTS = [
    ("BeginTask", 2),  # between intent and apply
    ("ReadTask", 2),  # the same, and counted
    ("BeginCommit", 2),  # decided, and no bucket has it
    ("append", 5),  # in the middle of the apply: some buckets have it
    ("EndCommit", 2),  # between apply and commit
    ("taken", 2),
    ("EndTask", 1),  # running, and no task is open
    ("EndTask", 2),
]


def cleanly(_store: Path) -> None:
    """Nothing but opened again."""


RESTARTS: list[Callable[[Path], None]] = [cleanly, from_image_only, recover, lose_indexes]


def pairs(those: list[Any], restarts: list[Callable[[Path], None]]) -> list[Any]:
    """All of them, most in ``make test-long``: in ``make test`` each restart at some moment, and all at ``append``."""
    return [
        pytest.param(
            moment,
            restart,
            marks=[] if moment[0] == "append" or nth % len(restarts) == number else pytest.mark.long,
            id=f"{moment}-{restart.__name__}",
        )
        for nth, moment in enumerate(those)
        for number, restart in enumerate(restarts)
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("in")
    for n in range(2 * TASKS):
        write(directory, f"{n}.csv", n * 6, more=BAD if n % 2 else "")
    return directory


@pytest.fixture(scope="module")
def dead(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Any, Path], dict[str, Any]]:
    """A store as a kill leaves it at each moment, and the outcome of one that came to its end."""
    directory = tmp_path_factory.mktemp("dead")
    found: dict[Any, Path] = {}
    seen: Counter[str] = Counter()

    def at(word: str) -> None:
        seen[word] += 1
        if (word, seen[word]) in MOMENTS:
            # What stands in files now is what is left when the process is killed now.
            found[word, seen[word]] = directory / f"{word}-{seen[word]}"
            shutil.copytree(directory / "store", found[word, seen[word]])

    with short_segments(), moments(at):
        create(directory / "store", source)
        found["fresh"] = directory / "fresh"
        shutil.copytree(directory / "store", found["fresh"])
        run(directory / "store")
    assert found.keys() == {"fresh", *MOMENTS}
    end = outcome(directory / "store")
    assert end["statistics"]["filtered_rows"] == 6
    assert end["statistics"]["succeeded_tasks"] == TASKS
    assert end["offset"] == f"{2 * TASKS - 1}.csv"
    return found, end


@pytest.mark.parametrize(("moment", "restart"), pairs(["fresh", *MOMENTS], RESTARTS))
def test_killed(
    moment: Any, restart: Callable[[Path], None], dead: tuple[dict[Any, Path], dict[str, Any]], tmp_path: Path
) -> None:
    stores, end = dead
    shutil.copytree(stores[moment], tmp_path / "store")
    restart(tmp_path / "store")
    run(tmp_path / "store")
    assert outcome(tmp_path / "store") == end


@pytest.mark.parametrize("moment", [each for each in MOMENTS if each[0] != "append"], ids=str)
def test_died_and_closed(
    moment: tuple[str, int], source: Path, dead: tuple[Any, dict[str, Any]], tmp_path: Path
) -> None:
    """The same with an image from before it began, and edits after it; threads append rows, and do not die."""
    seen: Counter[str] = Counter()

    def at(word: str) -> None:
        seen[word] += 1
        if (word, seen[word]) == moment:
            raise Died

    create(tmp_path / "store", source)
    checkpoint(tmp_path / "store")
    with moments(at), pytest.raises(Died):
        run(tmp_path / "store")
    run(tmp_path / "store")
    assert outcome(tmp_path / "store") == dead[1]


def after_an_image(_store: Path) -> None:
    """Opened again, with an image from before it was altered."""


def altered(store: Path, restart: Callable[[Path], None]) -> None:
    """Paused and set back, and then started again."""
    if restart is after_an_image:
        checkpoint(store)
    with kvstore.open(store) as opened:
        job = opened.job("j")
        job.pause("for a look")
        job.alter(offset="1.csv", max_files=1)
    restart(store)


def test_a_paused_job_shows_its_offset_after_any_restart(
    dead: tuple[dict[Any, Path], dict[str, Any]], tmp_path: Path
) -> None:
    stores, _ = dead
    for place, restart in enumerate([*RESTARTS, after_an_image]):
        store = tmp_path / str(place)
        shutil.copytree(stores["EndTask", 2], store)
        altered(store, restart)
        with kvstore.open(store, read_only=True) as opened:
            status = opened.job("j").show()
        assert (status.state, status.offset, status.options.max_files) == ("paused", "1.csv", 1)
        assert (status.reason, status.statistics.succeeded_tasks) == ("for a look", 2)


@pytest.mark.parametrize(
    ("moment", "restart"), pairs([each for each in MOMENTS if each[0] != "EndTask"], [*RESTARTS[:3], after_an_image])
)
def test_altered_while_a_task_is_open_whose_end_is_replayed_later(
    moment: Any, restart: Callable[[Path], None], dead: tuple[dict[Any, Path], dict[str, Any]], tmp_path: Path
) -> None:
    """If it was applied it counts, and leaves the offset where it was set; if not, it is void."""
    stores, end = dead
    store = tmp_path / "store"
    shutil.copytree(stores[moment], store)
    altered(store, restart)
    is_applied = moment[0] not in ("BeginTask", "ReadTask")
    with kvstore.open(store) as opened:
        job = opened.job("j")
        assert [each.number for each in job.run().tasks] == [2] * is_applied
        status = job.show()
        assert (status.state, status.offset, status.version) == ("paused", "1.csv", 1)
        assert (status.statistics.succeeded_tasks, status.statistics.failed_tasks) == (1 + is_applied, not is_applied)
        job.resume()
        assert [each.first for each in job.run().tasks] == ["2.csv", "3.csv"]
        assert job.show().offset == "3.csv"
    found = outcome(store)
    assert found["rows"] == end["rows"]
    for name in ("file_number", "scanned_rows", "loaded_rows", "filtered_rows"):
        assert found["statistics"][name] == end["statistics"][name] * (3 if is_applied else 2) // 2


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_options_that_are_altered_after_a_death_change_nothing_else(
    moment: Any, dead: tuple[dict[Any, Path], dict[str, Any]], tmp_path: Path
) -> None:
    stores, end = dead
    shutil.copytree(stores[moment], tmp_path / "store")
    with kvstore.open(tmp_path / "store") as opened:
        job = opened.job("j")
        job.pause()
        job.alter(max_bytes=1 << 40)
        job.resume()
        job.run()
        assert job.show().options.max_bytes == 1 << 40
    assert outcome(tmp_path / "store") == end


def test_a_task_that_kills_its_process_is_left_out_by_setting_the_offset_after_it(
    dead: tuple[dict[Any, Path], dict[str, Any]], source: Path, tmp_path: Path
) -> None:
    shutil.copytree(dead[0]["BeginTask", 2], tmp_path / "store")
    with kvstore.open(tmp_path / "store") as opened:
        job = opened.job("j")
        job.pause()
        job.alter(offset="2.csv")
        job.resume()
        (task,) = job.run().tasks
        assert (task.number, task.first, task.last) == (2, "3.csv", "3.csv")
        assert job.show().state == "waiting"
