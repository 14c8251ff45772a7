"""The version check: is there a path of ranges from a snapshot to an offset? Pure; readers and reports use the same.

* Ranges may overlap; where two meet, the one that reaches further goes on.
* Where a later leader begins, what those before it shipped is over: it may be another history.
* Merely to be behind is no gap: what the replica was never told is not missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from logformat.catalog.replicas import Shipped
from logformat.replica.object_file import ObjectName


@dataclass(frozen=True, slots=True)
class Piece:
    """A range, as far as it counts: the offsets before ``until``."""

    name: ObjectName
    until: int


@dataclass(frozen=True, slots=True)
class ShippedPath:
    """What takes a reader to an offset.

    Attributes:
        start: The offset it begins at.
        snapshot: With everything before that; None if there is nothing, or the reader has it.
        pieces: Ranges behind it, in their order.
    """

    start: int
    snapshot: ObjectName | None
    pieces: list[Piece]


def path_to(end: int, told: Shipped, objects: Iterable[ObjectName]) -> ShippedPath | None:
    """The path to an offset that begins earliest; None if there is none.

    Args:
        told: What the replica was told of the track: a path begins with what it was told.
        objects: Those of the track.
    """
    objects = list(objects)
    pieces = _pieces(objects)
    for start in sorted({told.start, *told.snapshots}):
        named = [each for each in objects if each.kind == "snapshot" and each.start == start]
        if start > end or (start and not named):
            continue
        chosen = list(_chain(start, end, pieces))
        if (chosen[-1].until if chosen else start) >= end:
            return ShippedPath(start, max(named, key=lambda each: each.epoch) if start else None, chosen)
    return None


def path_from(start: int, end: int, objects: Iterable[ObjectName]) -> ShippedPath:
    """The path from an offset towards another, as far as there is one.

    Args:
        objects: Those of the track.
    """
    return ShippedPath(start, None, list(_chain(start, end, _pieces(list(objects)))))


def reached(told: Shipped, objects: Iterable[ObjectName]) -> int:
    """How far the path from what was told first goes."""
    chosen = list(_chain(told.start, told.end, _pieces(list(objects))))
    return chosen[-1].until if chosen else told.start


def holes(told: Shipped, objects: Iterable[ObjectName]) -> Iterator[tuple[int, int]]:
    """What a replica was told and no range holds: offsets from, and before which."""
    at = told.start
    for piece in _pieces(list(objects)):
        if at >= told.end:
            return
        if piece.name.start > at:
            yield at, min(piece.name.start, told.end)
        at = max(at, piece.until)
    if at < told.end:
        yield at, told.end


def _pieces(objects: list[ObjectName]) -> list[Piece]:
    """Ranges in order, each up to where a later leader begins."""
    begins: dict[int, int] = {}
    for each in objects:
        begins[each.epoch] = min(each.start, begins.get(each.epoch, each.start))
    found = []
    for each in sorted(each for each in objects if each.kind == "range"):
        until = min([each.end, *(start for epoch, start in begins.items() if epoch > each.epoch)])
        if until > each.start:
            found.append(Piece(each, until))
    return found


def _chain(start: int, end: int, pieces: list[Piece]) -> Iterator[Piece]:
    """Ranges from an offset on, each the one that reaches furthest."""
    at, place = start, 0
    while at < end:
        furthest: Piece | None = None
        while place < len(pieces) and pieces[place].name.start <= at:
            if pieces[place].until > at and (furthest is None or pieces[place].until > furthest.until):
                furthest = pieces[place]
            place += 1
        if furthest is None:
            return
        yield furthest
        at = furthest.until
