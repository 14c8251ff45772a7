"""Commits of few rows in one thread, several at once: one edit of the catalog, and one sync, decides all of them.

* This process writes all buckets of the tables, so only its own threads could disturb it. The thread has the turns of
  all buckets meanwhile.
* What is unusual is left to :func:`kvstore.commit.parts.apply_together`: a batch that is refused, or was applied
  before, rows that are too long for an edit, and a bucket that does something else. Nothing was written then.
* The logs are not synced before the answer; see :mod:`kvstore.commit.ends`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kvstore.bucket.committer import Committer
from kvstore.bucket.write_path import Applied
from kvstore.commit.ends import End, OpenEnds
from kvstore.commit.parts import TablePart
from kvstore.errors import StoreError
from kvstore.meta.state import CatalogState
from kvstore.request.results import WriteResult
from logformat.catalog.edits import BeginCommit, EndCommit
from logformat.ids import BucketId

TURN_SECONDS = 1.0
"""How long a commit of few rows waits for a bucket that does something else, before it queues like others."""
TURN_SECONDS_UNDISTURBED = 0.02
"""The same while Ctrl-C waits for it."""

Committers: TypeAlias = Sequence[Mapping[BucketId, Committer]]
"""Of all buckets of each table."""


@dataclass(frozen=True, slots=True)
class SmallCommit:
    """A commit of few rows.

    Attributes:
        parts: What it has for each table, in order.
        confirm: Called with the committers while no bucket is written, before it is decided; returns why it can't take
            place. It must not ask the handles of the buckets: they may wait for this thread, to hand a bucket over.
    """

    parts: Sequence[TablePart]
    confirm: Callable[[Committers], Exception | None]


Outcome: TypeAlias = list[WriteResult] | Exception
_AppliedParts: TypeAlias = list[dict[BucketId, Applied]]


class _IsUnusual(Exception):
    """A batch is refused, or was applied before."""


def apply_here(
    commits: Sequence[SmallCommit], committers: Committers, ends: OpenEnds, seconds: float = TURN_SECONDS
) -> list[Outcome] | None:
    """Apply commits to the same tables in this thread, each all or nothing, in this order.

    Args:
        committers: This process writes all of these buckets.
        seconds: How long to wait for a bucket that does something else.

    Returns:
        The results of each commit, or why it did not take place: then nothing of it was written, unless the error has
        ``committed``. None if all of it is left to :func:`kvstore.commit.parts.apply_together`; nothing was written.
    """
    begun: list[Committer] = []
    decided = False
    outcomes: list[Outcome] = []
    applied: dict[int, _AppliedParts] = {}
    failed: StoreError | None = None
    try:
        for committer in (each for by_bucket in committers for each in by_bucket.values()):
            if not committer.begin_parts(seconds):
                return None
            begun.append(committer)
        for number, commit in enumerate(commits):
            why = commit.confirm(committers)
            outcomes.append([] if why is None else why)
            if why is None:
                if not all(part.stage_in_edit() for part in commit.parts):
                    return None
                applied[number] = [_applied(*each) for each in zip(commit.parts, committers, strict=True)]
        if applied:
            new = [part for number in applied for part in commits[number].parts]
            _journal(new, ends)
            decided = True
    except _IsUnusual:
        return None
    except StoreError as error:
        failed = error
    finally:
        for committer in begun:
            try:
                committer.end_parts(decided=decided)
            except StoreError as error:
                error.where["committed"] = True
                failed = failed or error
    if failed is not None:
        refused = [each if isinstance(each, Exception) else failed for each in outcomes]
        return [*refused, *[failed] * (len(commits) - len(refused))]
    for number, parts in applied.items():
        outcomes[number] = [WriteResult({bucket: each.result for bucket, each in part.items()}) for part in parts]
        for part, by_bucket, table in zip(commits[number].parts, parts, committers, strict=True):
            logs = [(table[bucket], each.batch.next_offset) for bucket, each in by_bucket.items() if each.batch]
            ends.add(part.end, logs)
    return outcomes


def _applied(part: TablePart, committers: Mapping[BucketId, Committer]) -> dict[BucketId, Applied]:
    applied = {}
    for bucket, request in part.requests.items():
        try:
            applied[bucket] = committers[bucket].apply_part(request)
        except StoreError as error:
            raise _IsUnusual from error
        if applied[bucket].batch is None:
            raise _IsUnusual
    return applied


def _journal(new: Sequence[TablePart], ends: OpenEnds) -> None:
    """Decide commits, and end those before them that can end."""
    due: list[End] = []

    def decide(state: CatalogState) -> list[BeginCommit | EndCommit]:
        ends.put_back(due)
        due[:] = ends.take(state)
        return [*(each.edit(state) for each in due), *(part.begun(state) for part in new)]

    try:
        new[0].journal.append(decide)
    except StoreError:
        ends.put_back(due)
        raise
    ends.ended(due)
