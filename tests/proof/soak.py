"""What the processes of a soak do with one store; each may be killed or stopped at any moment, and is started again.

* Writers take one step after the other: an epoch over the buckets of ``shared``, one of ``sums``, a batch with a
  sequence to a table of their own. A diary says what was begun and what was acknowledged, with its offsets.
* Followers of a changelog keep all changes in a file, and go on after the last one that is in it.
* Errors that a process may get from the store are in ``PASSES``; every other one ends the soak.
"""

from __future__ import annotations

import ast
import faulthandler
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import kvstore
from kvstore.errors import NotAStore, SchemaMismatch, StoreClosed, StoreReplaced, Unavailable
from kvstore.store.store import open_reader
from logformat.rows.bucketing import buckets_of
from logformat.rows.keys import ROW, KeyCodec
from tests.proof.second.plants import planted
from tests.support.processes import Pipe

STORE, COPY, REPLICA, FAILURES = "store", "copy", "replica", "failures"
SETTINGS: dict[str, Any] = {
    "segment_bytes_max": 1 << 16,
    "log_bytes_max": 1 << 18,
    "edits_per_journal": 200,
    "map_bytes": 1 << 28,
}
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
WRITERS = 3
BUCKETS = 3
KEYS = 12
"""So many each writer has in ``shared``; all of them get the number of an epoch."""
SUMS = range(5)
OWN_KEYS = 200
FOLLOWED = ("shared", "own 0")
COLUMNS_MAX = 8
PASSES = Unavailable, StoreReplaced
"""Another process has what is needed, or a copy was made again."""
Row = dict[str, Any]
Operation = tuple[str, Row]

_CODES = KeyCodec([]).encode_prefix([pa.array(range(1000 * WRITERS), pa.int64())])
BUCKET_OF: list[int] = buckets_of(_CODES, BUCKETS, len(ROW)).tolist()


class Stage:
    """Where a process works, and whether it is asked to end.

    Attributes:
        name: Of the process, also after it was started again.
    """

    def __init__(self, pipe: Pipe, work: Path, name: str) -> None:
        self._pipe, self.work, self.name = pipe, work, name
        self._beat = work / f"{name}.beat"

    def beat(self) -> None:
        """It is going on."""
        self._beat.touch()

    def is_over(self, seconds: float = 0.0) -> bool:
        """Whether it is asked to end, now or within so long."""
        self.beat()
        return self._pipe.poll(seconds)

    def until_let(self, do: Callable[[], Any]) -> Any:
        """Do it again while another process has what it needs."""
        while True:
            try:
                return do()
            except (*PASSES, SchemaMismatch):
                self.beat()
                self._pipe.poll(0.02)


