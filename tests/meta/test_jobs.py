"""Ingestion jobs in the catalog's state: what the edits say, in whatever order they come."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from kvstore.meta.jobs import HISTORY_MAX, NEXT
from kvstore.meta.state import CatalogState
from logformat.catalog import edits
from logformat.catalog.edits import (
    AboutJob,
    AlterJob,
    AlterJobOptions,
    BeginTask,
    CreateJob,
    CreateTable,
    DropJob,
    DropTable,
    Edit,
    EndTask,
    FailTask,
    PauseJob,
    Payload,
    ReadTask,
    ResumeJob,
    TableOptions,
)
from logformat.catalog.jobs import JobOptions, JobState, JobStatistics, JobStatus, SourceFile, TaskCounts
from logformat.ids import Epoch, JobId, TableId, Txid
from tests.documents import FORMAT

TABLE = TableId(1)
ID = JobId(2)
ABOUT: dict[str, Any] = {"table_id": TABLE, "job_id": ID}
KINDS = get_args(AboutJob)


def after(state: CatalogState, payload: Payload, time_ms: int = 0) -> CatalogState:
    """With one more edit, as it is read back."""
    edit = Edit(txid=Txid(state.txid + 1), epoch=Epoch(0), time_ms=time_ms, payload=payload)
    return state.after(edits.decode(edits.encode(edit)))


def begun() -> CatalogState:
    """A catalog with one job, which is new."""
    table = CreateTable(table_id=TABLE, name="t", columns=[], primary_key=None, buckets=1, options=TableOptions())
    job = CreateJob(table_id=TABLE, name="j", source="/in", format="csv", options=JobOptions())
    return after(after(CatalogState(), table), job)


def job_of(state: CatalogState) -> JobStatus:
    return state.jobs[TABLE][ID]


def begin(task: int = 1, version: int = 0, path: str = "a") -> BeginTask:
    return BeginTask(**ABOUT, task=task, version=version, files=[SourceFile(path=path, size=3, tag="t")])


def end(task: int = 1, version: int = 0, offset: str = "a") -> EndTask:
    statistics = JobStatistics(succeeded_tasks=task, file_number=task)
    return EndTask(**ABOUT, task=task, version=version, offset=offset, statistics=statistics)


def fail(task: int = 1, resume_ms: int | None = 7) -> FailTask:
    return FailTask(**ABOUT, task=task, reason="f", statistics=JobStatistics(failed_tasks=1), resume_ms=resume_ms)


READ = ReadTask(**ABOUT, task=1, counts=TaskCounts(filtered_rows=3))
PAUSE, RESUME = PauseJob(**ABOUT, reason="p"), ResumeJob(**ABOUT)
ALTER = AlterJob(**ABOUT, version=1, offset="x", options=JobOptions(max_files=2))
OPTIONS = AlterJobOptions(**ABOUT, options=JobOptions(max_files=3))
TO_REACH: dict[JobState, list[Payload]] = {
    "waiting": [],
    "running": [begin()],
    "pausing": [begin(), PAUSE],
    "paused": [PAUSE],
}
ONE_OF_EACH = {BeginTask: begin(), ReadTask: READ, EndTask: end(), FailTask: fail(), PauseJob: PAUSE,
               ResumeJob: RESUME, AlterJob: ALTER, AlterJobOptions: OPTIONS}  # fmt: skip


def reached(state: JobState) -> CatalogState:
    found = begun()
    for payload in TO_REACH[state]:
        found = after(found, payload)
    assert job_of(found).state == state
    return found


def test_the_states_are_those_of_the_document() -> None:
    (table,) = FORMAT.tables("Ingestion jobs")
    kinds = {kind.__name__: kind for kind in ONE_OF_EACH}
    states = get_args(JobState)
    assert {
        (state, kinds[name]): following
        for name, *row in table
        for state, following in zip(states, row, strict=True)
        if following
    } == NEXT


@pytest.mark.parametrize("kind", ONE_OF_EACH, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", TO_REACH)
def test_an_edit_moves_a_job_as_the_table_says_or_not_at_all(state: JobState, kind: type[AboutJob]) -> None:
    before = reached(state)
    found = after(before, ONE_OF_EACH[kind])
    if (state, kind) in NEXT:
        assert job_of(found).state == NEXT[state, kind]
        assert (job_of(found).task is not None) == (job_of(found).state in ("running", "pausing"))
    else:
        assert job_of(found) == job_of(before)


def test_a_task_that_was_begun_before_an_offset_was_set_does_not_move_it() -> None:
    state = after(after(reached("pausing"), ALTER), end(offset="a"))
    assert (job_of(state).offset, job_of(state).version) == ("x", 1)
    assert job_of(state).statistics.succeeded_tasks == 1
    state = after(after(after(state, RESUME), begin(task=2, version=1, path="y")), end(task=2, version=1, offset="y"))
    assert job_of(state).offset == "y"


def test_a_task_goes_on_when_options_alone_are_set() -> None:
    state = after(after(reached("pausing"), OPTIONS), end(offset="a"))
    assert (job_of(state).offset, job_of(state).version, job_of(state).options.max_files) == ("a", 0, 3)


def test_an_older_alteration_does_nothing() -> None:
    state = after(reached("paused"), ALTER)
    older = AlterJob(**ABOUT, version=1, offset="older", options=JobOptions())
    assert job_of(after(state, older)) == job_of(state)


def test_a_pause_that_was_asked_for_outlasts_a_failure() -> None:
    assert job_of(after(reached("running"), fail())).resume_ms == 7
    assert job_of(after(reached("pausing"), fail())).resume_ms is None
    assert job_of(after(after(reached("running"), fail()), PAUSE)).resume_ms is None


def test_an_end_of_another_task_does_nothing() -> None:
    state = reached("running")
    for other in (end(task=2), fail(task=2), ReadTask(**ABOUT, task=2, counts=TaskCounts(loaded_rows=1))):
        assert job_of(after(state, other)) == job_of(state)


def test_the_last_tasks_are_remembered() -> None:
    state = begun()
    for task in range(1, HISTORY_MAX + 4):
        state = after(after(state, begin(task=task), 2 * task), end(task=task), 2 * task + 1)
    history = job_of(state).history
    assert [each.number for each in history] == list(range(4, HISTORY_MAX + 4))
    assert all((each.begun_ms, each.ended_ms) == (2 * each.number, 2 * each.number + 1) for each in history)


def test_a_job_goes_with_its_table_or_by_itself() -> None:
    assert after(begun(), DropTable(table_id=TABLE)).jobs == {}
    dropped = after(begun(), DropJob(**ABOUT))
    assert dropped.jobs == {}
    assert after(dropped, begin()).jobs == {}


@given(
    st.lists(st.sampled_from([*ONE_OF_EACH.values(), begin(task=2), end(task=2, version=1)]), max_size=15), st.data()
)
def test_replay_from_anywhere_is_the_same(history: list[Payload], data: st.DataObject) -> None:
    """Nothing is added up: edits that are in a state already leave every counter as it is."""
    state = begun()
    written = []
    for place, payload in enumerate(history):
        written.append(Edit(txid=Txid(state.txid + 1), epoch=Epoch(0), time_ms=place, payload=payload))
        state = state.after(written[-1])
    again = begun()
    for edit in [*written[: data.draw(st.integers(0, len(written)))], *written, *written]:
        again = again.after(edit)
    assert again.is_same(state)
    offsets = [edit.payload.offset for edit in written if isinstance(edit.payload, AlterJob)]
    if (
        offsets
        and job_of(state).version == 1
        and not any(isinstance(edit.payload, EndTask) and edit.payload.version == 1 for edit in written)
    ):
        assert job_of(state).offset == "x"
