"""Mends a replica from its leader: what is bad or missing is sent again, or a fresh snapshot and what is behind it."""

from __future__ import annotations

from collections.abc import Iterable

from kvstore.errors import CorruptData, ReplicaBehind
from kvstore.replica.check import Listing
from kvstore.replica.client import Client
from kvstore.replica.ship.shipper import Shipper
from logformat import paths
from logformat.catalog.replicas import Finding, ReplicaStatus, Shipped, Stream
from logformat.replica import manifest as replica_told
from logformat.replica.object_file import ObjectName, parse_name


def repair(shipper: Shipper, client: Client, told: ReplicaStatus, findings: Iterable[Finding]) -> list[Shipped]:
    """Mend what was found; what the replica has of those tracks that it could not be mended as it was.

    Raises:
        ReplicaBehind: A bucket has neither the changes any more nor a snapshot.
        Unavailable: The replica can't be reached. What was mended stays so.
    """
    begun: dict[Stream, Shipped] = {}
    for finding in findings:
        if finding.object == paths.STORE_FILE:
            shipper.lead()
            continue
        if finding.object == replica_told.NAME:
            shipper.report([])
            continue
        shipped = begun.get(finding.stream) or told.of(finding.stream)
        name = parse_name(finding.object) if finding.object is not None else None
        if name is not None and (shipped is None or not _is_told(name, shipped)):
            client.delete(str(name))  # nobody was told of it
        elif shipped is not None and not _mended(shipper, client, finding, name):
            begun[finding.stream] = _begun_anew(shipper, shipped)
    return list(begun.values())


def _is_told(name: ObjectName, shipped: Shipped) -> bool:
    if name.kind == "snapshot":
        return name.start in shipped.snapshots
    return shipped.start <= name.start and name.end <= shipped.end


def _mended(shipper: Shipper, client: Client, finding: Finding, name: ObjectName | None) -> bool:
    """Whether it could be from what the leader still has."""
    if name is not None and name.kind == "range":
        try:
            parts = shipper.range_parts(name)
        except CorruptData:
            client.delete(str(name))  # no leader made one of that name
            return True
        if parts is None:
            return False
        shipper.replace(name, parts)
        return True
    if finding.start == finding.end:
        return False  # a snapshot: there is no second one of its offset
    try:
        # As of the leader that comes behind it: a later one would end what lies between.
        listed = (each for each in Listing.of(client).sizes if each.stream == finding.stream and each.kind == "range")
        behind = [each.epoch for each in listed if each.start >= finding.end]
        shipper.ship_range(finding.stream, finding.start, finding.end, min(behind, default=None))
    except ReplicaBehind:
        return False
    return True


def _begun_anew(shipper: Shipper, shipped: Shipped) -> Shipped:
    """A fresh snapshot, and what is behind it."""
    offset = shipper.ship_snapshot(shipped.stream)
    end = max(shipped.end, offset)
    if offset < end:
        shipper.ship_range(shipped.stream, offset, end)
    return Shipped(stream=shipped.stream, start=offset, end=end, snapshots=[offset])
