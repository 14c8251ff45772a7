"""Layers: what keys have since a bucket's last merge, in dicts of which a newer one comes before the older ones.

Changes go into the newest dict, unless a view has been given it: then they begin a new one. So a view goes on to see
what it saw. Many values that come together are a layer of their own (a :class:`kvstore.memtable.run.Run`), which never
changes. Layers of about one size become one, so there are few of them. Layers that are being merged into the index are
frozen: they go away together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_LARGER = 2
"""A layer stays by itself while it is more than so many times as large as the newer one."""


MADE_BYTES = "bytes"
"""Of what reads have made of a layer: how many bytes of memory that takes."""


class Fixed(Protocol[K, V]):
    """A layer that never changes."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[K]: ...

    def get(self, key: K, /) -> V | None:
        """The value of a key, None if there is none."""

    def find_all(self, keys: list[K], /) -> list[V | None]:
        """The value of each key, None if there is none."""

    def items(self) -> Iterable[tuple[K, V]]:
        """All keys, each with its value."""

    def over(self, older: Layer[K, V], /) -> Fixed[K, V] | None:
        """These values, and those that only an older layer has; None if they are too large for one layer."""


Layer: TypeAlias = dict[K, V] | Fixed[K, V]


def newest(layers: Iterable[Layer[K, V]], keys: Sequence[K]) -> list[V | None] | None:
    """The value of each key, None if there is none; None if no key has one.

    Args:
        layers: The newest first.
    """
    found: list[V | None] | None = None
    for each in layers:
        values = list(map(each.get, keys)) if isinstance(each, dict) else each.find_all(list(keys))
        if values.count(None) < len(values):
            found = (
                values
                if found is None
                else [old if new is None else new for new, old in zip(found, values, strict=True)]
            )
    return found


class Layers(Generic[K, V]):
    """Values by key.

    Args:
        dicts: The newest first; dicts, or runs.
        frozen: How many of them, the oldest ones, change no more.
        made: See the attribute; None for nothing.

    Attributes:
        dicts: The argument.
        made: For each of them, what reads have made of it. One that a read has been given changes no more.
    """

    def __init__(
        self,
        dicts: tuple[Layer[K, V], ...] = (),
        frozen: int = 0,
        made: tuple[dict[Any, Any], ...] | None = None,
    ) -> None:
        self.dicts = dicts
        self.made = tuple({} for _ in dicts) if made is None else made
        self._frozen = frozen

    def __len__(self) -> int:
        return sum(map(len, self.dicts))

    def newest(self, keys: Sequence[K]) -> list[V | None] | None:
        """See :func:`newest`."""
        return newest(self.dicts, keys)

    def all(self) -> dict[K, V]:
        """The value of every key; not to be changed."""
        *newer, oldest = (each if isinstance(each, dict) else dict(each.items()) for each in self.dicts or ({},))
        for each in reversed(newer):
            oldest = oldest | each
        return oldest

    def added(self, values: dict[K, V], *, in_place: bool) -> Self:
        """These layers with the values of some keys.

        Args:
            values: Given away.
            in_place: Whether no view has these layers, so that they may change.
        """
        if in_place and len(self.dicts) > self._frozen and isinstance(newest := self.dicts[0], dict):
            newest.update(values)
            return self
        newest, older = values, list(self.dicts)
        while len(older) > self._frozen and isinstance(next := older[0], dict) and len(next) <= _LARGER * len(newest):
            newest = next | newest
            del older[0]
        return self._with(newest, older)

    def over(self, values: Fixed[K, V]) -> Self:
        """These layers, and over them a new one that changes no more."""
        older = list(self.dicts)
        while len(older) > self._frozen and len(older[0]) <= _LARGER * len(values):
            if (both := values.over(older[0])) is None:
                break
            values = both
            del older[0]
        return self._with(values, older)

    def _with(self, newest: Layer[K, V], older: Sequence[Layer[K, V]]) -> Self:
        made = self.made[len(self.made) - len(older) :]
        return type(self)((newest, *older), self._frozen, ({}, *made))

    def freeze(self) -> Self:
        """These layers, all of them frozen."""
        return type(self)(self.dicts, len(self.dicts), self.made)

    def without_frozen(self) -> Self:
        """These layers without those that are frozen."""
        count = len(self.dicts) - self._frozen
        return type(self)(self.dicts[:count], 0, self.made[:count])
