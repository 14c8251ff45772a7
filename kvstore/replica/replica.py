"""One replica of an open store: ship to it, check it, repair it.

* One process at a time ships, checks or repairs.
* The catalog has what was shipped and what a check found; a report reads nothing of the replica.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from kvstore.clock import time_text
from kvstore.disk.lock import ProcessLock
from kvstore.errors import CorruptData, UnsupportedOperation
from kvstore.process.calls import uninterrupted
from kvstore.replica.check import findings
from kvstore.replica.client import Client, ObjectStore
from kvstore.replica.objects import StreamObjects, objects_of
from kvstore.replica.ship.merging import OBJECTS_MIN, merge
from kvstore.replica.ship.repair import repair
from kvstore.replica.ship.retention import Retention
from kvstore.replica.ship.shipper import Shipment, Shipper, edits_pushed, status_of
from kvstore.store.runtime import StoreRuntime
from logformat import paths
from logformat.catalog.edits import FindReplica
from logformat.catalog.replicas import Finding, ReplicaStatus, Stream
from logformat.replica import follower_status
from logformat.replica.follower_status import STATUS_BYTES_MAX, FollowerStatus
from logformat.replica.object_file import CATALOG_PREFIX
from logformat.urls import shown_url

MANIFEST_SECONDS = 60
"""Time between two manifests of a replica to which nothing is shipped: each costs a request."""
MAINTENANCE_SECONDS = 60
"""Time between two merges of small objects, and between two calls of the retention."""
_log = logging.getLogger(__name__)
_PASSES = 2
"""A bad object that a restarted stream no longer needs is found, and removed, in the second pass."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The status of a replica.

    Attributes:
        url: Its URL, without credentials.
        findings: Findings of the last check; empty if the replica is complete.
        checked_ms: Time of the last check; None if there was none.
        behind: For each table the number of offsets that the replica lacks. This includes batches that other processes
            have not published yet, or were writing at the time of the report. It is never less than what was
            acknowledged, and is no finding.
        as_of_ms: The replica has everything that was published at this time; None if nothing was shipped yet.
        edits_shipped, edits: Number of edits of the catalog that the replica has, and that are worth shipping.
    """

    url: str
    findings: list[Finding]
    checked_ms: int | None
    behind: dict[str, int]
    as_of_ms: int | None
    edits_shipped: int
    edits: int

    def __bool__(self) -> bool:
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """The report as ``kvstore replica ls --json`` prints it: lags as numbers, and times in ISO 8601."""
        facts = asdict(self) | {"behind": sum(self.behind.values())}
        facts["findings"] = msgspec.to_builtins(self.findings)
        del facts["edits"]
        for each in ("as_of", "checked"):
            moment = facts.pop(f"{each}_ms")
            facts[each] = None if moment is None else time_text(moment)
        return {**facts, "edits_behind": self.edits - self.edits_shipped}


class Replica:
    """A replica, by its name; created by :meth:`kvstore.Store.replica`."""

    def __init__(
        self,
        runtime: StoreRuntime,
        name: str,
        check_open: Callable[[], None],
        connect: Callable[[str], Client] = ObjectStore,
    ) -> None:
        self._name = name
        self._runtime = runtime
        self._check_open = check_open
        self._connect = connect
        self._reported: float | None = None
        self._rounds = 0
        self._maintained: float | None = None
        self._snapshot_times: dict[tuple[Stream, int], int] = {}

    @property
    def name(self) -> str:
        """The name; if it is a URL, without credentials."""
        return shown_url(self._name)

    @property
    def url(self) -> str:
        """The URL, without credentials."""
        return shown_url(self._status().url)

    @uninterrupted
    def ship(self) -> Shipment:
        """Ship what the replica lacks: what was acknowledged in this process, and what other processes have published.

        First :meth:`kvstore.Store.flush` publishes what this process has acknowledged; its writers wait for that. A
        write of another process is published within a fraction of a second (``commit_wait_ms``). Until then it counts
        in ``behind`` of :meth:`report`, and the next round ships it.

        Raises:
            InvalidRequest: The replica was removed, or this store is itself a copy that follows one.
            WriterFenced: Another leader, or another store, ships to the replica; or the replica has changes that this
                store lacks, such as when it is an older copy that was put in the place of what shipped them.
            Unavailable: The replica can't be reached, the log has just expired, or another process ships (StoreLocked).
                What was shipped stays, and the rest is shipped next time.
            CorruptData: The data to be shipped is damaged; run `kvstore check`.
            StoreFull, LogFailed: Acknowledged writes can't be published, or the result can't be recorded.
        """
        now = self._runtime.clock.monotonic()
        reports = self._reported is None or now - self._reported >= MANIFEST_SECONDS
        with self._alone():
            client = self._client()
            shipper = self._shipper(client)
            done = shipper.ship(reports=reports)
            self._rounds += bool(done.objects)
            if done.objects and self._rounds % OBJECTS_MIN == 0:
                # Readers of every table read the catalog, of which each round may ship an object.
                now_ms = self._runtime.clock.now_ms()
                merge(client, self._runtime.store_id, self._status(), now_ms, f"{CATALOG_PREFIX}/")
            if self._maintained is None or now - self._maintained >= MAINTENANCE_SECONDS:
                retention = Retention(self._runtime, client, shipper, self._snapshot_times)
                keep_ms = retention.kept_ms()
                try:
                    retention.apply(self._status(), keep_ms)
                    merge(client, self._runtime.store_id, self._status(), self._runtime.clock.now_ms())
                except CorruptData as error:  # what is new is shipped all the same
                    _log.warning(
                        "replica %s keeps what it does not need until it is repaired: %s", shown_url(self.name), error
                    )
                self._maintained = now
        if done.objects or reports:
            self._reported = now
        return done

    def report(self) -> ReplicaReport:
        """The status of the replica according to the catalog and the logs of the store; reads nothing of the replica.

        Raises:
            InvalidRequest: The replica was removed.
        """
        status = self._status()
        shipped_ends = {(each.stream.table_id, int(each.stream.bucket)): each.end for each in status.shipped}
        behind = {}
        for id, definition in self._runtime.catalog().tables.items():
            ends = [handle.state().applied_offset for handle in self._runtime.open_table(definition).handles]
            behind[definition.name] = sum(
                max(0, end - shipped_ends.get((id, bucket), 0)) for bucket, end in enumerate(ends)
            )
        shipped, edits = edits_pushed(self._runtime.journal, status)
        return ReplicaReport(
            self.url, status.findings, status.checked_ms, behind, status.as_of_ms, edits_shipped=shipped, edits=edits
        )

    def status(self) -> ReplicaStatus:
        """What the catalog of the store has of the replica: streams and offsets that were shipped, and findings.

        Raises:
            InvalidRequest: The replica was removed.
        """
        return self._status()

    def objects(self, stream: str, most: int) -> StreamObjects:
        """The objects of a stream, as the replica lists them now; asks once, without trying again.

        Args:
            stream: ``catalog``, or that of a bucket such as ``tables/1/0``.
            most: Objects that are listed at most, up to a million; with more, it is not known what is missing.

        Raises:
            InvalidRequest: The replica was removed, nothing of such a stream was shipped, or ``most`` is not possible.
            Unavailable: The replica can't be reached.
        """
        return objects_of(self._status(), stream, most)

    def followers(self) -> list[FollowerStatus]:
        """The last status of each copy that follows the replica; a copy that was removed stays in the list.

        Raises:
            InvalidRequest: The replica was removed.
            Unavailable: The replica can't be reached.
        """
        client, statuses = self._client(), []
        for name, _ in list(client.list(follower_status.PREFIX)):
            with suppress(FileNotFoundError, CorruptData):
                statuses.append(follower_status.decode(bytes(client.get(name, bytes_max=STATUS_BYTES_MAX))))
        return sorted(statuses, key=lambda each: each.name)

    @uninterrupted
    def check(self) -> ReplicaReport:
        """Verify every object, and compare the objects with what was shipped; the catalog keeps the findings.

        Raises:
            InvalidRequest: The replica was removed, or this store is itself a copy that follows one.
            WriterFenced: The replica has changes that this store lacks; see :meth:`ship`.
            Unavailable: The replica can't be reached.
            UnsupportedVersion: A newer version wrote an object.
        """
        with self._alone():
            client = self._client()
            self._shipper(client).check_continues()
            self._find(client)
        return self.report()

    @uninterrupted
    def repair(self) -> ReplicaReport:
        """Check the replica, and ship bad and missing objects again; or a new snapshot and the changes after it.

        Raises:
            InvalidRequest, WriterFenced, Unavailable, UnsupportedVersion: See :meth:`check`.
            ReplicaBehind: The store has neither the changes nor a snapshot any more; take a snapshot.
        """
        with self._alone():
            client = self._client()
            shipper = self._shipper(client)
            shipper.check_continues()
            problems = self._find(client)
            for _ in range(_PASSES):
                if not problems:
                    break
                restarted = repair(shipper, client, self._status(), problems)
                if restarted:
                    shipper.report(restarted)
                problems = self._find(client)
        return self.report()

    def _find(self, client: Client) -> list[Finding]:
        problems = findings(client, self._runtime.store_id, self._status())
        edit = FindReplica(name=self._name, checked_ms=self._runtime.clock.now_ms(), findings=problems)
        self._runtime.journal.append(lambda _: edit)
        return problems

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from shipping and repairing: otherwise one could report less than the other shipped."""
        self._check_open()
        if (self._runtime.path / paths.FOLLOWING).exists():
            raise UnsupportedOperation("This copy follows a replica; do this on its leader.", path=self._runtime.path)
        lock = ProcessLock(self._runtime.path / paths.SHIPPING, self._runtime.files)
        with lock.taken("Another process ships, checks or repairs now; try again."):
            yield

    def _client(self) -> Client:
        return self._connect(self._status().url)

    def _shipper(self, client: Client) -> Shipper:
        self._check_open()
        return Shipper(self._runtime, self._name, client)

    def _status(self) -> ReplicaStatus:
        self._check_open()
        return status_of(self._runtime, self._name)
