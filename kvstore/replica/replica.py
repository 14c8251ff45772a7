"""One replica of an open store: ship to it, check it, mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvstore.calls import uninterrupted
from kvstore.errors import StoreLocked, UnsupportedOperation
from kvstore.lock import ProcessLock
from kvstore.replica.check import findings
from kvstore.replica.client import Client, ObjectStore
from kvstore.replica.image_worker import followers
from kvstore.replica.ship.merging import merge
from kvstore.replica.ship.repair import repair
from kvstore.replica.ship.shipper import Shipment, Shipper, edits_pushed, status_of
from kvstore.runtime import StoreRuntime
from logformat import paths
from logformat.catalog.edits import FindReplica
from logformat.catalog.replicas import Finding, ReplicaStatus
from logformat.replica.follower_status import FollowerStatus
from logformat.urls import shown_url

TELL_SECONDS = 60
"""A replica that has nothing to be shipped to it is told so no more often: each time is a request somebody pays for."""
MERGE_SECONDS = 600
"""And how often small objects are put together."""
_PASSES = 2
"""What is bad and of no use any more once a bucket was begun anew shows in the second."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """How a replica is.

    Attributes:
        url: Where, without credentials.
        findings: What was wrong when it was checked last; none if it is whole.
        checked_ms: When that was; None if it never was.
        behind: For each table, how many offsets of the logs it lacks: those another process has yet to publish, or was
            writing when this was made, included. Never less than what was acknowledged, and not a finding.
        as_of_ms: What was published then, it has; None if nothing was shipped yet.
        edits_shipped, edits: How many edits of the catalog it has, of how many that are worth shipping.
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


class Replica:
    """A replica, by its name; made by :meth:`kvstore.Store.replica`."""

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
        self._told: float | None = None
        self._merged: float | None = None

    @property
    def name(self) -> str:
        """Its name; if that is a URL, without credentials."""
        return shown_url(self._name)

    @property
    def url(self) -> str:
        """Where it is, without credentials."""
        return shown_url(self._status().url)

    @uninterrupted
    def ship(self) -> Shipment:
        """Ship what the replica lacks: all that was acknowledged in this process, and what others have published.

        To publish it is a :meth:`kvstore.Store.flush`, for which writers of this process wait; then they go on. A write
        of another process is published within a fraction of a second (``commit_wait_ms``); until then it counts in
        ``behind`` of :meth:`report`, and the next round ships it.

        Raises:
            InvalidRequest: The replica was removed, or this is itself a copy that follows one.
            WriterFenced: Another leader, or another store, ships there.
            Unavailable: It can't be reached, the log expired just now, or another ships (StoreLocked); what was shipped
                stays, and the rest is shipped next time.
            CorruptData: What is to be shipped is damaged; run `kvstore check`.
            StoreFull, LogFailed: What was acknowledged can't be published, or the report not be kept.
        """
        now = self._runtime.clock.monotonic()
        tells = self._told is None or now - self._told >= TELL_SECONDS
        with self._alone():
            done = self._shipper(self._client()).ship(tells=tells)
            if self._merged is None or now - self._merged >= MERGE_SECONDS:
                merge(self._client(), self._runtime.store_id, self._status(), self._runtime.clock.now_ms())
                self._merged = now
        if done.objects or tells:
            self._told = now
        return done

    def report(self) -> ReplicaReport:
        """How it is, by what the catalog and the logs here say; nothing is read there.

        Raises:
            InvalidRequest: The replica was removed.
        """
        status = self._status()
        behind = {}
        for definition in self._runtime.catalog().tables.values():
            ends = [handle.log_end() for handle in self._runtime.open_table(definition).handles]
            has = {
                int(each.stream.bucket): each.end for each in status.shipped if each.stream.table_id == definition.id
            }
            behind[definition.name] = sum(max(0, end - has.get(bucket, 0)) for bucket, end in enumerate(ends))
        shipped, edits = edits_pushed(self._runtime.journal, status)
        return ReplicaReport(
            self.url, status.findings, status.checked_ms, behind, status.as_of_ms, edits_shipped=shipped, edits=edits
        )

    def followers(self) -> list[FollowerStatus]:
        """How the copies are that follow it, as each said last; one that is gone stays in the list.

        Raises:
            InvalidRequest: The replica was removed.
            Unavailable: It can't be reached.
        """
        return sorted(followers(self._client()), key=lambda each: each.name)

    @uninterrupted
    def check(self) -> ReplicaReport:
        """Read every object, and hold what is there against what was shipped; what is found is kept in the catalog.

        Raises:
            InvalidRequest: The replica was removed, or this is itself a copy that follows one.
            Unavailable: It can't be reached.
            UnsupportedVersion: A newer version wrote an object.
        """
        with self._alone():
            self._find(self._client())
        return self.report()

    @uninterrupted
    def repair(self) -> ReplicaReport:
        """Check it, and send again what is bad or missing; or a fresh snapshot and what is behind it.

        Raises:
            InvalidRequest, Unavailable, UnsupportedVersion: See :meth:`check`.
            ReplicaBehind: The store has neither the changes any more nor a snapshot; take one.
        """
        with self._alone():
            client = self._client()
            shipper = self._shipper(client)
            found = self._find(client)
            for _ in range(_PASSES):
                if not found:
                    break
                begun = repair(shipper, client, self._status(), found)
                if begun:
                    shipper.report(begun)
                found = self._find(client)
        return self.report()

    def _find(self, client: Client) -> list[Finding]:
        found = findings(client, self._runtime.store_id, self._status())
        edit = FindReplica(name=self._name, checked_ms=self._runtime.clock.now_ms(), findings=found)
        self._runtime.journal.append(lambda _: edit)
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only one, in any process, who ships or mends: otherwise one could report less than the other had."""
        self._check_open()
        if (self._runtime.path / paths.FOLLOWING).exists():
            raise UnsupportedOperation(
                "This copy follows a replica; do this where its leader is.", path=self._runtime.path
            )
        lock = ProcessLock(self._runtime.path / paths.SHIPPING, self._runtime.files)
        if not lock.try_acquire():
            raise StoreLocked("Another ships, checks or repairs just now; try again.", path=self._runtime.path)
        try:
            yield
        finally:
            lock.release()

    def _client(self) -> Client:
        return self._connect(self._status().url)

    def _shipper(self, client: Client) -> Shipper:
        self._check_open()
        return Shipper(self._runtime, self._name, client)

    def _status(self) -> ReplicaStatus:
        self._check_open()
        return status_of(self._runtime, self._name)
