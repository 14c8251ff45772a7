"""Follows a replica: keeps a local copy of a store current, for readers; and has it take the leader's place.

* After each round the copy is the store as it was at a moment, so readers need know nothing of it.
* What the copy has and a new leader has not is taken back, up to a limit; beyond it, somebody has to decide.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self
from uuid import uuid4

from kvstore.calls import in_background, uninterrupted
from kvstore.checkpoint.room import available_memory, obstacle
from kvstore.clock import Clock
from kvstore.errors import Diverged, NotAStore, ReplicaBehind, Unavailable
from kvstore.files import Files, refusals
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.options import StoreOptions
from kvstore.replica import leadership as lead
from kvstore.replica.client import Client, ObjectStore, place_of
from kvstore.replica.follow.copy import Copy, create_copy, following_of
from kvstore.replica.follow.divergence import begins_behind, lacking_of
from kvstore.replica.follow.round import Planner, Round
from kvstore.replica.follow.spool import spooled
from kvstore.replica.image_worker import look_for_task
from kvstore.replica.promotion import Places, Promotion
from kvstore.replica.read.restore import make_room
from kvstore.replica.source import Source, what_was_told
from logformat import paths
from logformat.catalog.edits import BeginEpoch, Edit, EndCommit, Payload, ReportReplica, SetConsumer
from logformat.catalog.following_file import FollowingFile
from logformat.catalog.replicas import CATALOG, Shipped, Stream
from logformat.ids import BucketId, Epoch, Offset, Txid
from logformat.replica import follower_status
from logformat.replica.follower_status import FollowerStatus
from logformat.replica.manifest import ReplicaManifest
from logformat.urls import shown_url

ROLLBACK_LIMIT = 10
"""So many edits and changes of a former leader, that the new one lacks, are given up without asking."""
TELL_SECONDS = 60.0
"""How often who follows says in the replica how it is."""
LAG_SECONDS = 180
"""A leader says at least every 60 s up to where it has shipped."""
SKEW_SECONDS = 5
# Nobody else has directories of such names: they are removed.
_ANEW = ".kvstore-anew"
_BEFORE = ".kvstore-before"


@dataclass(frozen=True, slots=True)
class Pulled:
    """What one round brought.

    Attributes:
        edits: Of the catalog.
        changes: Of tables.
        anew: Whether the copy was made anew, because the replica or its leader was.
    """

    edits: int
    changes: int
    anew: bool = False

    def __bool__(self) -> bool:
        return bool(self.edits or self.changes or self.anew)


@dataclass(frozen=True, slots=True)
class FollowReport:
    """How a copy is.

    Attributes:
        url: Of the replica, without credentials.
        txid: The last edit it has.
        leader_epoch: Of the leader it follows.
        as_of_ms: What was published then, it has.
        warnings: What somebody should see to, a sentence each.
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
    """A copy that took its leader's place.

    Attributes:
        txid: The edit it goes on behind.
        leader_epoch: The epoch it leads in.
        ends: Of each table, for each bucket, the offset it goes on at.
        unreached: Replicas of its catalog that could not be reached, by name, and why not. A leader that reaches only
            those may still write, and so may another copy that follows one of them and is promoted.
    """

    txid: Txid
    leader_epoch: Epoch
    ends: dict[str, dict[int, int]]
    unreached: dict[str, str] = field(default_factory=dict)


