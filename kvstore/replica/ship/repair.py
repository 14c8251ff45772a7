"""Repairs a replica from its leader: ships bad and missing objects again, or a new snapshot and later changes."""

from __future__ import annotations

from collections.abc import Iterable

from kvstore.errors import CorruptData, ReplicaBehind
from kvstore.replica.check import Listing
from kvstore.replica.client import Client
from kvstore.replica.ship.shipper import Shipper
from logformat import paths
from logformat.catalog.replicas import Finding, ReplicaStatus, Shipped, Stream
from logformat.replica import manifest as replica_manifest
from logformat.replica.object_file import ObjectName, parse_name


def repair(shipper: Shipper, client: Client, status: ReplicaStatus, findings: Iterable[Finding]) -> list[Shipped]:
    """Repair what a check found; returns what was shipped of the streams that had to be restarted.

    Raises:
        ReplicaBehind: A bucket has neither the changes nor a snapshot any more.
        Unavailable: The replica can't be reached. What was repaired stays repaired.
    """
    restarted: dict[Stream, Shipped] = {}
    for finding in findings:
        if finding.object == paths.STORE_FILE:
            shipper.lead()
            continue
        if finding.object == replica_manifest.NAME:
            shipper.report([])
            continue
        shipped = restarted.get(finding.stream) or status.of(finding.stream)
        name = parse_name(finding.object) if finding.object is not None else None
        if name is not None and (shipped is None or not _was_shipped(name, shipped)):
            client.delete(str(name))  # it was never reported as shipped
        elif shipped is not None and not _was_repaired(shipper, client, finding, name):
            restarted[finding.stream] = _restarted(shipper, shipped)
    return list(restarted.values())


def _was_shipped(name: ObjectName, shipped: Shipped) -> bool:
    if name.kind == "snapshot":
        return name.start in shipped.snapshots
    return shipped.start <= name.start and name.end <= shipped.end


def _was_repaired(shipper: Shipper, client: Client, finding: Finding, name: ObjectName | None) -> bool:
    """Repair one finding from what the leader still has; returns whether that was possible."""
    if name is not None and name.kind == "range":
        try:
            parts = shipper.range_parts(name)
        except CorruptData:
            client.delete(str(name))  # no leader created an object of this name
            return True
        if parts is None:
            return False
        shipper.replace(name, parts)
        return True
    if finding.start == finding.end:
        return False  # a snapshot: the leader has no second one of its offset
    try:
        # In the epoch of the range after it: an object of a later epoch would end the ranges between.
        listed = (each for each in Listing.of(client).sizes if each.stream == finding.stream and each.kind == "range")
        after = [each.epoch for each in listed if each.start >= finding.end]
        shipper.ship_range(finding.stream, finding.start, finding.end, min(after, default=None))
    except ReplicaBehind:
        return False
    return True


def _restarted(shipper: Shipper, shipped: Shipped) -> Shipped:
    """Ship a new snapshot and the changes after it."""
    offset = shipper.ship_snapshot(shipped.stream)
    end = max(shipped.end, offset)
    if offset < end:
        shipper.ship_range(shipped.stream, offset, end)
    return Shipped(stream=shipped.stream, start=offset, end=end, snapshots=[offset])
