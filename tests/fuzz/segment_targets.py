"""Targets about a log's file: a segment with any bytes is found damaged, or holds what was written."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from kvstore import Store
from kvstore.errors import CorruptBatch, CorruptData, NotAStore
from kvstore.log.recovery import find_end
from kvstore.log.segments import LogEnd, LogFiles, LogIdentity
from kvstore.repair.scan import scan_segment
from logformat import paths
from logformat.catalog import store_file
from logformat.ids import BucketId, Offset, Position, TableId
from logformat.log.batch import decode_batch, decode_header
from logformat.log.segment import HEAD_BYTES
from tests.crash.places import fill
from tests.crash.small_store import KEYS, OPTIONS, TABLE, build
from tests.crash.vfs import Contents
from tests.fuzz import golden, seal
from tests.fuzz.log_targets import SCHEMAS
from tests.support.clocks import SetClock

_TABLE, _BUCKET = TableId(9), BucketId(0)
_NAME = f"tables/{_TABLE}/{_BUCKET}/log/{0:020d}.log"


@cache
def _directory() -> Path:
    """A directory for as long as the process lives, or, where it is ended, as long as TMPDIR."""
    path = Path(tempfile.mkdtemp(prefix="kvstore-fuzz-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def _segment() -> tuple[LogIdentity, bytes, dict[Offset, bytes], LogEnd]:
    """Whose log it is, its bytes, its batches by offset, and where it ends."""
    files = golden.files("store")
    data = files[_NAME]
    batches, at, offset = {}, HEAD_BYTES, Offset(0)
    while at < len(data):
        header = decode_header(data[at:])
        batches[header.base_offset] = data[at : at + header.size]
        at, offset = at + header.size, header.next_offset
    identity = LogIdentity(store_file.decode(files[paths.STORE_FILE]).store_id, _TABLE, _BUCKET)
    return identity, data, batches, LogEnd(Offset(0), Position(at), offset)


def log_segment(data: bytes) -> None:
    """A log of one segment: its end, its batches and all that can be saved of it.

    Selector ``p``: bytes as they are; every batch that is found must be one that was written. ``s``: checksums are made
    right, so that anything may be found, but no error that is not named.
    """
    sealed = data[:1] == b"s"
    written = _resealed(data[1:]) if sealed else data[1:]
    identity, _, batches, end = _segment()
    log = _directory()
    paths.segment_file(log, Offset(0)).write_bytes(written)
    for place in scan_segment(log, Offset(0), identity).batches():
        assert sealed or batches[place.header.base_offset] == written[place.position : place.end]
    for synced in (None, end):
        with suppress(CorruptBatch):
            found = find_end(log, identity, synced)
            assert sealed or synced is None or found == end, "what was durable is there, or it is reported"
            for each in LogFiles(log, identity).batches(Offset(0), found.offset):
                assert sealed or batches[each.header.base_offset] == bytes(each.data)
                with suppress(CorruptBatch):
                    decode_batch(each.data, SCHEMAS[0])


def _resealed(data: bytes) -> bytes:
    whole = seal.last_word(data[:HEAD_BYTES])
    rest = data[HEAD_BYTES:]
    while rest:
        size = min(max(int.from_bytes(rest[8:12], "little") + 12, 64), len(rest))
        whole += seal.frame(rest[:size], stretch=False)
        rest = rest[size:]
    return whole


def log_segment_seeds() -> list[bytes]:
    """As it was written, cut between batches, and with its batches in another order."""
    _, data, batches, _ = _segment()
    head, some = data[:HEAD_BYTES], list(batches.values())
    orders = [some, some[:2], some[::-1], [some[0], some[0], *some[1:]], [some[0], *some[2:]]]
    return [kind + head + b"".join(order) for order in orders for kind in (b"p", b"s")]


@cache
def _small_store() -> tuple[Contents, str, list[list[dict[str, object]]]]:
    """A store without its index, its last segment, and rows after each batch of it: of these one must be found."""
    path = _directory() / "small"
    build(path)
    contents: Contents = {
        str(each.relative_to(path)): None if each.is_dir() else each.read_bytes() for each in sorted(path.rglob("*"))
    }
    bare = {name: data for name, data in contents.items() if "/index/" not in name and "snapshots/" not in name}
    last = max(name for name in bare if name.endswith(".log"))
    rows = []
    data = contents[last] or b""
    at = HEAD_BYTES
    while at <= len(data):
        rows.append(_rows({**bare, last: data[:at]}))
        at += decode_header(data[at:]).size if at < len(data) else 1
    return bare, last, rows


def _rows(contents: Contents) -> list[dict[str, object]]:
    path = _directory() / "opened"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    fill(path, contents)
    with Store(path, OPTIONS, clock=SetClock()) as store:
        table = store.table(TABLE)
        rows: list[dict[str, object]] = table.scan().read_all().to_pylist()
        assert table.count() == len(rows)
        assert table.lookup(KEYS).num_rows == len(KEYS)
        assert store.check().ok
    return rows


def rebuild(data: bytes) -> None:
    """An index is built of a log whose last segment is any bytes: with rows that were there once, or not at all."""
    bare, last, possible = _small_store()
    with suppress(CorruptData, NotAStore):
        assert _rows({**bare, last: data}) in possible, "rows that never were"


def rebuild_seeds() -> list[bytes]:
    """The segment as it was written."""
    bare, last, _ = _small_store()
    return [bare[last] or b""]
