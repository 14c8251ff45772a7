"""Is a replica whole? Every object it lists is read, and held against what it was told.

* An object that is not what its name says is ``BAD``; offsets that no object has by its name are ``MISSING_VERSION``.
* Merely to be behind is neither: what was not reported is not missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from kvstore.errors import CorruptData
from kvstore.replica.client import Client, check_size
from kvstore.replica.contents import verify_parts
from kvstore.replica.coverage import holes
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.replicas import CATALOG, Finding, ReplicaStatus
from logformat.log.batch import BATCH_BYTES_MAX
from logformat.replica import manifest as replica_told
from logformat.replica.object_file import HEAD_BYTES, FoundObject, ObjectName, decode_object, parse_name, size_in_head

RANGE_BYTES_MAX = 2 * BATCH_BYTES_MAX
"""A range that is larger is none: it is not even read."""
UNASKED_BYTES_MAX = 32 << 20
"""Of a larger object the head is read first, and has to say the size that was listed."""


@dataclass(frozen=True)
class Listing:
    """What a replica lists: objects of this store's tracks, and how large they are."""

    sizes: dict[ObjectName, int]

    @classmethod
    def of(cls, client: Client) -> Listing:
        """Ask for it; names that are none of ours are left out."""
        found = ((parse_name(name), size) for name, size in client.list())
        return cls({name: size for name, size in found if name is not None})


def findings(client: Client, store_id: UUID, told: ReplicaStatus) -> list[Finding]:
    """What is wrong with a replica.

    Raises:
        Unavailable: It can't be reached.
        UnsupportedVersion: A newer version wrote an object.
    """
    listing = Listing.of(client)
    found = [
        Finding(kind="BAD", stream=name.stream, start=name.start, end=name.end, object=str(name))
        for name in sorted(listing.sizes)
        if not _is_right(client, store_id, name, listing.sizes[name])
    ]
    if told.shipped:
        for name, is_right in ((paths.STORE_FILE, _is_of_store), (replica_told.NAME, _says_so)):
            if not is_right(client, store_id, told):
                found.append(Finding(kind="BAD", stream=CATALOG, start=0, end=0, object=name))
    return [*found, *missing(told, listing.sizes)]


def missing(told: ReplicaStatus, objects: Iterable[ObjectName]) -> Iterator[Finding]:
    """What a replica was told, and lists no object for."""
    objects = list(objects)
    for shipped in told.shipped:
        of_track = [each for each in objects if each.stream == shipped.stream]
        for start, end in holes(shipped, of_track):
            yield Finding(kind="MISSING_VERSION", stream=shipped.stream, start=start, end=end)
        there = {each.start for each in of_track if each.kind == "snapshot"}
        for offset in shipped.snapshots:
            if offset not in there:
                yield Finding(kind="MISSING_VERSION", stream=shipped.stream, start=offset, end=offset)


def read_object(client: Client, store_id: UUID, name: ObjectName, size: int) -> FoundObject:
    """An object, with all that is in it verified.

    Args:
        size: As it was listed.

    Raises:
        CorruptData: It is gone, larger than any can be or than its head says, damaged, or another one.
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
    found = decode_object(data, name, store_id)
    try:
        verify_parts(found, store_id)
    except CorruptData as error:
        error.where.setdefault("object", str(name))  # an edit or a batch can't say in which it is
        raise
    return found


def _check_head(client: Client, store_id: UUID, name: ObjectName, size: int) -> None:
    """See that the head of an object says the size it has.

    Raises:
        CorruptData: It says less, or is none.
    """
    try:
        says = size_in_head(client.get_first(str(name), HEAD_BYTES), name, store_id)
    except CorruptData as error:
        error.where["bytes"] = size  # of the object, not of the part that was read
        raise
    check_size(str(name), size, says)


def _is_of_store(client: Client, store_id: UUID, _: ReplicaStatus) -> bool:
    try:
        return (
            store_file.decode(bytes(client.get(paths.STORE_FILE, bytes_max=store_file.STORE_BYTES_MAX))).store_id
            == store_id
        )
    except (CorruptData, FileNotFoundError):
        return False


def _says_so(client: Client, store_id: UUID, told: ReplicaStatus) -> bool:
    """Whether the replica itself says what it was told; or more, by a leader who died before he reported it."""
    try:
        says = replica_told.decode(
            bytes(client.get(replica_told.NAME, bytes_max=replica_told.TOLD_BYTES_MAX)), store_id
        )
    except (CorruptData, FileNotFoundError):
        return False
    ends = {each.stream: each.end for each in says.shipped}
    return all(ends.get(each.stream, 0) >= each.end for each in told.shipped)


def _is_right(client: Client, store_id: UUID, name: ObjectName, size: int) -> bool:
    try:
        read_object(client, store_id, name, size)
    except CorruptData:
        return False
    return True