class Follower:
    """A copy of a store that follows a replica; a context manager. Others read it meanwhile, nobody else writes it.

    Args:
        path: Directory of the copy; see :func:`begin`.
        rollback_limit: If a new leader lacks no more edits and changes than these, the copy gives them up.
        progress: Called with the bytes of each object once it is read.

    Raises:
        NotAStore: There is no such copy.
        StoreLocked: Another process follows with it.
        InvalidRequest: Nothing can be at the replica's URL.
        Unavailable: The directory that the replica is can't be reached.
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
        self.path = path.resolve()  # so that it has a name beside which another copy can be
        self._options = options
        self._files = files
        self._clock = clock
        self._rollback_limit = rollback_limit
        self._progress = progress
        self._mutex = threading.Lock()
        self._told_bytes = b""
        self._told: ReplicaManifest | None = None
        self._said: float | None = None
        self._copy: Copy | None = None
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
            Unavailable: The replica can't be reached, or has not all of it yet (ReplicaBehind); try again.
            MissingVersion: It has a hole; have it repaired where its leader is.
            CorruptData: An object is not what it should be; likewise.
            Diverged: The leader lacks more of what the copy has than the limit allows. Nothing was changed.
            NotAStore: The replica is of another store by now. Nothing was changed.
            StoreFull, LogFailed: The disk refuses; what was taken stays.
        """
        with self._mutex:
            return self._pull()

    def report(self) -> FollowReport:
        """How the copy is, by what was pulled last."""
        with self._mutex:
            state = self._open().state
            as_of_ms = self._told.as_of_ms if self._told is not None else 0
            return FollowReport(self.url, state.txid, state.leader_epoch, as_of_ms, list(self._warnings()))

    @uninterrupted
    def promote(self) -> Promoted:
        """Have the copy take its leader's place; it is closed then, and a store. Takes three seconds at least.

        A leader that reaches a replica that is not in ``unreached`` appends and ships nothing any more when this
        returns.

        Raises:
            WriterFenced: Another copy is about to, or fenced this one meanwhile. This one still follows; what it had
                claimed in replicas it reaches is removed.
            NotAStore: The replica is of another store by now. Nobody was fenced.
            Unavailable: The replica can't be reached.
            MissingVersion, CorruptData, Diverged: Not all that was shipped can be had; the leader may have been fenced.
        """
        with self._mutex:
            copy = self._open()
            self._source(self._client)  # nobody else's leader is fenced
            leader = copy.following.leader or uuid4().hex
            if copy.following.leader is None:
                copy.mark(leader)
            promotion = Promotion(leader, copy.following.store_id, copy.state.leader_epoch)
            if copy.state.leader != leader:
                copy = self._taken_over(promotion, leader)
            else:  # it died then
                promotion.look(self._places(copy), copy.state.leader_epoch)
            state = copy.state
            ends = {definition.name: dict(enumerate(_ends(copy, definition))) for definition in state.tables.values()}
            copy.end_following()
            self._close()
            return Promoted(state.txid, state.leader_epoch, ends, promotion.unreached)

    @uninterrupted
    def close(self) -> None:
        """Follow no more; the copy stays as it is."""
        with self._mutex:
            self._close()

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
        copy, told = self._open(), what_was_told(self._client)
        pulled = Pulled(0, 0)
        if told != self._told_bytes:
            with spooled(self._client, self.path) as client:
                source = self._source(client)
                try:
                    pulled = self._taken(copy, source)
                except BaseException:
                    self._close()  # the next round begins with what is durable
                    raise
            self._told_bytes, self._told = told, source.told
        copy = self._open()
        self._say(copy)
        with suppress(Unavailable):  # its leader asks again
            look_for_task(self._client, copy.following.name, self.path, copy.state, self._files, self._clock)
        return pulled

    def _source(self, client: Client) -> Source:
        source = Source(client, self._progress)
        _check_store(source, self._open().following, self.path)
        return source

    def _taken(self, copy: Copy, source: Source) -> Pulled:
        state, told = copy.state, source.told
        if told.leader_epoch < state.leader_epoch:
            return Pulled(0, 0)  # of a leader that was replaced meanwhile
        if told.leader_epoch > state.leader_epoch:
            lacking = lacking_of(copy, source)
            if lacking > self._rollback_limit:
                raise Diverged(
                    "The replica's new leader lacks edits and changes that this copy has: to give them up, follow with"
                    " a higher rollback limit; to keep them, copy the directory first.",
                    path=self.path,
                    lacking=lacking,
                    rollback_limit=self._rollback_limit,
                )
            if lacking:
                return self._made_anew(copy)
        if begins_behind(copy, source):
            return self._made_anew(copy)
        way = source.way_from(CATALOG, state.txid, source.shipped(CATALOG).end)
        planner = Planner(source, copy.has)
        planned = planner.plan(state, source.edits(way))
        for stream, end in planned.ends.items():
            for piece in planner.way(stream, end).pieces:
                source.read(piece.name)  # what can't be had is found out before anything is taken
        return Pulled(len(planned.edits), copy.take(planned, source))

    def _made_anew(self, copy: Copy) -> Pulled:
        self._copy = None
        with ExitStack() as stack:
            stack.callback(copy.close)  # last: else it could be promoted, and then go
            copy.shut()
            fresh, before = (self.path.with_name(self.path.name + suffix) for suffix in (_ANEW, _BEFORE))
            with refusals(self.path):
                self._files.remove_tree(fresh)
                self._files.remove_tree(before)
                planned = begin(fresh, copy.following, self._client, self._files, self._clock, self._progress)
                self._files.rename(self.path, before)
                self._files.rename(fresh, self.path)
                self._files.sync_directory(self.path.parent)
                self._files.remove_tree(before)
        return Pulled(len(planned.edits), sum(planned.ends.values()), anew=True)

    def _warnings(self) -> Iterator[str]:
        if self._told is None:
            return
        behind = (self._clock.now_ms() - self._told.as_of_ms) / 1000
        if behind < -SKEW_SECONDS:
            yield f"The leader's clock is {-behind:.0f} s ahead of this machine's: set them right."
        if behind > LAG_SECONDS:
            yield (
                f"The leader has shipped nothing for {behind:.0f} s: see whether `kvstore replicate` runs there, and"
                " whether both clocks are right."
            )

    def _say(self, copy: Copy) -> None:
        """Have it known in the replica how the copy is."""
        now = self._clock.monotonic()
        if self._said is not None and now - self._said < TELL_SECONDS:
            return
        state, found = copy.state, obstacle(self.path)
        status = FollowerStatus(
            store_id=copy.following.store_id,
            name=copy.following.name,
            as_of_ms=self._clock.now_ms(),
            txid=state.txid,
            leader_epoch=state.leader_epoch,
            free_bytes=available_memory(),
            obstacle=None if found is None else str(found),
        )
        with suppress(Unavailable):  # nothing depends on it
            self._client.replace(follower_status.object_name(status.name), [follower_status.encode(status)])
            self._said = now

    def _taken_over(self, promotion: Promotion, leader: str) -> Copy:
        """Take the leader's place, then what it shipped; the copy with its catalog in the new epoch."""

        def catch_up() -> None:
            lead.let_pass()  # what is shipped meanwhile is taken
            self._pull()
            state = self._open().state
            if state.leader_epoch >= promotion.epoch:
                raise promotion.give_up(self._place_followed(state))

        promotion.win(lambda: self._places(self._open()), catch_up)
        copy = self._open()
        followed = self._place_followed(copy.state)
        if not promotion.has(followed):
            raise Unavailable("The replica that the copy follows can't be reached; try again.", url=self.url)
        promotion.begin()
        copy.journal.replay(list(self._last_words(copy, promotion, leader)))
        return copy

    def _places(self, copy: Copy) -> Places:
        """All replicas that the copy's catalog knows, and the one it follows if that is another one."""
        known = {name: partial(self._connect, replica.url) for name, replica in copy.state.replicas.items()}
        return {**known, self._place_followed(copy.state): lambda: self._client}

    def _place_followed(self, state: CatalogState) -> str:
        """The name of the replica that the copy follows; its URL if the catalog does not know it."""
        url = place_of(self._url)
        return next((name for name, replica in state.replicas.items() if place_of(replica.url) == url), self._url)

    def _last_words(self, copy: Copy, promotion: Promotion, leader: str) -> Iterator[Edit]:
        now_ms, state = self._clock.now_ms(), copy.state
        last: list[Payload] = []
        for id, writers in state.writers.items():
            # No bucket has it, or all.
            last += [EndCommit(table_id=id, commit_id=commit.commit_id) for commit in writers.commits]
        for id, consumers in state.consumers.items():
            # Who has read what is not here would pass over what is written in its place.
            ends = _ends(copy, state.tables[id])
            for name, consumer in consumers.named.items():
                places = [Offset(min(at, end)) for at, end in zip(consumer.offsets, ends, strict=True)]
                if places != list(consumer.offsets):
                    last.append(SetConsumer(table_id=id, name=name, offsets=places, until_ms=consumer.until_ms))
        # A leader takes a replica with another's objects for a wrong place, unless its catalog says that something was
        # shipped there; and a copy may lack the report of that.
        for name, replica in state.replicas.items():
            if name not in promotion.not_shipped_to and not replica.shipped:
                nothing = Shipped(stream=CATALOG, start=0, end=0, snapshots=[])
                last.append(ReportReplica(name=name, shipped=[nothing]))
        for number, payload in enumerate(last, 1):
            yield Edit(txid=Txid(state.txid + number), epoch=state.leader_epoch, time_ms=now_ms, payload=payload)
        begins = BeginEpoch(leader=leader)
        yield Edit(txid=Txid(state.txid + len(last) + 1), epoch=promotion.epoch, time_ms=now_ms, payload=begins)


