"""Objects of a process that dies."""

from __future__ import annotations

from collections.abc import Sequence

from tests.replica.objects import Objects


class Dies(Exception):
    """The process dies."""


class Dying(Objects):
    """Objects of a process that dies at one of its changes, before or after it."""

    def __init__(self, held: dict[str, bytes], changes: int, *, after: bool) -> None:
        super().__init__(held)
        self._left, self._after = changes, after

    def _step(self) -> None:
        self._left -= not self._after
        if self._left <= 0:
            raise Dies

    def _stepped(self) -> None:
        self._left -= self._after
        if self._left <= 0:
            raise Dies

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        self._step()
        made = super().create(name, pieces)
        self._stepped()
        return made

    def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
        self._step()
        super().replace(name, pieces)
        self._stepped()

    def delete(self, name: str) -> None:
        self._step()
        super().delete(name)
        self._stepped()
