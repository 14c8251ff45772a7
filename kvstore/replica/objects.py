"""The objects of one stream, as a replica lists them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from kvstore.arguments import integer_within, shown
from kvstore.errors import InvalidRequest
from kvstore.replica.client import NO_RETRIES, ObjectStore
from kvstore.replica.coverage import holes
from logformat.catalog.replicas import ReplicaStatus, Shipped
from logformat.replica.object_file import ObjectName, parse_name, place_of_stream

OBJECTS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class StreamObjects:
    """The objects of a stream.

    Attributes:
        shipped: What was shipped of it, according to the store.
        sizes: Bytes of each object, in the order of offsets.
        missing: Shipped offsets that no object has: pairs of start, inclusive, and end, exclusive; None if not all
            objects were listed.
    """

    shipped: Shipped
    sizes: dict[ObjectName, int]
    missing: list[tuple[int, int]] | None


def objects_of(status: ReplicaStatus, stream: str, most: int) -> StreamObjects:
    """See :meth:`kvstore.Replica.objects`."""
    shipped = next((each for each in status.shipped if place_of_stream(each.stream) == stream), None)
    if shipped is None:
        raise InvalidRequest("Nothing of this stream was shipped.", stream=shown(stream))
    most = integer_within("most", most, 1, OBJECTS_MAX)
    listed = list(islice(ObjectStore(status.url, retries=NO_RETRIES).list(f"{stream}/"), most + 1))
    sizes = {
        name: size for name, size in ((parse_name(each), size) for each, size in listed[:most]) if name is not None
    }
    ordered = {name: sizes[name] for name in sorted(sizes, key=lambda each: (each.start, each.end, each.epoch))}
    return StreamObjects(shipped, ordered, list(holes(shipped, ordered)) if len(listed) <= most else None)
