"""Scripts that are made from a seed: of one table of one bucket, and of all that a store is used for.

Most states are of the small scripts: each is opened many thousand times, and the less is in it, the faster that goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from kvstore.options import Durability
from kvstore.testing.model import WINDOW, Operation
from tests.crash.history import OF_EPOCHS, OF_NAMED, Table, World, after, bucket_of, file_rows
from tests.crash.workload import INDEXES, SCHEMA, SETTINGS, TABLE, Script, Step, StepKind

KEYS = range(14)
SIZES, SIZES_OF_MANY = (1, 2, 2, 4, 9), (0, 1, 2, 3, 6)
"""Numbers of operations of a batch."""
FILES = 4
"""How many files the job has."""
OTHER = "d"
"""A table that comes and goes."""
SETTINGS_OF_MANY = {**SETTINGS, "segment_bytes_max": 1800, "edits_per_journal": 8}
FIRST = (Step("open"), Step("create", number=2), Step("add replica"), Step("create job"))
"""Steps that every script of a whole store begins with."""
_OFTEN: tuple[StepKind, ...] = (
    *("batch", "batch", "batch", "epoch", "epoch", "named", "load", "consumer", "ship", "ship"),
    *("snapshot", "checkpoint", "reopen", "flush", "column", "create", "drop"),
)


def script(
    seed: int,
    batches: int,
    *,
    durability: Durability = "sync",
    numbered: bool = False,
    retries: int = 0,
    retention_ms: int | None = None,
    snapshots: bool = False,
    indexes: bool = False,
    **settings: int,
) -> Script:
    """A script of about so many batches, with everything in it that a table is used for.

    Args:
        numbered: Every batch has a writer, so that it may be sent again.
        snapshots: Some are taken.
        indexes: Secondary indexes come and go.
    """
    random = Random(seed)
    steps = [Step("open"), Step("create", number=1)]
    created: set[str] = set()
    sent: dict[int, list[Step]] = {}
    last: dict[int, int] = {}
    for number in range(batches):
        special = number % 6
        if special == 2 and sent:
            steps.append(random.choice(random.choice(list(sent.values()))[-WINDOW:]))
        elif special == 4:
            steps.append(Step(random.choice(("flush", "idle", "reopen"))))
        if indexes and number % 3 != 1:
            index = random.choice(list(INDEXES))
            steps.append(Step("drop index" if index in created else "create index", index=index))
            created ^= {index}
        if snapshots and number % 3 == 2:
            steps.append(Step("snapshot"))
        unnumbered = not numbered and random.random() < 0.15
        writer = -1 if unnumbered else random.choice((0, 0, 1, 5))
        sequence = -1 if unnumbered else last.get(writer, -1) + 1
        made = () if number % 5 == 3 else operations(random, number)
        step = Step("batch", operations=made, writer=writer, number=sequence)
        steps.append(step)
        if not unnumbered:
            last[writer] = sequence
            sent.setdefault(writer, []).append(step)
    end = Step("batch", operations=operations(random, batches), writer=9, number=0)
    return Script((*steps, Step("flush"), end, Step("reopen")), durability, SETTINGS | settings, retries, retention_ms)


def operations(
    random: Random,
    number: int,
    keys: Sequence[int] = KEYS,
    sizes: Sequence[int] = SIZES,
    columns: Sequence[str] = (),
) -> tuple[Operation, ...]:
    """The nth batch, with a number in each of the columns that were added."""
    made: list[Operation] = []
    for _ in range(random.choice(sizes)):
        key = random.choice(keys)
        if random.random() < 0.3:
            made.append(("delete", {"k": key}))
        else:
            text = "x" * (1200 if random.random() < 0.08 else random.randrange(9))
            made.append(("upsert", {"k": key, "v": number, "s": text, **dict.fromkeys(columns, number)}))
    return tuple(made)


def whole_script(seed: int, length: int, source: Path, *, retries: int = 0) -> Script:
    """A script of about so many steps, with everything in it that a store is used for.

    The first steps are always there; then each kind comes about as often as it stands in the list.
    """
    author = _Author(seed)
    kinds: list[StepKind] = []
    while len(author.steps) < length:
        if not kinds:
            kinds = author.random.sample(_OFTEN, len(_OFTEN))
        author.choose(kinds.pop())
    author.choose("ship")
    return Script(tuple(author.steps), settings=SETTINGS_OF_MANY, retries=retries, source=str(source))


def brief_script(source: Path, kinds: Sequence[StepKind], *, retries: int = 0) -> Script:
    """A script of these steps, after the first ones."""
    author = _Author(0)
    for kind in kinds:
        author.choose(kind)
    return Script(tuple(author.steps), settings=SETTINGS_OF_MANY, retries=retries, source=str(source))


def fill_source(directory: Path) -> Path:
    """Write the job's files into a new directory."""
    directory.mkdir()
    for number in range(FILES):
        lines = [f"{row['k']},{row['v']},{row['s']}\n" for _, row in file_rows(number)]
        (directory / f"{number:03}.csv").write_text("k,v,s\n" + "".join(lines))
    return directory


class _Author:
    """Makes steps one after the other, of what there is by then."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.steps: list[Step] = []
        self._world = World()
        self._columns = 0
        for step in FIRST:
            self._add(step)

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self._world = after(self._world, step)

    def choose(self, kind: StepKind) -> None:
        """Add a step of a kind, if it can be done now."""
        random, tables = self.random, self._world.by_name
        if kind in ("create", "drop", "column"):
            if (kind == "create") == (OTHER not in tables):
                self._columns += kind == "column"
                self._add(Step(kind, OTHER, number=1 if kind == "create" else self._columns))
        elif kind in ("batch", "named", "epoch"):
            name = random.choice(list(tables)) if kind == "batch" else TABLE
            self._add_batch(kind, name, tables[name])
        elif kind == "load":
            if self._world.loaded < FILES:
                self._add(Step(kind, number=self._world.loaded))
        elif kind == "consumer":
            self._add(Step(kind, offsets=tables[TABLE].ends))
        else:
            self._add(Step(kind, random.choice(list(tables)) if kind == "snapshot" else TABLE))

    def _add_batch(self, kind: StepKind, name: str, table: Table) -> None:
        random, buckets = self.random, len(table.models)
        bucket = random.randrange(buckets)
        writer = {"named": OF_NAMED, "epoch": OF_EPOCHS}.get(kind) or random.choice((0, 0, 1))
        keys = [key for key in KEYS if kind == "epoch" or bucket_of(key, buckets) == bucket]
        columns = table.schema.names[len(SCHEMA) :]
        made = operations(random, len(self.steps), keys, SIZES_OF_MANY, columns)
        step = Step(kind, name, bucket, made, writer, table.models[bucket].next_sequence(writer))
        self._add(step)
        if random.random() < 0.3:  # sent again, perhaps after others
            self._add(random.choice(self._sent_like(step)[-WINDOW:]))

    def _sent_like(self, step: Step) -> list[Step]:
        """Batches that may be sent again after a step: those of its writer, each once, oldest first."""
        if step.table == OTHER:
            return [step]  # it may have been another table before
        alike = {
            each.number: each
            for each in self.steps
            if (each.kind, each.table, each.writer) == (step.kind, step.table, step.writer)
            and (step.kind == "epoch" or each.bucket == step.bucket)
        }
        return [alike[number] for number in sorted(alike)]
