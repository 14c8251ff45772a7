"""One thing done to a small store while no file may grow beyond a size; then without that limit, and all is looked at.

The limit is RLIMIT_FSIZE, so a write is cut at that byte as by a full disk. It holds for the whole process: trials run
in processes of their own, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

import kvstore
from kvstore.errors import LogFailed, StoreError
from tests.crash.explore import on_disk
from tests.crash.places import materialised
from tests.crash.vfs import Contents
from tests.crash.workload import STORE, opened, squeezed
from tests.support.tables import rows_of

Kind = Literal["segment", "image", "snapshot", "index"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())])
SETTINGS = {"segment_bytes_max": 2000, "commit_idle_ms": 60_000, "commit_wait_ms": 60_000, "map_bytes": 1 << 28}
WRITER = 0
BATCHES = [[{"k": number, "s": f"{number} " * 40}] for number in range(7)]
"""The last of them makes the segment full."""
NEXT = [{"k": 3, "s": "next"}, {"k": 70, "s": "new"}]
MANY = [{"k": 100 + number, "s": f"{number:03} " * 100} for number in range(45)]
"""So many that the index grows by some pages."""


def apply(store: kvstore.Store, rows: list[dict[str, Any]], number: int) -> kvstore.AppendResult:
    """Send a batch, perhaps again."""
    changes = kvstore.Changes.of([("upsert", row) for row in rows], SCHEMA)
    return store.table("t").bucket(0).apply(changes, WRITER, number)


_ACTS: dict[Kind, Callable[[kvstore.Store], object]] = {
    "segment": lambda store: apply(store, NEXT, len(BATCHES)),
    "image": lambda store: store.checkpoint(),
    "snapshot": lambda store: store.table("t").snapshot(),
    "index": lambda store: store.flush(),
}
_FILES: dict[Kind, str] = {
    "segment": "store/tables/1/0/log/",
    "image": "store/meta/image/",
    "snapshot": "store/tables/1/0/snapshot",
    "index": "store/tables/1/0/index/data.mdb",
}


def built(work: Path) -> Contents:
    """A store to which something can be done."""
    with materialised({}, work) as directory:
        with opened(directory / STORE, SETTINGS) as store:
            store.create_table("t", SCHEMA, primary_key="k")
            for number, rows in enumerate(BATCHES):
                apply(store, rows, number)
        return on_disk(directory)


def limits_of(kind: Kind, contents: Contents, work: Path) -> range:
    """Every size at which something of what is written may be cut off."""
    with materialised(contents, work) as directory, opened(directory / STORE, SETTINGS) as store:
        _prepare(store, kind)
        before = _sizes(kind, on_disk(directory))
        _ACTS[kind](store)
        after = _sizes(kind, on_disk(directory))
    written = [size for name, size in after.items() if before.get(name) != size]
    assert written, f"nothing was written of {kind}"
    return range(min(before.values(), default=0) if kind == "index" else 0, max(written) + 2)


def try_limits(kind: Kind, contents: Contents, limits: Iterable[int], work: Path) -> tuple[int, list[str]]:
    """Trials, one for each limit: how often the store refused, and what is wrong."""
    refused, wrong = 0, []
    for limit in limits:
        try:
            with materialised(contents, work) as directory:
                refused += _try(kind, directory / STORE, limit)
        except Exception as error:  # whatever it is, the user would get it
            wrong.append(f"{kind}, {limit} bytes: {type(error).__name__}: {error}"[:500])
    return refused, wrong


def _try(kind: Kind, path: Path, limit: int) -> bool:
    refused: StoreError | None = None
    with opened(path, SETTINGS) as store:
        _prepare(store, kind)
        try:
            with squeezed(limit):
                _ACTS[kind](store)
        except StoreError as error:
            refused = error
        if refused is not None and not isinstance(refused, LogFailed):
            _ACTS[kind](store)  # only then: doing it again would restore what was acknowledged and is missing
    with opened(path, SETTINGS) as store:
        if isinstance(refused, LogFailed):
            _ACTS[kind](store)
        _look(store, kind)
    return refused is not None


def _prepare(store: kvstore.Store, kind: Kind) -> None:
    if kind == "index":
        apply(store, MANY, len(BATCHES))
    elif kind == "snapshot":
        store.flush()


def _look(store: kvstore.Store, kind: Kind) -> None:
    """All that was acknowledged is there, once, and nothing else."""
    expected = {row["k"]: row["s"] for rows in BATCHES for row in rows}
    sent = {"segment": NEXT, "index": MANY}.get(kind, [])
    expected |= {row["k"]: row["s"] for row in sent}
    found = {row["k"]: row["s"] for row in rows_of(store.table("t"))}
    assert found == expected, "other rows"
    again = apply(store, sent or BATCHES[-1], len(BATCHES) - (not sent))
    assert again.duplicated, "a batch was taken twice"
    report = store.check()
    assert report.ok, report.findings


def _sizes(kind: Kind, contents: Contents) -> dict[str, int]:
    return {name: len(data) for name, data in contents.items() if data is not None and name.startswith(_FILES[kind])}
