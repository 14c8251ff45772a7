"""Follows a replica: keeps a local copy of a store current for readers, and promotes the copy to leader.

* After each round the copy is the store as it was at one moment, so readers need no special treatment.
* Edits and changes that a new leader lacks are rolled back up to a limit; above it, the user has to decide.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self
from uuid import uuid4

from kvstore.clock import Clock
from kvstore.disk.files import Files, refusals, resolved
from kvstore.errors import CorruptData, Diverged, Unavailable
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.options import StoreOptions
from kvstore.process.calls import in_background, uninterrupted
from kvstore.replica import leadership
from kvstore.replica.client import Client, ObjectStore, place_of
from kvstore.replica.consistent_cut import streams_of
from kvstore.replica.follow import creation, replacement
from kvstore.replica.follow.copy import Copy, following_of
from kvstore.replica.follow.divergence import divergence_of, has_no_path
from kvstore.replica.follow.final_edits import final_edits
from kvstore.replica.follow.round import Planner
from kvstore.replica.follow.spool import Spool
from kvstore.replica.promotion import Places, Promotion
from kvstore.replica.source import Source, read_manifest
from logformat import paths
from logformat.catalog.replicas import CATALOG
from logformat.ids import Epoch, Txid
from logformat.replica import follower_status
from logformat.replica.follower_status import FollowerStatus
from logformat.replica.manifest import ReplicaManifest
from logformat.urls import shown_url

ROLLBACK_LIMIT = 10
"""Default limit of the edits and changes that a copy rolls back because a new leader lacks them."""
STATUS_SECONDS = 60.0
"""Time between two reports of a follower's status to the replica."""
LAG_SECONDS = 180
"""Lag after which a follower warns. A leader updates the replica manifest at least every 60 s."""
SKEW_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of one round.

    Attributes:
        edits: Number of edits of the catalog.
        changes: Number of changes of tables.
        rebuilt: Whether the copy was created again, because the replica was or a new leader lacks some of it.
    """

    edits: int
    changes: int
    rebuilt: bool = False

    def __bool__(self) -> bool:
        return bool(self.edits or self.changes or self.rebuilt)


@dataclass(frozen=True, slots=True)
class FollowReport:
    """The status of a copy.

    Attributes:
        url: URL of the replica, without credentials.
        txid: The last edit of the copy.
        leader_epoch: Epoch of the leader that it follows.
        as_of_ms: The copy has everything that was published at this time.
        warnings: Problems that need attention, a sentence each.
    """

    url: str
    txid: Txid
    leader_epoch: Epoch
    as_of_ms: int
    warnings: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not self.warnings


@dataclass(frozen=True, slots=True)
class Promoted:
    """The result of a promotion.

    Attributes:
        txid: The last edit of the new leader.
        leader_epoch: Epoch of the new leader.
        ends: By table name, for each bucket the offset at which the new leader continues.
        unreached: Replicas of its catalog that could not be reached, with the reasons, by name. A leader that reaches
            only those may still write, and so may another copy that follows one of them and is promoted.
    """

    txid: Txid
    leader_epoch: Epoch
    ends: dict[str, dict[int, int]]
    unreached: dict[str, str] = field(default_factory=dict)


class Follower:
    """A copy of a store that follows a replica; a context manager. Other processes may read the copy, but not write it.

    Args:
        path: Directory of the copy; see :func:`kvstore.replica.follow.creation.create`.
        rollback_limit: If a new leader lacks at most this number of edits and changes, the copy rolls them back.
        progress: Called with the bytes of each object after it is read.

    Raises:
        NotAStore: There is no such copy.
        StoreLocked: Another process follows with it.
        InvalidRequest: The URL of the replica is not valid.
        Unavailable: The replica's directory can't be reached.
        CorruptImage, CorruptData: The copy is damaged; follow into a new directory.
    """

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        files: Files,
        clock: Clock,
        *,
        rollback_limit: int = ROLLBACK_LIMIT,
        progress: Callable[[int], None] = lambda _: None,
        connect: Callable[[str], Client] = ObjectStore,
    ) -> None:
        self.path = resolved(path)  # a rebuilt copy is created beside it, under a name made from its own
        self._options = options
        self._files = files
        self._clock = clock
        self._rollback_limit = rollback_limit
        self._progress = progress
        self._mutex = threading.Lock()
        self._manifest_bytes = b""
        self._manifest: ReplicaManifest | None = None
        self._reported: float | None = None
        self._copy: Copy | None = None
        self._was_rebuilt = False
        replacement.complete(self.path, files)
        self._url = following_of(self.path).url
        self.url = shown_url(self._url)
        self._connect = connect
        self._client = connect(self._url)
        self._open()

    def __del__(self) -> None:
        """Give the copy up: nobody can close it any more."""
        copy: Copy | None = getattr(self, "_copy", None)
        if copy is not None:
            in_background(copy.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @uninterrupted
    def pull(self) -> Pulled:
        """Take what the replica has and the copy lacks.

        Raises:
            Unavailable: The replica can't be reached, or does not have all of it yet (ReplicaBehind); try again.
            MissingVersion: The replica has a hole; repair it on its leader.
            CorruptData: An object is damaged; repair the replica on its leader.
            Diverged: The leader lacks more of the copy than the limit allows. Nothing was changed.
            NotAStore: The replica now belongs to another store. Nothing was changed.
            StoreFull, LogFailed: The disk is full or failed; what was taken stays.
        """
        with self._mutex:
            self._remove_former()
            return self._pull()

    def report(self) -> FollowReport:
        """The status of the copy as of the last round."""
        with self._mutex:
            state = self._open().state
            as_of_ms = self._manifest.as_of_ms if self._manifest is not None else 0
            return FollowReport(self.url, state.txid, state.leader_epoch, as_of_ms, list(self._warnings()))

    @uninterrupted
    def promote(self) -> Promoted:
        """Promote the copy to leader, which closes it and makes it an ordinary store. Takes at least three seconds.

        When this returns, the former leader appends and ships nothing any more, provided that it reaches a replica that
        is not in ``unreached``.

        Raises:
            WriterFenced: Another copy is being promoted, or was promoted meanwhile. This copy still follows; its claims
                in replicas that it reaches are removed.
            NotAStore: The replica now belongs to another store. No leader was fenced.
            Unavailable: The replica can't be reached.
            MissingVersion, CorruptData, Diverged: Some of what was shipped can't be taken; the leader may be fenced.
        """
        with self._mutex:
            copy = self._open()
            self._source(self._client)  # before any leader is fenced: the replica may belong to another store
            leader = copy.following.leader or uuid4().hex
            if copy.following.leader is None:
                copy.mark(leader)
            promotion = Promotion(leader, copy.following.store_id, copy.state.leader_epoch)
            if copy.state.leader != leader:
                copy = self._taken_over(promotion, leader)
            else:  # an earlier promotion died after this
                promotion.look(self._places(copy), copy.state.leader_epoch)
            state = copy.state
            ends = {definition.name: _ends(copy, definition) for definition in state.tables.values()}
            copy.end_following()
            self._close()
            return Promoted(state.txid, state.leader_epoch, ends, promotion.unreached)

    @uninterrupted
    def close(self) -> None:
        """Stop following; the copy stays as it is."""
        with self._mutex:
            self._close()
            self._remove_former()

    def _remove_former(self) -> None:
        if self._was_rebuilt:
            replacement.remove_former(self.path, self._files)
            self._was_rebuilt = False

    @uninterrupted
    def _open(self) -> Copy:
        if self._copy is None:
            self._copy = Copy(self.path, self._options, self._files, self._clock)
        return self._copy

    def _close(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()

    def _pull(self) -> Pulled:
        copy, manifest_bytes = self._open(), read_manifest(self._client)
        pulled = Pulled(0, 0)
        if manifest_bytes != self._manifest_bytes:
            spool = Spool(self._client, self.path, copy.following.store_id, self._files)
            source = self._source(spool)
            spool.begin(source.manifest.leader_epoch)
            try:
                pulled = self._taken(copy, source)
            except BaseException as error:
                self._close()  # the next round starts from what is durable
                if isinstance(error, CorruptData):
                    spool.end()  # an object that is repaired keeps its name
                raise
            spool.end()
            self._manifest_bytes, self._manifest = manifest_bytes, source.manifest
        self._report_status(self._open())
        return pulled

    def _source(self, client: Client) -> Source:
        source = Source(client, self._progress)
        creation.check_store(source, self._open().following, self.path)
        return source

    def _taken(self, copy: Copy, source: Source) -> Pulled:
        state, manifest = copy.state, source.manifest
        if manifest.leader_epoch < state.leader_epoch:
            return Pulled(0, 0)  # from a leader that was replaced meanwhile
        if manifest.leader_epoch > state.leader_epoch:
            lacking = divergence_of(copy, source)
            if lacking > self._rollback_limit:
                raise Diverged(
                    "The replica's new leader lacks edits and changes that this copy has: to give them up, follow with"
                    " a higher rollback limit; to keep them, copy the directory first.",
                    path=self.path,
                    lacking=lacking,
                    rollback_limit=self._rollback_limit,
                )
            if lacking:
                return self._rebuilt(copy)
        if has_no_path(copy, source):
            return self._rebuilt(copy)
        path = source.path_from(CATALOG, state.txid, source.shipped(CATALOG).end)
        planner = Planner(source, copy.progress)
        planned = planner.plan(state, source.edits(path))
        for stream, end in planned.ends.items():
            needed = planner.path(stream, end)
            for name in ([needed.snapshot] if needed.snapshot is not None else []) + [
                piece.name for piece in needed.pieces
            ]:
                source.read(name)  # finds missing and damaged objects before the copy takes any
        return Pulled(len(planned.edits), copy.take(planned, source))

    def _rebuilt(self, copy: Copy) -> Pulled:
        self._copy = None
        with ExitStack() as stack:
            stack.callback(copy.close)  # last, because its lock keeps other processes from promoting it meanwhile
            copy.close_files()
            rebuilding = replacement.rebuilding(self.path)
            with refusals(self.path):
                planned = None
                if not (rebuilding / paths.STORE_FILE).exists():
                    planned = creation.create(
                        rebuilding, copy.following, self._client, self._files, self._clock, self._progress
                    )
                replacement.replace(self.path, self._files)
                self._was_rebuilt = True
        if planned is None:  # a process that died had rebuilt the copy: it is as of then
            return replace(self._pull(), rebuilt=True)
        return Pulled(len(planned.edits), sum(planned.ends.values()), rebuilt=True)

    def _warnings(self) -> Iterator[str]:
        if self._manifest is None:
            return
        lag = (self._clock.now_ms() - self._manifest.as_of_ms) / 1000
        if lag < -SKEW_SECONDS:
            yield f"The leader's clock is {-lag:.0f} s ahead of this machine's: set them right."
        if lag > LAG_SECONDS:
            yield (
                f"The leader has shipped nothing for {lag:.0f} s: see whether `kvstore replicate` runs there, and"
                " whether both clocks are right."
            )

    def _report_status(self, copy: Copy) -> None:
        """Put the status of the copy into the replica."""
        now = self._clock.monotonic()
        if self._reported is not None and now - self._reported < STATUS_SECONDS:
            return
        state = copy.state
        status = FollowerStatus(
            store_id=copy.following.store_id,
            name=copy.following.name,
            as_of_ms=self._clock.now_ms(),
            txid=state.txid,
            leader_epoch=state.leader_epoch,
            free_bytes=None,
            obstacle="A copy makes no image of the catalog for its leader.",
        )
        with suppress(Unavailable):  # nothing depends on it
            self._client.replace(follower_status.object_name(status.name), [follower_status.encode(status)])
            self._reported = now

    def _taken_over(self, promotion: Promotion, leader: str) -> Copy:
        """Take the leader's place, then take what it shipped; returns the copy with its catalog in the new epoch."""

        def catch_up() -> None:
            leadership.wait_for_lease_end()  # what is shipped meanwhile is taken
            self._pull()
            state = self._open().state
            if state.leader_epoch >= promotion.epoch:
                raise promotion.give_up(self._followed_replica(state))

        promotion.win(lambda: self._places(self._open()), catch_up)
        copy = self._open()
        if not promotion.has_claimed(self._followed_replica(copy.state)):
            raise Unavailable("The replica that the copy follows can't be reached; try again.", url=self.url)
        promotion.begin()
        state = copy.state
        ends = {id: _ends(copy, definition) for id, definition in state.tables.items()}
        edits = final_edits(state, ends, promotion.not_shipped_to, leader, promotion.epoch, self._clock.now_ms())
        copy.journal.replay(list(edits))
        return copy

    def _places(self, copy: Copy) -> Places:
        """All replicas in the copy's catalog, and the one that it follows if the catalog does not have it."""
        connections = {name: partial(self._connect, replica.url) for name, replica in copy.state.replicas.items()}
        return {**connections, self._followed_replica(copy.state): lambda: self._client}

    def _followed_replica(self, state: CatalogState) -> str:
        """The name of the replica that the copy follows; its URL if the catalog does not have it."""
        url = place_of(self._url)
        return next((name for name, replica in state.replicas.items() if place_of(replica.url) == url), self._url)


def _ends(copy: Copy, definition: TableDefinition) -> dict[int, int]:
    """The ends of a table's buckets."""
    return {int(stream.bucket): int(copy.bucket(stream).end) for stream in streams_of(definition)}
