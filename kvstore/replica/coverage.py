"""Finds the path of ranges from a snapshot to an offset, and holes. Pure; reads and checks use the same code.

* Ranges may overlap; of overlapping ranges the one that reaches furthest is used.
* Where a later leader starts, ranges of earlier leaders end: they may belong to another history.
* Lag is no hole: offsets that were never shipped are not missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from logformat.catalog.replicas import Shipped
from logformat.replica.object_file import ObjectName


@dataclass(frozen=True, slots=True)
class Piece:
    """A range, of which the offsets before ``until`` are used."""

    name: ObjectName
    until: int


@dataclass(frozen=True, slots=True)
class ShippedPath:
    """A snapshot and ranges that lead to an offset.

    Attributes:
        start: The offset at which the ranges start.
        snapshot: Has everything before ``start``; None if there is nothing before it, or the reader has it.
        pieces: Consecutive ranges from ``start``, in order.
    """

    start: int
    snapshot: ObjectName | None
    pieces: list[Piece]


def path_to(
    end: int, shipped: Shipped, objects: Iterable[ObjectName], *, newest_before: int | None = None
) -> ShippedPath | None:
    """The path to an offset that starts earliest; None if there is none.

    Args:
        shipped: What was shipped of the stream; a path starts at its start or at one of its snapshots.
        objects: Objects of the stream.
        newest_before: If given, the path that starts latest, but not after this offset; the one that starts earliest
            if all start after it.
    """
    objects = list(objects)
    pieces = _pieces(objects)
    starts = sorted({shipped.start, *shipped.snapshots})
    if newest_before is not None:
        starts.sort(key=lambda start: (start > newest_before, -start if start <= newest_before else start))
    for start in starts:
        named = [each for each in objects if each.kind == "snapshot" and each.start == start]
        if start > end or (start and not named):
            continue
        chosen = list(_chain(start, end, pieces))
        if (chosen[-1].until if chosen else start) >= end:
            return ShippedPath(start, max(named, key=lambda each: each.epoch) if start else None, chosen)
    return None


def path_from(start: int, end: int, objects: Iterable[ObjectName]) -> ShippedPath:
    """The path from one offset towards another, as far as there is one.

    Args:
        objects: Objects of the stream.
    """
    return ShippedPath(start, None, list(_chain(start, end, _pieces(list(objects)))))


def reached(shipped: Shipped, objects: Iterable[ObjectName]) -> int:
    """The end of the path from the start of what was shipped."""
    chosen = list(_chain(shipped.start, shipped.end, _pieces(list(objects))))
    return chosen[-1].until if chosen else shipped.start


def holes(shipped: Shipped, objects: Iterable[ObjectName]) -> Iterator[tuple[int, int]]:
    """Shipped offsets that no range has: pairs of start, inclusive, and end, exclusive."""
    at = shipped.start
    for piece in _pieces(list(objects)):
        if at >= shipped.end:
            return
        if piece.name.start > at:
            yield at, min(piece.name.start, shipped.end)
        at = max(at, piece.until)
    if at < shipped.end:
        yield at, shipped.end


def _pieces(objects: list[ObjectName]) -> list[Piece]:
    """Ranges in order, each up to the start of the first later leader."""
    begins: dict[int, int] = {}
    for each in objects:
        begins[each.epoch] = min(each.start, begins.get(each.epoch, each.start))
    epochs = sorted(begins)
    # For each epoch the first start of a later one; a shared table has an epoch for each range.
    ends = [*accumulate((begins[epoch] for epoch in reversed(epochs[1:])), min)][::-1]
    first_later = dict(zip(epochs, ends, strict=False))
    pieces = []
    for each in sorted(each for each in objects if each.kind == "range"):
        until = min(each.end, first_later.get(each.epoch, each.end))
        if until > each.start:
            pieces.append(Piece(each, until))
    return pieces


def _chain(start: int, end: int, pieces: list[Piece]) -> Iterator[Piece]:
    """Ranges from an offset on; at each step the one that reaches furthest."""
    at, nth = start, 0
    while at < end:
        furthest: Piece | None = None
        while nth < len(pieces) and pieces[nth].name.start <= at:
            if pieces[nth].until > at and (furthest is None or pieces[nth].until > furthest.until):
                furthest = pieces[nth]
            nth += 1
        if furthest is None:
            return
        yield furthest
        at = furthest.until