class Diary:
    """Lines that outlive their process; one that it did not finish is removed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        whole = path.read_bytes()
        whole = whole[: whole.rfind(b"\n") + 1]
        os.ftruncate(self._file, len(whole))
        self.lines = whole.decode().splitlines()

    def write(self, *lines: str) -> None:
        os.write(self._file, "".join(f"{line}\n" for line in lines).encode())


def table_of(writer: int, step: int) -> tuple[str, int]:
    """What a step of a writer is written to, and its number there."""
    return ("shared", "sums", f"own {writer}")[step % 3], step // 3


def operations_of(writer: int, step: int) -> list[Operation]:
    """What a step writes."""
    table, number = table_of(writer, step)
    random = Random(f"{writer} {step}")
    if table == "shared":
        return [("upsert", {"k": 1000 * writer + key, "v": number}) for key in range(KEYS)]
    if table == "sums":
        return [("upsert", {"k": key, "v": number + 1}) for key in random.sample(SUMS, 2)]
    keys = random.sample(range(OWN_KEYS), random.randrange(20))
    return [("delete", {"k": key}) if random.random() < 0.2 else ("upsert", {"k": key, "v": number}) for key in keys]


def create(path: Path) -> None:
    """The tables, and consumers that keep what followers have yet to read."""
    with kvstore.open(path, **SETTINGS) as store:
        store.create_table("shared", SCHEMA, "k", buckets=BUCKETS)
        store.create_table("sums", SCHEMA, "k", buckets=2, merge_engine=kvstore.Aggregate({"v": "sum"}))
        for writer in range(WRITERS):
            store.create_table(f"own {writer}", SCHEMA, "k")
        for name in FOLLOWED:
            store.consumer(name).commit(name, dict.fromkeys(store.table(name).offsets(), 0))


def write(stage: Stage, writer: int) -> None:
    """One of the writers."""
    diary = Diary(stage.work / f"{stage.name}.diary")
    begun, done = steps_of(diary.lines)
    with kvstore.open(stage.work / STORE, **SETTINGS) as store:
        for step in range(max(0, len(done) - 6), len(done)):
            again = stage.until_let(lambda step=step: _sent(store, writer, step))
            assert again.duplicated, f"step {step} was acknowledged, and is not known: {again}"
            assert offsets_of(again) == done[step], f"step {step} again: {again}, not {done[step]}"
        step = len(done)
        # What a writer that was killed had begun may be there: it is done again even if the end has come.
        while step < begun or not stage.is_over(0.01):
            if step == begun:
                diary.write(f"begin {step}")
            answer = stage.until_let(lambda step=step: _sent(store, writer, step))
            diary.write(f"done {step} {offsets_of(answer)}")
            step += 1
            begun = max(begun, step)


def _sent(store: kvstore.Store, writer: int, step: int) -> kvstore.WriteResult | kvstore.AppendResult:
    name, number = table_of(writer, step)
    table = store.table(name)
    more = table.schema.names[len(SCHEMA) :]
    rows = [
        (word, {**row, **dict.fromkeys(more, number)} if word == "upsert" else row)
        for word, row in operations_of(writer, step)
    ]
    changes = kvstore.Changes.of(rows, table.schema)  # type: ignore[arg-type]
    if name.startswith("own"):
        return table.bucket(0).apply(changes, 500, number)
    return table.apply_epoch(changes, f"writer {writer}", number)


def offsets_of(answer: kvstore.WriteResult | kvstore.AppendResult) -> list[tuple[int, int]]:
    results = (
        [answer] if isinstance(answer, kvstore.AppendResult) else [each for _, each in sorted(answer.by_bucket.items())]
    )
    return [(each.first_offset, each.last_offset) for each in results]


def steps_of(lines: list[str]) -> tuple[int, list[list[tuple[int, int]]]]:
    """How many steps a diary says were begun, and the offsets of those that were acknowledged."""
    begun, done = 0, []
    for line in lines:
        word, number, *offsets = line.split(" ", 2)
        if word == "begin":
            begun = int(number) + 1
        else:
            assert int(number) == len(done)
            done.append(ast.literal_eval(offsets[0]))
    return begun, done


class Followed:
    """Changes of a table that a follower keeps in a file."""

    def __init__(self, work: Path, name: str) -> None:
        self._name, self._diary = name, Diary(work / f"changes of {name}")
        self.changes = [tuple(json.loads(line)) for line in self._diary.lines]
        self.next = dict.fromkeys(range(BUCKETS if name == "shared" else 1), 0)
        for bucket, offset, *_ in self.changes:
            self.next[bucket] = offset + 1

    def take(self, store: kvstore.Store, *, waits: bool) -> Iterator[None]:
        """Take what there is, or also what comes, batch by batch."""
        for batch in store.table(self._name).changelog(dict(self.next), columns=_COLUMNS, follow=waits):
            taken = []
            for row in batch.to_pylist():
                change = tuple(row[name] for name in _COLUMNS)
                bucket, offset = change[:2]
                assert offset >= self.next[bucket], f"{self._name}: {change} after {self.next}"
                self.next[bucket] = offset + 1
                taken.append(change)
            self._diary.write(*map(json.dumps, taken))
            self.changes += taken
            yield


def follow_changes(stage: Stage, name: str, *, waits: bool) -> None:
    """Keep the changes of a table in a file: as they come, or what there is from time to time."""
    followed = Followed(stage.work, name)
    while not stage.is_over(0.05):
        with suppress(*PASSES), open_reader(stage.work / STORE) as store:
            while not stage.is_over(0.05):
                for _ in followed.take(store, waits=waits):
                    stage.beat()
                    if Random().random() < 0.05:
                        store.consumer(name).commit(name, followed.next)


_COLUMNS = ["_bucket", "_log_offset", "_change_type", "k", "v"]


def scan(stage: Stage, directory: str) -> None:
    """Read all of ``shared``, again and again: no bucket has a part of an epoch, and none goes back."""
    seen: dict[tuple[int, int], int] = {}
    while not stage.is_over(0.1):
        try:
            with kvstore.open(stage.work / directory, read_only=True) as store:
                while not stage.is_over(0.05):
                    if "shared" in store.list_tables():
                        _verify(store.table("shared").scan().read_all().to_pylist(), seen)
        except NotAStore:
            assert directory == COPY  # it is being made
        except (*PASSES, StoreClosed):
            pass


def _verify(rows: list[Row], seen: dict[tuple[int, int], int]) -> None:
    found: dict[tuple[int, int], set[int]] = {}
    for row in rows:
        found.setdefault((row["k"] // 1000, BUCKET_OF[row["k"]]), set()).add(row["v"])
        assert {row[name] for name in row if name not in ("k", "v")} <= {None, row["v"]}, row
    for place, numbers in found.items():
        assert len(numbers) == 1, f"a part of an epoch: writer and bucket {place} have {numbers}"
        (number,) = numbers
        assert number >= seen.get(place, 0), f"writer and bucket {place} go back to {number} from {seen[place]}"
        seen[place] = number


def checkpoint(stage: Stage) -> None:
    """Make checkpoints, with edits between them; report the status of the catalog."""
    while not stage.is_over():
        with suppress(*PASSES), kvstore.open(stage.work / STORE, **SETTINGS) as store:
            while not stage.is_over(1.0):
                stage.until_let(store.new_writer_id)
                stage.until_let(store.checkpoint)
                store.health()


def change_schemas(stage: Stage) -> None:
    """Add columns to ``shared``; have a table that comes and goes."""
    while not stage.is_over():
        with suppress(*PASSES), kvstore.open(stage.work / STORE, **SETTINGS) as store:
            while not stage.is_over(0.7):
                names = store.table("shared").schema.names
                if len(names) < COLUMNS_MAX and Random(f"{os.getpid()} {len(names)}").random() < 0.2:
                    store.add_columns("shared", [pa.field(f"c{len(names)}", pa.int64())])
                if "passing" in store.list_tables():
                    store.drop_table("passing")
                else:
                    passing = store.create_table("passing", SCHEMA, "k", buckets=2)
                    passing.upsert([{"k": key, "v": key} for key in range(50)])
                    passing.snapshot()


def ship(stage: Stage) -> None:
    """Ship to all replicas."""
    while not stage.is_over():
        with suppress(*PASSES), kvstore.open(stage.work / STORE, **SETTINGS) as store, store.replicate(0.5) as shipping:
            while not stage.is_over(0.5):
                for error in shipping.failures.values():
                    if not isinstance(error, PASSES):
                        raise error


def follow_replica(stage: Stage) -> None:
    """Keep a copy."""
    while not stage.is_over():
        with suppress(*PASSES), kvstore.follow(f"file://{stage.work / REPLICA}", stage.work / COPY) as follower:
            while not stage.is_over(0.3):
                follower.pull()


ACTORS: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    **{f"writer {number}": (write, {"writer": number}) for number in range(WRITERS)},
    "follower of shared": (follow_changes, {"name": "shared", "waits": False}),
    "follower of own 0": (follow_changes, {"name": "own 0", "waits": True}),
    "scanner": (scan, {"directory": STORE}),
    "scanner of the copy": (scan, {"directory": COPY}),
    "checkpoints": (checkpoint, {}),
    "schemas": (change_schemas, {}),
    "shipping": (ship, {}),
    "copy": (follow_replica, {}),
}


def act(pipe: Pipe, work: Path, name: str, environment: dict[str, str], bug: str | None) -> None:
    """The main function of each process; with a bug, for a test of the soak."""
    os.environ.update(environment)
    with open(work / f"{name}.stacks", "a") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        function, arguments = ACTORS[name]
        try:
            with planted(bug):
                function(Stage(pipe, work, name), **arguments)
        except BaseException:
            text = f"--- {name}\n{traceback.format_exc()}"
            with open(work / FAILURES, "a") as failures:
                failures.write(text)
            os._exit(1)


def is_endless(name: str) -> bool:
    """Whether a process can't be asked to end: it waits for changes."""
    return bool(ACTORS[name][1].get("waits"))


def failures(work: Path) -> str:
    """What processes failed with."""
    path = work / FAILURES
    return path.read_text() if path.exists() else ""
