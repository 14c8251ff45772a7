"""Requests that wait at a bucket are applied together, with the same result as one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.bucket import write_path as apply
from kvstore.errors import InvalidRequest, StoreError
from kvstore.kernel import library
from kvstore.options import StoreOptions
from kvstore.request import encoded
from kvstore.store.store import Store
from logformat.log.batch import decode_batch
from tests.support.clocks import SetClock
from tests.support.committers import committer_of
from tests.support.examples import slow
from tests.support.tables import changes_of, rows_of
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.string(), False), pa.field("n", pa.int32()), pa.field("s", pa.string())])
KEYS = ["", "a", "a\x00", "b", "long" * 20]
RECORDS_MAX = 5
"""Limit in the tests in which batches are refused for the size of their changes."""

ROWS = st.builds(
    lambda k, n, s: {"k": k, "n": n, "s": s},
    st.sampled_from(KEYS),
    st.none() | st.integers(0, 9),
    st.none() | st.text("xyz", max_size=3),
)
BATCHES = st.lists(st.tuples(st.sampled_from(["upsert", "upsert", "delete"]), ROWS), max_size=4)
NUMBERS = st.just((-1, -1, 0)) | st.tuples(st.integers(1, 2), st.integers(0, 3), st.sampled_from([0, 0, 0, 1]))
OVERWRITES = st.sampled_from([False, False, False, True])
PARTIAL = st.sampled_from([None, None, None, None, ["k", "s"]])
REQUESTS = st.lists(st.tuples(BATCHES, NUMBERS, OVERWRITES, PARTIAL), min_size=2, max_size=12)


@contextmanager
def table_of(path: Path, **options: Any) -> Iterator[kvstore.Table]:
    with Store(path, StoreOptions(), clock=SetClock()) as store:
        yield store.create_table("t", SCHEMA, "k", **options)
        assert store.check()


def submit(table: kvstore.Table, request: tuple[Any, ...]) -> Future[Any]:
    batch, numbers, overwrite, columns = request
    changes = kvstore.Changes.of(batch, SCHEMA)
    if columns:
        changes = kvstore.Changes(changes.rows.select(columns), changes.is_delete)
    try:
        return table.bucket(0).submit(changes, *numbers, columns=columns, overwrite=overwrite)
    except StoreError as error:
        refused: Future[Any] = Future()
        refused.set_exception(error)
        return refused


def outcome(answer: Future[Any]) -> Any:
    error = answer.exception(timeout=600)
    # A refusal only reports where the batch would have begun, which may be the beginning of its group.
    return answer.result() if error is None else type(error)


def one_by_one(table: kvstore.Table, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [outcome(submit(table, request)) for request in requests]


def together(table: kvstore.Table, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
    """All but the first as one group: the first keeps the committer busy."""
    committer = committer_of(table)
    with committer.turn.taken():
        answers = [submit(table, requests[0])]
        wait_until(lambda: answers[0].done() or (committer.waiting, committer.queued) == (1, 0))
        answers += [submit(table, request) for request in requests[1:]]
    return list(map(outcome, answers))


def written(table: kvstore.Table) -> Any:
    """Everything that must be equal: every batch of the log, and the whole index."""
    handle = table.bucket(0).handle
    with handle.snapshot() as view:
        state, writers = view.state(), view.writers()
        rows = [(keys.to_list(), values.to_list()) for keys, values in view.rows(1000)]
    batches = []
    for found in handle.log.batches(0, state.applied_offset):
        batch = decode_batch(found.data, SCHEMA)
        batch.durable_end = 0  # depends on the sync before
        batch.size = batch.crc = 0  # Arrow pads slices of longer data differently
        batches.append(batch)
    return state._replace(synced_base=0, synced_position=0, synced_offset=0), writers, rows, batches


@contextmanager
def records_at_most(limit: int) -> Iterator[None]:
    """Refuse batches with more records."""
    encode = apply.encode_parts

    def limited(batch: Any, **options: Any) -> Any:
        if batch.record_count > limit:
            raise InvalidRequest("Too many records.", records=batch.record_count)
        return encode(batch, **options)

    with mock.patch.object(apply, "encode_parts", limited), library.switched_off() if limit < 1000 else nullcontext():
        yield


@slow(60)
@given(
    requests=REQUESTS,
    options=st.sampled_from(
        [
            {},
            {},
            {"changelog_image": "wal"},
            {"delete_behavior": "ignore"},
            {"delete_behavior": "disable"},
            {"merge_engine": "first_row"},
            {"merge_engine": "first_row", "changelog_image": "wal"},
            {"merge_engine": kvstore.Aggregate({"n": "sum", "s": "last_value"})},
            {"skip_identical_updates": True},
        ]
    ),
    limits=st.sampled_from([(-1, -1, 1000), (-1, -1, RECORDS_MAX), (32, -1, 1000), (-1, 32, 1000), (5, 5, 1000)]),
)
def test_a_group_equals_its_requests_one_by_one(
    requests: list[tuple[Any, ...]],
    options: dict[str, Any],
    limits: tuple[int, int, int],
    tmp_path_factory: Any,
) -> None:
    """Whether they are small writes, or go the long way, where batches of many records may be refused."""
    path = tmp_path_factory.mktemp("stores")
    *small_rows_max, records_max = limits
    with records_at_most(records_max), table_of(path / "a", **options) as a, table_of(path / "b", **options) as b:
        with mock.patch.object(encoded, "ROWS_MAX", small_rows_max[0]):
            answers = together(a, requests)
        with mock.patch.object(encoded, "ROWS_MAX", small_rows_max[1]):
            assert answers == one_by_one(b, requests)
        assert written(a) == written(b)


class TestAGroup:
    """Of requests that are no small writes."""

    @pytest.fixture
    def table(self, tmp_path: Path) -> Iterator[kvstore.Table]:
        with mock.patch.object(encoded, "ROWS_MAX", -1), table_of(tmp_path / "store") as table:
            yield table

    def upsert(self, key: str, *numbers: int) -> tuple[Any, ...]:
        return [("upsert", {"k": key, "n": 1, "s": None})], numbers or (-1, -1, 0), False, None

    def test_requests_take_effect_in_order(self, table: kvstore.Table) -> None:
        answers = together(table, [self.upsert(key) for key in "abcda"])
        assert [answer.first_offset for answer in answers] == [0, 1, 2, 3, 4]
        assert answers[-1].last_offset == 5
        assert [batch.record_count for batch in written(table)[-1]] == [1, 1, 1, 1, 2]

    def test_a_group_has_several_batches_of_one_writer(self, table: kvstore.Table) -> None:
        answers = together(table, [self.upsert("a"), *(self.upsert("b", 7, n, 0) for n in range(8))])
        assert not any(answer.duplicated for answer in answers)
        assert table.bucket(0).last_sequence(7) == 7

    def test_a_duplicate_in_a_group_gets_the_answer_of_its_original(self, table: kvstore.Table) -> None:
        _, first, again, second = together(
            table, [self.upsert("a"), self.upsert("b", 7, 0, 0), self.upsert("b", 7, 0, 0), self.upsert("b", 7, 1, 0)]
        )
        assert again == replace(first, duplicated=True)
        assert second.first_offset == first.last_offset + 1

    def test_a_refused_request_does_not_affect_the_others(self, table: kvstore.Table) -> None:
        many = [("upsert", {"k": str(n), "n": n, "s": None}) for n in range(10)], (-1, -1, 0), False, None
        with records_at_most(RECORDS_MAX):
            answers = together(table, [self.upsert("a"), self.upsert("b"), many, self.upsert("c")])
        assert answers[2] is InvalidRequest
        assert [row["k"] for row in rows_of(table)] == ["a", "b", "c"]
        assert table.count() == 3


def test_overwriting_rows_are_logged_alike_in_a_group(tmp_path: Path) -> None:
    """With any engine: without preimages the table does not look whether a row existed."""
    with table_of(tmp_path / "store", merge_engine="first_row", changelog_image="wal") as table:
        row = {"k": "a", "n": 1, "s": None}
        together(table, [([(word, row)], (-1, -1, 0), True, None) for word in ("upsert", "upsert", "delete", "upsert")])
        kinds = [change[1] for change in changes_of(table)]
    assert kinds == ["update_postimage", "update_postimage", "delete", "update_postimage"]
