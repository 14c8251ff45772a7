"""Merges small ranges of a replica: shipping every second creates many, and each costs a request.

* Consecutive ranges of one leader are read, verified, and written again as one range with a name of its own.
* The merged ranges are removed later, if the new range is valid: readers that listed them before need them for a while.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from kvstore.errors import CorruptData
from kvstore.replica.check import Listing, is_right, read_object
from kvstore.replica.client import Client
from logformat.catalog.replicas import ReplicaStatus, Shipped, Stream
from logformat.replica.object_file import ObjectName, encode_object

RANGE_BYTES = 16 << 20
"""A range ends with the batch or edit that reaches this size."""
OBJECTS_MIN = 16
"""Fewer ranges are not merged."""
GRACE_SECONDS = 60
"""How long the merged ranges stay. A reader that listed them and finds one gone reads the range that has it."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Number of ranges that a merge created, and removed."""

    created: int
    removed: int


def merge(client: Client, store_id: UUID, status: ReplicaStatus, now_ms: int, prefix: str = "") -> Merged:
    """Merge the ranges of a replica, and remove ranges that were merged more than ``GRACE_SECONDS`` ago.

    Args:
        prefix: Only ranges whose names start with this are merged.

    Raises:
        Unavailable: The replica can't be reached. It is valid as it is, and the next call continues.
    """
    sizes = Listing.of(client, prefix).sizes
    created = removed = 0
    of_stream: dict[Stream, list[ObjectName]] = {}
    for name in sizes:
        of_stream.setdefault(name.stream, []).append(name)
    for shipped in status.shipped:
        names = [name for name in of_stream.get(shipped.stream, ()) if _is_range_of(name, shipped)]
        covers = dict(covered(names))
        for run in runs((name for name in names if name not in covers), sizes, shipped.snapshots):
            created += _create(client, store_id, run, sizes)
        for cover, merged in groupby(sorted(covers, key=lambda name: (covers[name], name)), covers.__getitem__):
            if now_ms - client.modified_ms(str(cover)) >= 1000 * GRACE_SECONDS and is_right(
                client, store_id, cover, sizes[cover]
            ):
                for name in merged:
                    client.delete(str(name))
                    removed += 1
    return Merged(created, removed)


def runs(
    names: Iterable[ObjectName], sizes: Mapping[ObjectName, int], snapshots: Iterable[int] = ()
) -> Iterator[list[ObjectName]]:
    """Ranges of a stream that are to be merged: consecutive, small, and at least ``OBJECTS_MIN``.

    A range at the beginning that is larger than the others together is left out until they have grown: so a byte is
    written again only a few times.

    Args:
        snapshots: Offsets where the stream may begin later, when what is before is removed: merged ranges end there.
    """
    cuts = sorted(snapshots)
    run: list[ObjectName] = []
    bytes_of_run = 0
    for name in sorted(names, key=lambda name: (name.epoch, name.start)):
        follows = bool(run) and (name.epoch, name.start) == (run[-1].epoch, run[-1].end)
        is_cut = bool(run) and bisect_left(cuts, run[-1].end) < bisect_left(cuts, name.end)
        if not follows or is_cut or bytes_of_run + sizes[name] > RANGE_BYTES:
            yield from _without_large(run, sizes)
            run, bytes_of_run = [], 0
        run.append(name)
        bytes_of_run += sizes[name]
    yield from _without_large(run, sizes)


def _without_large(run: list[ObjectName], sizes: Mapping[ObjectName, int]) -> Iterator[list[ObjectName]]:
    while len(run) >= OBJECTS_MIN and sizes[run[0]] > sum(sizes[name] for name in run[1:]):
        run = run[1:]
    if len(run) >= OBJECTS_MIN:
        yield run


def covered(names: Iterable[ObjectName]) -> Iterator[tuple[ObjectName, ObjectName]]:
    """Ranges of a stream that a longer range of the same leader contains, each with the longest such range."""
    cover: ObjectName | None = None
    for name in sorted(names, key=lambda name: (name.epoch, name.start, -name.end)):
        if cover is not None and name.epoch == cover.epoch and name.end <= cover.end:
            yield name, cover
        else:
            cover = name


def _is_range_of(name: ObjectName, shipped: Shipped) -> bool:
    within = shipped.start <= name.start and name.end <= shipped.end
    return name.stream == shipped.stream and name.kind == "range" and within


def _create(client: Client, store_id: UUID, run: list[ObjectName], sizes: Mapping[ObjectName, int]) -> bool:
    first = run[0]
    whole = ObjectName(first.stream, "range", first.start, run[-1].end, first.epoch)
    parts: list[bytes | memoryview] = []
    try:
        for name in run:
            parts += read_object(client, store_id, name, sizes[name]).parts
    except CorruptData:
        return False  # a check finds it, and a repair ships it again
    return client.create(str(whole), encode_object(whole, store_id, parts))
