"""A store with a job and a directory of files for it, and the moments at which either may die."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa

import kvstore
from kvstore.checkpoint import recovery
from kvstore.checkpoint.controller import Controller
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.ingest.offsets import Taken
from kvstore.log.log import Log
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.edits import Payload
from tests.support.image_workers import Here
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])
BUCKETS = 3
BAD = "bad,1\n1,2,3\n,4\n"
"""Three rows that do not fit."""


def write(directory: Path, name: str, first: int, rows: int = 12, *, more: str = "") -> Path:
    """A file of rows; keys overlap with those of the file before, so that order matters."""
    path = directory / name
    path.write_text("k,v\n" + "".join(f"{first + n},{name} {n}\n" for n in range(rows)) + more)
    return path


def create(store: Path, source: Path, **options: Any) -> None:
    """A store with an empty table and a job."""
    with kvstore.open(store) as opened:
        opened.create_table("t", SCHEMA, "k", buckets=BUCKETS)
        given = {"max_files": 2, "max_filter_ratio": 0.5, **options}
        opened.create_job("j", source=source, format="csv", table="t", **given)


def outcome(store: Path) -> dict[str, Any]:
    """All that must be the same however often it died: of the job, of the table, and of what was left out."""
    with kvstore.open(store) as opened:
        job = opened.job("j")
        status = job.show()
        assert opened.check().ok
        return {
            "state": status.state,
            "offset": status.offset,
            "version": status.version,
            "statistics": msgspec.to_builtins(status.statistics),
            "history": [(each.number, each.first, each.last, each.counts, each.error) for each in status.history],
            "rejected": {path.name: path.read_text() for path in job.rejected(1).parent.glob("*")},
            "rows": opened.table("t").scan().read_all().sort_by("k").to_pylist(),
            "batches": {bucket: end for bucket, (_, end) in opened.table("t").offsets().items()},
        }


def run(store: Path) -> None:
    """Take all files that are there; none came late."""
    with kvstore.open(store) as opened:
        assert not opened.job("j").run().overlooked


Moment = Callable[[str], None]


@contextmanager
def moments(at: Moment) -> Iterator[None]:
    """While it lasts, be called after each step of a job: which edit was journaled, or that rows were appended."""
    mutex = threading.RLock()
    log_append, taken_add = Log.append, Taken.add

    def edited(append: Any, self: Journal, decide: Callable[[Any], Payload | Sequence[Payload]], **named: Any) -> Any:
        made: list[Payload] = []

        def noted(state: Any) -> Payload | Sequence[Payload]:
            decided = decide(state)
            made[:] = [decided] if isinstance(decided, Payload) else decided
            return decided

        with mutex:
            found = append(self, noted, **named)
            for each in made:
                at(type(each).__name__)
        return found

    def appended(self: Log, *arguments: Any, **named: Any) -> Any:
        with mutex:
            found = log_append(self, *arguments, **named)
            at("append")
        return found

    def taken(self: Taken, *arguments: Any) -> None:
        taken_add(self, *arguments)
        at("taken")

    with (
        mock.patch.object(Journal, "append", partialmethod(partial(edited, Journal.append))),
        mock.patch.object(Journal, "append_later", partialmethod(partial(edited, Journal.append_later))),
        mock.patch.object(Log, "append", appended),
        mock.patch.object(Taken, "add", taken),
    ):
        yield


def short_segments() -> Any:
    """While it lasts, each edit of a catalog is a segment of its own."""
    begin = Journal.__init__

    def short(self: Journal, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **{**named, "edits_per_segment": 1})

    return mock.patch.object(Journal, "__init__", short)


def from_image_only(store: Path) -> None:
    """All that was in the journal is in an image, and no longer there."""
    with short_segments():
        checkpoint(store)
        with kvstore.open(store) as opened:
            opened.new_writer_id()
        checkpoint(store)
    with kvstore.open(store, read_only=True) as opened:
        health = opened.health()
    assert (health.segments, health.edits_behind_image) == ([health.txid], 0)


def checkpoint(store: Path) -> None:
    """An image of the catalog, made in this process; of edits before it, those that two images have go."""
    files, clock = Files(), SystemClock()
    identity = store_file.decode((store / paths.STORE_FILE).read_bytes())
    journal = Journal(store, files, clock, identity.store_id, leadership=CatalogLeadership())
    controller = Controller(
        store,
        identity.store_id,
        journal,
        files,
        clock,
        start=lambda task: Here(task, files, clock),  # type: ignore[arg-type]
    )
    controller.checkpoint()
    journal.close()


def recover(store: Path) -> None:
    """The journal is lost; the catalog goes on from its image under a new leader, and fences all other copies."""
    checkpoint(store)
    identity = store_file.decode((store / paths.STORE_FILE).read_bytes())
    shutil.rmtree(store / paths.JOURNAL)
    recovery.recover(store, identity.store_id, Files(), SystemClock(), write=True)


def lose_indexes(store: Path) -> None:
    """What a failing disk took: every bucket is built from its log again."""
    for index in store.glob(f"tables/*/*/{paths.INDEX}"):
        shutil.rmtree(index)


def keys(store: kvstore.Store, table: str = "t") -> list[int]:
    return sorted(row["k"] for row in rows_of(store.table(table)))


def left_out(job: kvstore.Job, task: int = 1) -> list[tuple[str, int]]:
    lines = map(json.loads, job.rejected(task).read_text().splitlines())
    return [(line["file"], line["row"]) for line in lines]
