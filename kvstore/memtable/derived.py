"""What reads have made of layers, such as their keys in order: once of each, since it changes no more by then."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

from kvstore.index.index import Layer
from kvstore.memtable.run import Run

Made: TypeAlias = dict[Hashable, Any]


class Derived:
    """What was made of the layers of one bucket; any thread may use it."""

    def __init__(self) -> None:
        self._known: Sequence[tuple[Layer, Made]] = ()

    @property
    def size(self) -> int:
        """About how many bytes of memory the runs take that were made."""
        return sum(each.size for _, made in self._known for each in made.copy().values() if isinstance(each, Run))

    def of(self, layers: Sequence[Layer]) -> Sequence[tuple[Layer, Made]]:
        """Each layer with what was made of it, to which may be added. What was made of other layers is forgotten."""
        known = self._known
        self._known = found = [
            next((each for each in known if each[0] is layer), None) or (layer, {}) for layer in layers
        ]
        return found

    def forget(self) -> None:
        """Forget everything."""
        self._known = ()
