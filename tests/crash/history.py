"""What a table holds after each step of a script, by the model; and which steps a crash may have left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kvstore.testing.model import WINDOW, Model, Row
from tests.crash.syscalls import Call
from tests.crash.vfs import Disk
from tests.crash.workload import MARKS, SCHEMA, Script

CHANGES = pa.schema(
    [
        pa.field("_log_offset", pa.int64(), False),
        pa.field("_change_type", pa.string(), False),
        pa.field("_commit_version", pa.int64(), False),
        *(field.with_nullable(True) for field in SCHEMA),
    ]
)


@dataclass(frozen=True, slots=True)
class Window:
    """Steps that may be done: at least ``confirmed``, at most ``started``."""

    confirmed: int = 0
    started: int = 0

    def holds(self, done: float) -> bool:
        return self.confirmed <= done <= self.started


@dataclass(frozen=True, slots=True)
class Moment:
    """The table after so many steps. ``model`` is None while there is none; ``indexes`` are the names of its own."""

    done: int
    has_store: bool
    model: Model | None
    rows: pa.RecordBatch
    changes: int
    indexes: frozenset[str] = frozenset()


class History:
    """All moments of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.moments = [Moment(0, has_store=False, model=None, rows=batch_of({}), changes=0)]
        model: Model | None = None
        indexes: frozenset[str] = frozenset()
        for step in script.steps:
            if step.kind == "table":
                model = Model(("k",))
            elif step.kind == "batch":
                assert model is not None
                model = copy_of(model)
                model.apply(list(step.operations), step.writer, step.sequence)
            elif step.kind == "create_index":
                indexes |= {step.index}
            elif step.kind == "drop_index":
                indexes -= {step.index}
            before = self.moments[-1]
            rows = before.rows if model is None or model is before.model else batch_of(model.rows)
            count = 0 if model is None else len(model.log)
            moment = Moment(before.done + 1, has_store=True, model=model, rows=rows, changes=count, indexes=indexes)
            self.moments.append(moment)
        self.changes = changes_of([] if model is None else model.log)

    def ending_at(self, end: int) -> list[Moment]:
        """Moments at which the log ends at this offset."""
        return [moment for moment in self.moments if moment.model is not None and moment.model.end == end]


class Marks:
    """What was announced and confirmed so far, read off the calls on the file of marks."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.window = Window()

    def run(self, call: Call, disk: Disk) -> None:
        if call.kind != "write" or disk.file(call.fd) != MARKS:
            return
        word, number, *_ = call.data.split()
        step = int(number)
        if word == b"START":
            self.window = Window(self.window.confirmed, step + 1)
        elif word == b"ACK" and self._script.is_confirmed_by(step):
            self.window = Window(step + 1, self.window.started)


def copy_of(model: Model) -> Model:
    """A model that may be changed without changing the other."""
    sent = {writer: batches[-WINDOW - 1 :] for writer, batches in model.sent.items()}
    return Model(model.key, dict(model.rows), list(model.log), model.end, sent, model.rules)


def batch_of(rows: dict[tuple[Any, ...], Row]) -> pa.RecordBatch:
    """Rows as a scan returns them."""
    return pa.RecordBatch.from_pylist([rows[key] for key in sorted(rows)], SCHEMA)


def changes_of(log: list[tuple[int, str, Row, int]]) -> pa.RecordBatch:
    """Changes as a changelog returns them."""
    return pa.RecordBatch.from_pylist(
        [
            {"_log_offset": offset, "_change_type": kind, "_commit_version": version, **row}
            for offset, kind, row, version in log
        ],
        CHANGES,
    )
