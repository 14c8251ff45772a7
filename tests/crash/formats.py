"""All that is stored with a checksum, and what reads it: ``python -m tests.crash.formats INPUT HOWS STEP START``.

Run so, it does each STEP-th damage of a kind to all of it from START on, each alone, and ends with how many on the last
line: each must be found, or be of a hint and make it no worse than shorter. What is tried stands in the file INPUT
before, for one that ends the process, or takes longer than ten seconds.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

from kvstore.errors import CorruptData
from kvstore.replica.contents import verify_parts
from logformat import paths
from logformat.catalog import edits, following_file, store_file
from logformat.catalog.image import Reader
from logformat.log import entries_record, segment, sparse_index
from logformat.log.batch import decode_header, verify
from logformat.log.entries_record import EntriesRecord
from logformat.log.snapshot_manifest import decode_manifest
from logformat.log.writer_entry import decode_entry, decode_snapshot
from logformat.replica import follower_status, manifest as replica_manifest
from logformat.replica.object_file import ObjectName, decode_object, parse_name
from tests.fuzz import catalog_targets, golden, log_targets, seal
from tests.fuzz.runner import SECONDS_MAX, Held

STORE = store_file.decode(golden.files("store")[paths.STORE_FILE]).store_id


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes that were stored.

    Attributes:
        read: What reads them; raises CorruptData.
        is_hint: Damaged it may be read as the beginning of what it was, for nothing is believed of it.
    """

    kind: str
    name: str
    data: bytes
    read: Callable[[bytes], Any]
    is_hint: bool = False


def every() -> list[Stored]:
    """Of the golden store and its replica, and what else fuzzing begins with."""
    found: list[Stored] = []
    for archive in ("store", "replica"):
        for name, data in sorted(golden.files(archive).items()):
            found += _stored(name, data)
    for number, (_, *data) in enumerate(log_targets.batches(times=100)):
        found.append(Stored("segment", f"batch {number}", bytes(data), _batch))
    for line in catalog_targets.edits_seeds()[4].split(b"\n"):
        op, _, payload = line.partition(b" ")
        found.append(Stored("journal", f"edit {op.decode()}", seal.edit(int(op[:-2]), 1, payload), edits.decode))
    found.append(Stored("image", "filled", seal.image(catalog_targets.image_seeds()[-1][1:].split(b"\n")), _image))
    readers = {b"F": ("FOLLOWING", following_file.decode), b"f": ("follower", follower_status.decode)}
    for each in catalog_targets.small_files_seeds():
        if each[:1] in readers:
            name, read = readers[each[:1]]
            found.append(Stored(name, name, seal.line(each[1:]), read))
    for each in log_targets.writers_seeds()[:2]:
        found.append(
            Stored("index", "entry of a writer", each[1:], lambda data: decode_entry(log_targets.WRITER, data))
        )
    record = entries_record.encode(3, EntriesRecord(103, 2))
    found.append(Stored("index", "record of entries", record, lambda data: entries_record.decode(3, data)))
    return [each for each in found if each.data]


def _stored(name: str, data: bytes) -> Iterator[Stored]:
    of = parse_name(name)
    if of is not None:
        yield Stored("replica object", name, data, lambda data: _object(data, of))
    elif name.endswith(".log"):
        yield Stored("segment", f"{name}, head", data[: segment.HEAD_BYTES], segment.decode_head)
        at = segment.HEAD_BYTES
        while at < len(data):
            size = decode_header(data[at:]).size
            yield Stored("segment", f"{name} from {at}", data[at : at + size], _batch)
            at += size
    elif name.endswith(".index"):
        yield Stored("sparse index", name, data, sparse_index.decode, is_hint=True)
    elif name.endswith(".writers"):
        yield Stored("writers", name, data, decode_snapshot)
    elif name.endswith(paths.SNAPSHOT_MANIFEST):
        yield Stored("snapshot", name, data, decode_manifest)
    elif name.startswith("meta/image/image."):
        yield Stored("image", name, data, _image)
    elif name == paths.STORE_FILE:
        yield Stored("STORE", name, data, store_file.decode)
    elif name == replica_manifest.NAME:
        yield Stored("TOLD", name, data, lambda data: replica_manifest.decode(data, STORE))


def _batch(data: bytes) -> None:
    header = decode_header(data)
    verify(header, data)


def _image(data: bytes) -> None:
    for _ in Reader(BytesIO(data).read, len(data)).items():
        pass


def _object(data: bytes, name: ObjectName) -> None:
    verify_parts(decode_object(memoryview(data), name, STORE), STORE)


Damage = tuple[int, int, bytes]
"""From which byte to which, exclusive, something else stands."""


def _bits(data: bytes) -> Iterator[Damage]:
    return ((at, at + 1, bytes([byte ^ 1 << bit])) for at, byte in enumerate(data) for bit in range(8))


def _bytes(data: bytes) -> Iterator[Damage]:
    return ((at, at + 1, wrong) for at, byte in enumerate(data) for wrong in (b"\0", b"\xff") if byte != wrong[0])


def _cuts(data: bytes) -> Iterator[Damage]:
    return ((length, len(data), b"") for length in range(len(data)))


def _swaps(data: bytes) -> Iterator[Damage]:
    for size in (8, 64, 512):
        for at in range(0, len(data) - 2 * size + 1, size):
            one, other = data[at : at + size], data[at + size : at + 2 * size]
            if one != other:
                yield at, at + 2 * size, other + one


DAMAGES: dict[str, Callable[[bytes], Iterator[Damage]]] = {
    "bits": _bits,
    "bytes": _bytes,
    "cuts": _cuts,
    "swaps": _swaps,
}
"""Every bit, every byte set to 0x00 and 0xff, every length, and two equal blocks side by side swapped."""


def is_found(stored: Stored, damaged: bytes) -> bool:
    """Whether damage is, or makes a hint no worse than shorter."""
    try:
        found = stored.read(damaged)
    except CorruptData:
        return True
    return stored.is_hint and found == stored.read(stored.data)[: len(found)]


def main() -> None:
    """See the module."""
    held, how, step, skip = Held(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    all_of_it = every()
    damages = (
        (stored, damage) for each in how.split(",") for stored in all_of_it for damage in DAMAGES[each](stored.data)
    )
    count = 0
    for stored, (start, stop, wrong) in islice(damages, skip, None, step):
        damaged = stored.data[:start] + wrong + stored.data[stop:]
        held.put(stored.kind.encode(), damaged)
        signal.alarm(SECONDS_MAX)
        if not is_found(stored, damaged):
            sys.exit(f"{stored.kind}, {stored.name}: no reader reports it")
        count += 1
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main()
