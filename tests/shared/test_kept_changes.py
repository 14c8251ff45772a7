"""What a machine has applied stays in its copy of a bucket; what was not committed is undone, whatever else happens."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from itertools import count, product
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.disk.files import Files
from kvstore.replica.read.reader import ReplicaReader
from kvstore.shared.check import report_of
from kvstore.shared.table import SharedTable
from logformat.catalog.edits import ChangelogImage
from logformat.rows.changes import Changes
from merge_engines.engine import MergeEngine
from tests.replica.objects import Objects
from tests.shared.hosts import SCHEMA, Host, created, read, upserts
from tests.support.examples import IS_LONG, slow

Operations = list[tuple[str, int, int]]
Rows = dict[int, int]
SUM = kvstore.Aggregate({"v": "sum"})


class Counting(Objects):
    """Objects that name those which were fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        if name.endswith((".range", ".snapshot")):
            self.fetched.append(name)
        return super().get(name, bytes_max=bytes_max)


class Killed(BaseException):
    """A process is killed."""


class Kill:
    """Kills the process at one of the steps that change files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        for name in ("write", "sync", "truncate", "rename", "remove", "sync_directory"):
            monkeypatch.setattr(Files, name, self._or_killed(getattr(Files, name)))

    def _or_killed(self, real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **named: object) -> object:
            if self.left is not None:
                if not self.left:
                    raise Killed
                self.left -= 1
            return real(*args, **named)

        return step


def changes_of(operations: Operations) -> Changes:
    return Changes.of([(kind, {"k": key, "v": value}) for kind, key, value in operations], SCHEMA)  # type: ignore[misc]


def applied(rows: Rows, operations: Operations, engine: str | MergeEngine) -> None:
    for kind, key, value in operations:
        if kind == "upsert":
            rows[key] = value + (rows.get(key, 0) if engine is SUM else 0)
        elif engine is not SUM:  # which ignores deletes
            rows.pop(key, None)


def replayed(table: SharedTable) -> Rows:
    """The rows that the changes of a bucket leave; each has the row before it right."""
    found = table.at(table.newest())
    ((bucket, (start, end)),) = found.bounds().items()
    reader = ReplicaReader(table.client, found.store_id, found.definition)
    rows: Rows = {}
    for part in reader.changes(found.changes(bucket, start, end), ["k", "v", "_change_type"]):
        for change in part.to_pylist():
            key, value, kind = change["k"], change["v"], change["_change_type"]
            if kind in ("update_preimage", "delete"):
                assert rows.pop(key) == value
            else:
                assert key not in rows
                rows[key] = value
    return rows


operations = st.lists(
    st.tuples(st.sampled_from(["upsert", "upsert", "delete"]), st.integers(0, 2), st.integers(0, 9)),
    min_size=1,
    max_size=6,
)
steps = st.lists(
    st.tuples(st.sampled_from(["write", "lose", "write", "lose", "erase"]), st.sampled_from([0, 0, 1]), operations),
    min_size=4,
)


@pytest.mark.parametrize(
    ("engine", "image"), [("last_row", "full"), ("last_row", "wal"), (SUM, "full")], ids=["rows", "wal", "sum"]
)
@given(steps=steps)
@slow(30)
def test_attempts_that_are_not_committed_leave_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    engine: str | MergeEngine,
    image: ChangelogImage,
    steps: list[tuple[str, int, Operations]],
) -> None:
    directory = tmp_path_factory.mktemp("hosts")
    table, rows = created(Objects(), engine=engine, changelog_image=image), Rows()
    hosts = [Host(table, directory / name) for name in ("one", "two")]
    for kind, number, asked in steps:
        if kind == "write":
            hosts[number].write(changes_of(asked))
            applied(rows, asked, engine)
        elif kind == "lose":
            base = table.newest()
            assert hosts[number].ranges(base, changes_of(asked), at_ms=base.committed_ms + 1) is not None
        else:
            shutil.rmtree(hosts[number].cache, ignore_errors=True)
    assert read(table, directory)[0] == rows
    if image == "full":
        assert replayed(table) == rows
    assert report_of(table)
    shutil.rmtree(directory)


def test_what_a_machine_has_written_is_not_fetched(tmp_path: Path) -> None:
    """Nor is it when an attempt was not committed: that is undone by the rows it has replaced."""
    objects = Counting()
    host = Host(created(objects, engine=SUM), tmp_path / "one")
    for value in (1, 2, 4):
        host.write(upserts(range(4), value))
        base = host.table.newest()
        host.ranges(base, upserts(range(2, 6), 1000), at_ms=base.committed_ms + 1)
    host.write(upserts(range(4), 8))
    assert objects.fetched == []
    assert read(host.table, tmp_path)[0] == dict.fromkeys(range(4), 15)


def test_two_attempts_of_one_base_on_one_machine(tmp_path: Path) -> None:
    """As when a task runs twice; either may be committed."""
    objects = Counting()
    table = created(objects, engine=SUM)
    host, other = Host(table, tmp_path / "one"), Host(table, tmp_path / "two")
    host.write(upserts([1], 1))
    for value, used in ((10, 0), (100, 1)):
        base = table.newest()
        attempts = [host.ranges(base, upserts([1], value), at_ms=base.committed_ms + 1) for _ in range(2)]
        assert attempts[used] is not None
        assert table.commit(base, attempts[used], None, base.committed_ms + 1) is not None
    host.write(upserts([1], 1000))
    other.write(upserts([1], 10_000))
    assert read(table, tmp_path)[0] == {1: 11_111}
    assert replayed(table) == {1: 11_111}


@pytest.mark.parametrize("lost", [False, True], ids=["committed", "lost"])
def test_a_process_that_is_killed_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lost: bool) -> None:
    kill = Kill(monkeypatch)
    for step in count():
        place, table = tmp_path / str(step), created(Objects(), engine=SUM)
        one, two = Host(table, place / "one"), Host(table, place / "two")
        for host in (one, two, one):
            host.write(upserts([1, 2], 1))
        if lost:
            base = table.newest()
            one.ranges(base, upserts([2, 3], 1000), at_ms=base.committed_ms + 1)
        two.write(upserts([1, 2], 1))
        kill.left = step
        try:
            one.write(upserts([1, 2], 10))
            killed = False
        except Killed:
            killed = True
        kill.left = None
        one.write(upserts([1, 2], 100))
        total = 104 if killed else 114
        assert read(table, place)[0] == replayed(table) == {1: total, 2: total}, step
        shutil.rmtree(place)
        if not killed:
            break
    assert step > 10


def test_a_copy_whose_parts_are_of_different_times(tmp_path: Path) -> None:
    """Parts that were put back from backups; some have what was not committed, at the offsets of what was."""
    objects = Objects()
    table = created(objects, engine=SUM)
    one, two = Host(table, tmp_path / "one"), Host(table, tmp_path / "two")
    moments: list[Path] = []

    def save() -> None:
        (record,) = one.cache.rglob("APPLIED")
        moments.append(Path(shutil.copytree(record.parent, tmp_path / f"moment-{len(moments)}")))

    def lose(value: int) -> None:
        base = table.newest()
        one.ranges(base, upserts([1], value), at_ms=base.committed_ms + 1)
        save()

    one.write(upserts([1], 1))
    save()
    lose(1000)
    lose(2000)
    one.write(upserts([1], 2))
    save()
    two.write(upserts([1], 4))
    lose(4000)
    one.write(upserts([1], 8))
    save()
    (record,) = one.cache.rglob("APPLIED")
    copy, held = record.parent, dict(objects.held)
    # In `make test` some, among which each part is of each moment.
    for parts in list(product(moments, repeat=3))[:: 1 if IS_LONG else 5]:
        objects.held.clear()
        objects.held.update(held)
        shutil.rmtree(copy)
        copy.mkdir()
        for part, moment in zip(("index", "log"), parts, strict=False):
            shutil.copytree(moment / part, copy / part)
        shutil.copy(parts[2] / "APPLIED", copy)
        one.write(upserts([1], 16))
        assert read(table, tmp_path)[0] == {1: 31}, [each.name for each in parts]
        assert replayed(table) == {1: 31}


@pytest.mark.parametrize("part", ["log", "index", "record"])
def test_a_copy_that_is_damaged_before_it_is_undone(tmp_path: Path, part: str) -> None:
    for seed in range(12):
        place, random = tmp_path / str(seed), Random(seed)
        table = created(Objects(), engine=SUM)
        host = Host(table, place / "one")
        for value in (1, 2):
            host.write(upserts(range(4), value))
        base = table.newest()
        host.ranges(base, upserts(range(2, 6), 1000), at_ms=base.committed_ms + 1)
        for path in _files(host.cache, part):
            data = bytearray(path.read_bytes())
            first = random.randrange(len(data))
            data[first : first + 64] = random.randbytes(len(data[first : first + 64]))
            path.write_bytes(data)
        host.write(upserts(range(4), 4))
        assert read(table, place)[0] == replayed(table) == dict.fromkeys(range(4), 7)


def _files(cache: Path, part: str) -> Iterable[Path]:
    names = {"log": "*.log", "index": "data.mdb", "record": "APPLIED"}
    found = list(cache.rglob(names[part]))
    assert found
    return found


def test_a_table_without_a_key(tmp_path: Path) -> None:
    table = created(Objects(), has_key=False)
    one, two = Host(table, tmp_path / "one"), Host(table, tmp_path / "two")
    for host, value in ((one, 1), (one, 2), (two, 3), (one, 4)):
        base = table.newest()
        one.ranges(base, upserts([9, 9], 9), at_ms=base.committed_ms + 1)
        host.write(upserts([value], value))
    found = table.at(table.newest())
    reader = ReplicaReader(table.client, found.store_id, found.definition)
    parts = list(reader.changes(found.changes(0, 0, 4), ["k"]))
    assert pa.concat_batches(parts)["k"].to_pylist() == [1, 2, 3, 4]
