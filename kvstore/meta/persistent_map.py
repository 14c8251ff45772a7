"""Mappings that are never changed: another entry makes another mapping, which shares nearly all memory with this one.

* Copying a dict for each edit of the catalog would take time in proportion to its entries: n edits, n² steps.
* Entries lie in small dicts, the leaves of a tree by the hash of the key; a change copies the leaf and the path to it.
* The order of entries means nothing. It is the same in every process that made the same changes, though: text has
  another hash in each process, so its checksum is used.
"""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator, Mapping, ValuesView
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, cast
from zlib import crc32

_BITS = 5
_WIDTH = 1 << _BITS
_LEAF_MAX = 16
"""A leaf with more entries becomes a branch."""
_SHIFT_MAX = 60
"""A leaf this deep takes all keys of its hash."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Node: TypeAlias = "dict[Any, Any] | tuple[Node, ...]"


class PersistentMap(Mapping[K, V]):
    """A mapping that is never changed.

    Args:
        given: The first entries.
    """

    __slots__ = ("_count", "_root")

    def __init__(self, given: Mapping[K, V] | None = None) -> None:
        self._root = _node(dict(given or {}), 0)
        self._count = len(given or {})

    def put(self, key: K, value: V) -> Self:
        """The mapping with this entry."""
        return self._changed(_with(self._root, 0, _hash(key), key, value), self._count + (key not in self))

    def without(self, key: K) -> Self:
        """The mapping without this key, which need not be there."""
        return self._changed(_without(self._root, _hash(key), key), self._count - 1) if key in self else self

    def _changed(self, root: Node, count: int) -> Self:
        made = object.__new__(type(self))
        made._root, made._count = root, count
        return made

    def __getitem__(self, key: K) -> V:
        node = self._root
        if isinstance(node, tuple):
            bits = _hash(key)
            while isinstance(node, tuple):
                node, bits = node[bits % _WIDTH], bits >> _BITS
        value: V = node[key]
        return value

    def get(self, key: object, default: Any = None) -> Any:
        """The value of a key, or a default."""
        try:
            return self[cast("K", key)] if isinstance(self._root, tuple) else self._root.get(key, default)
        except KeyError:
            return default

    def __contains__(self, key: object) -> bool:
        return self.get(key, self) is not self

    def __iter__(self) -> Iterator[K]:
        return iter(self._as_dict())

    def items(self) -> ItemsView[K, V]:
        """All entries."""
        return self._as_dict().items()

    def values(self) -> ValuesView[V]:
        """All values."""
        return self._as_dict().values()

    def _as_dict(self) -> dict[K, V]:
        pairs: dict[K, V] = {}
        _collect(self._root, pairs)
        return pairs

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return self is other or (len(self) == len(other) and self._as_dict() == dict(other))

    def __repr__(self) -> str:
        return repr(self._as_dict())


class IndexedMap(PersistentMap[K, V]):
    """A mapping that also finds the key of a value by one of its attributes.

    No two values share it, but after a repair that had to leave edits out: then one of them is found.
    """

    __slots__ = ("_found",)
    attribute: ClassVar[str]

    def __init__(self, given: Mapping[K, V] | None = None) -> None:
        super().__init__(given)
        self._found = PersistentMap({self._attribute_of(value): key for key, value in (given or {}).items()})

    def found(self, attribute: Hashable) -> K | None:
        """The key of the value that has this attribute; None if there is none."""
        return self._found.get(attribute)

    def put(self, key: K, value: V) -> Self:
        """The mapping with this entry."""
        before = self.without(key)
        made = super(IndexedMap, before).put(key, value)
        made._found = before._found.put(self._attribute_of(value), key)
        return made

    def without(self, key: K) -> Self:
        """The mapping without this key, which need not be there."""
        if key not in self:
            return self
        attribute = self._attribute_of(self[key])
        made = super().without(key)
        made._found = self._found.without(attribute) if self.found(attribute) == key else self._found
        return made

    def _attribute_of(self, value: V) -> Hashable:
        return cast("Hashable", attrgetter(self.attribute)(value))


def _hash(key: Any) -> int:
    return crc32(key.encode("utf-8", "surrogatepass")) if isinstance(key, str) else hash(key)


def _node(entries: dict[Any, Any], shift: int) -> Node:
    if len(entries) <= _LEAF_MAX or shift > _SHIFT_MAX:
        return entries
    parts: list[dict[Any, Any]] = [{} for _ in range(_WIDTH)]
    for key, value in entries.items():
        parts[(_hash(key) >> shift) % _WIDTH][key] = value
    return tuple(_node(part, shift + _BITS) for part in parts)


def _with(node: Node, shift: int, bits: int, key: Any, value: Any) -> Node:
    if isinstance(node, dict):
        return _node({**node, key: value}, shift)
    at = bits % _WIDTH
    return (*node[:at], _with(node[at], shift + _BITS, bits >> _BITS, key, value), *node[at + 1 :])


def _without(node: Node, bits: int, key: Any) -> Node:
    if isinstance(node, dict):
        return {each: value for each, value in node.items() if each != key}
    at = bits % _WIDTH
    return (*node[:at], _without(node[at], bits >> _BITS, key), *node[at + 1 :])


def _collect(node: Node, into: dict[Any, Any]) -> None:
    if isinstance(node, dict):
        into.update(node)
    else:
        for each in node:
            _collect(each, into)