def _ends(copy: Copy, definition: TableDefinition) -> list[int]:
    """Of the buckets of a table."""
    return [int(copy.bucket(Stream(definition.id, BucketId(bucket))).end) for bucket in range(definition.buckets)]


def _check_store(source: Source, following: FollowingFile, path: Path) -> None:
    if source.store.store_id != following.store_id:
        raise NotAStore("The replica is of another store by now.", path=path, of=source.store.store_id)


@uninterrupted
def begin(
    path: Path,
    following: FollowingFile,
    client: Client,
    files: Files,
    clock: Clock,
    progress: Callable[[int], None] = lambda _: None,
) -> Round:
    """Make a copy in a directory that is new or empty, or has what an earlier try left.

    Raises:
        NotAStore: There is something else, or no replica of this store.
        ReplicaBehind, MissingVersion, CorruptData: It can't be made of what the replica has.
        Unavailable: The replica can't be reached.
        StoreFull, LogFailed: The disk refuses.
    """
    source = Source(client, progress)
    _check_store(source, following, path)
    way, base = source.way(CATALOG, source.shipped(CATALOG).end), CatalogState()
    if way.snapshot is not None:
        _, base = source.image(way.snapshot)
    planned = Planner(source, lambda _: None).plan(base, source.edits(way))
    if not planned.edits:
        raise ReplicaBehind("The replica has no edit behind its image of the catalog yet; try again.")
    with refusals(path):
        _clear(path, files)
        make_room(path, files)
        create_copy(path, following, planned, source, files, clock)
    return planned


def _clear(path: Path, files: Files) -> None:
    """Remove what is left of a copy that did not come to be, if that is what is there; what says so goes last."""
    meta = path / paths.FOLLOWING.parent
    if (path / paths.STORE_FILE).exists() or not meta.is_dir():
        return
    first = {paths.FOLLOWING.name + paths.TEMPORARY}
    is_begun = [each.name for each in path.iterdir()] == [meta.name] and {each.name for each in meta.iterdir()} <= first
    if not is_begun and not (path / paths.FOLLOWING).exists():
        return
    for other in [*path.iterdir(), *meta.iterdir()]:
        if other not in (meta, path / paths.FOLLOWING):
            files.remove_tree(other) if other.is_dir() else files.remove(other)
    files.remove_tree(meta)
