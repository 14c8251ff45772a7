"""What the recorder runs in a process that it traces."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa

import kvstore
from kvstore.disk.files import Files
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from kvstore.options import JournalSync
from logformat.catalog.edits import AllocateWriter, SetConsumer
from logformat.ids import Offset, TableId
from tests.checkpoint import catalogs
from tests.crash import transfers
from tests.crash.workload import MARKS, STORE, TABLE, Script, recover, run
from tests.support.clocks import SetClock

EPOCH_SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
EPOCH_KEYS = range(8)


def epoch(number: int) -> kvstore.Changes:
    """Every key gets the epoch's number."""
    return kvstore.Changes.of([("upsert", {"k": k, "v": number}) for k in EPOCH_KEYS], EPOCH_SCHEMA)


def epochs(directory: Path, _: Script) -> int:
    """Commit some epochs to a table that is there, and each to its indexes before the next begins."""
    with kvstore.open(directory / STORE) as store:
        for number in range(3):
            store.table(TABLE).apply_epoch(epoch(number), "w", number)
            store.flush()
    return 0


def checkpoint(directory: Path, _: Script) -> int:
    """Make a checkpoint of a catalog that is there; controller and worker in one process."""
    catalogs.checkpoint(directory / STORE)
    return 0


def catalog_edits(sync: JournalSync, directory: Path, _: Script) -> int:
    """Add edits to a catalog, some of which need not be durable at once; a mark says up to which all must be."""
    files, clock = Files(), SetClock()
    journal = Journal(
        directory / STORE, files, clock, catalogs.STORE, sync=sync, wait_ms=2**31 - 1, leadership=CatalogLeadership()
    )
    controller = catalogs.controller(directory / STORE, journal, files, clock)
    marks = os.open(directory / MARKS, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    place = 0

    def go_on() -> None:
        nonlocal place
        place += 1
        edit = SetConsumer(table_id=TableId(1), name="c", offsets=[Offset(place)])
        journal.append(lambda _: edit, may_wait=place > 1)

    for _ in range(2):
        go_on()
        go_on()
        state = journal.append(lambda state: AllocateWriter(writer_id=state.next_writer_id))
        os.write(marks, b"%d\n" % state.txid)
        go_on()
        with journal.still() as state:
            os.write(marks, b"%d\n" % state.txid)
        go_on()
        os.write(marks, b"%d\n" % controller.checkpoint().txid)
    journal.close()
    return 0


JOBS: dict[str, Callable[[Path, Any], int]] = {
    "run": run,
    "recover": recover,
    "run transfers": transfers.run,
    "epochs": epochs,
    "checkpoint": checkpoint,
    **{sync: partial(catalog_edits, sync) for sync in get_args(JournalSync)},
}
