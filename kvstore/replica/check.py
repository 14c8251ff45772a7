"""Verifies a replica: reads every listed object, and compares the objects with what was shipped.

* An object whose content does not match its name is ``BAD``. Offsets that no object has by its name are
  ``MISSING_VERSION``.
* Lag is neither: what was not reported as shipped is not missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from msgspec import structs

from kvstore.errors import CorruptData, ReplicaBehind
from kvstore.replica.client import Client, check_size, store_id_of
from kvstore.replica.contents import verify_parts
from kvstore.replica.coverage import holes
from logformat import paths
from logformat.catalog.replicas import CATALOG, Finding, ReplicaStatus
from logformat.log.batch import BATCH_BYTES_MAX
from logformat.replica import manifest as replica_manifest
from logformat.replica.object_file import (
    HEAD_BYTES,
    FoundObject,
    ObjectName,
    decode_object,
    first_part,
    parse_name,
    place_of_stream,
    size_in_head,
)

RANGE_BYTES_MAX = 2 * BATCH_BYTES_MAX
"""Limit of a range; a larger one is not even read."""
_FIRST_BYTES = 16 << 10
"""Bytes of an object that are read for its first part, which is mostly shorter."""
UNASKED_BYTES_MAX = 32 << 20
"""The head of a larger object is read first; it must have the listed size."""


@dataclass(frozen=True)
class Listing:
    """The objects of streams that a replica lists, with their sizes in bytes."""

    sizes: dict[ObjectName, int]

    @classmethod
    def of(cls, client: Client, prefix: str = "", after: str = "") -> Listing:
        """List a replica, or some of its names; see :meth:`Client.list`. Names of other forms are left out."""
        listed = ((parse_name(name), size) for name, size in client.list(prefix, after))
        return cls({name: size for name, size in listed if name is not None})


def findings(
    client: Client, store_id: UUID, status: ReplicaStatus, now: Callable[[], ReplicaStatus] | None = None
) -> list[Finding]:
    """Verify a replica.

    Args:
        status: What was shipped before this call.
        now: Returns what was shipped until now, if the leader goes on at the same time.

    Raises:
        Unavailable: The replica can't be reached.
        UnsupportedVersion: A newer version wrote an object.
    """
    sizes, bad = _verified(client, store_id)
    problems = [
        Finding(kind="BAD", stream=name.stream, start=name.start, end=name.end, object=str(name))
        for name in sorted(bad)
    ]
    if status.shipped:
        for name, holds in ((paths.STORE_FILE, _is_of_store), (replica_manifest.NAME, _is_manifest_right)):
            if not holds(client, store_id, status):
                problems.append(Finding(kind="BAD", stream=CATALOG, start=0, end=0, object=name))
    return [*problems, *missing(status if now is None else _in_both(status, now()), sizes)]


def _verified(client: Client, store_id: UUID) -> tuple[dict[ObjectName, int], set[ObjectName]]:
    """Sizes of all objects, and those that are bad; an object that is gone was merged with others, or expired."""
    sizes, bad = Listing.of(client).sizes, set[ObjectName]()
    new = set(sizes)
    while True:
        bad |= {name for name in new if not is_right(client, store_id, name, sizes[name])}
        listed = Listing.of(client).sizes if bad else sizes
        if bad <= listed.keys():
            return sizes, bad
        new = listed.keys() - sizes.keys()
        sizes, bad = listed, bad & listed.keys()


def _in_both(before: ReplicaStatus, after: ReplicaStatus) -> ReplicaStatus:
    """What a replica had all the time between two moments."""
    later = {each.stream: each for each in after.shipped}
    shipped = [
        structs.replace(
            each,
            start=max(each.start, now.start),
            end=min(each.end, now.end),
            snapshots=[offset for offset in each.snapshots if offset in now.snapshots],
        )
        for each in before.shipped
        if (now := later.get(each.stream)) is not None
    ]
    return structs.replace(before, shipped=shipped)


def missing(status: ReplicaStatus, objects: Iterable[ObjectName]) -> Iterator[Finding]:
    """Parts of what was shipped that no listed object has."""
    objects = list(objects)
    for shipped in status.shipped:
        of_stream = [each for each in objects if each.stream == shipped.stream]
        for start, end in holes(shipped, of_stream):
            yield Finding(kind="MISSING_VERSION", stream=shipped.stream, start=start, end=end)
        snapshots = {each.start for each in of_stream if each.kind == "snapshot"}
        for offset in shipped.snapshots:
            if offset not in snapshots:
                yield Finding(kind="MISSING_VERSION", stream=shipped.stream, start=offset, end=offset)


def read_object(client: Client, store_id: UUID, name: ObjectName, size: int) -> FoundObject:
    """Read an object, and verify all its parts.

    Args:
        size: The listed size in bytes.

    Raises:
        CorruptData: The object is gone, too large, larger than its head states, damaged, or another one.
        UnsupportedVersion: A newer version wrote it.
    """
    if name.kind == "range":
        check_size(str(name), size, RANGE_BYTES_MAX)
    try:
        if size > UNASKED_BYTES_MAX:
            _check_head(client, store_id, name, size)
        data = client.get(str(name), bytes_max=size)
    except FileNotFoundError as error:
        raise CorruptData("An object is gone.", object=str(name)) from error
    content = decode_object(data, name, store_id)
    try:
        verify_parts(content, store_id)
    except CorruptData as error:
        error.where.setdefault("object", str(name))  # the decoders of edits and batches do not know it
        raise
    return content


def first_part_of(client: Client, store_id: UUID, name: ObjectName, size: int) -> memoryview:
    """The first part of an object, unverified, with few bytes of the rest.

    Raises:
        CorruptData: The object is gone, or its head is damaged.
    """
    count = min(size, _FIRST_BYTES)
    try:
        while True:
            part = first_part(client.get_first(str(name), count), name, store_id)
            if not isinstance(part, int):
                return part
            check_size(str(name), part, size)
            count = part
    except FileNotFoundError as error:
        raise CorruptData("An object is gone.", object=str(name)) from error


def read_listed(client: Client, store_id: UUID, name: ObjectName, size: int) -> FoundObject:
    """Read an object of an earlier listing; if that range was merged since, the one into which it was merged.

    Raises:
        ReplicaBehind: It was removed since, by the replica's retention.
        CorruptData, UnsupportedVersion: See :func:`read_object`.
    """
    try:
        return read_object(client, store_id, name, size)
    except CorruptData as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        for other, bytes_listed in Listing.of(client, f"{place_of_stream(name.stream)}/").sizes.items():
            if (other.kind, other.epoch) == (
                name.kind,
                name.epoch,
            ) and other.start <= name.start < name.end <= other.end:
                return read_object(client, store_id, other, bytes_listed)
        raise ReplicaBehind(
            "An object is gone: its retention has removed it, or it was lost. Begin again, with what is there now. If "
            "it is gone then, too, `kvstore replica check` or `kvstore shared check` names what was lost.",
            object=str(name),
        ) from error


def _check_head(client: Client, store_id: UUID, name: ObjectName, size: int) -> None:
    """Check that the head of an object states its size.

    Raises:
        CorruptData: It states a smaller size, or is damaged.
    """
    try:
        stated = size_in_head(client.get_first(str(name), HEAD_BYTES), name, store_id)
    except CorruptData as error:
        error.where["bytes"] = size  # of the whole object, not only of the head
        raise
    check_size(str(name), size, stated)


def _is_of_store(client: Client, store_id: UUID, _: ReplicaStatus) -> bool:
    return store_id_of(client) == store_id


def _is_manifest_right(client: Client, store_id: UUID, status: ReplicaStatus) -> bool:
    """Whether the manifest has everything in the status. It has more if a leader died before it recorded the status."""
    try:
        manifest = replica_manifest.decode(
            bytes(client.get(replica_manifest.NAME, bytes_max=replica_manifest.MANIFEST_BYTES_MAX)), store_id
        )
    except (CorruptData, FileNotFoundError):
        return False
    ends = {each.stream: each.end for each in manifest.shipped}
    return all(ends.get(each.stream, 0) >= each.end for each in status.shipped)


def is_right(client: Client, store_id: UUID, name: ObjectName, size: int) -> bool:
    """Whether an object is there as :func:`read_object` wants it."""
    try:
        read_object(client, store_id, name, size)
    except CorruptData:
        return False
    return True
