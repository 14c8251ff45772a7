"""Objects of a shared table that count what is asked of them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.replica.objects import Objects


class Counted(Objects):
    """Objects that count what is asked of them: requests, and names in answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        self.asked.append("list")
        for found in super().list(prefix, after):
            self.asked.append("name")
            yield found

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        self.asked.append("get")
        return super().get(name, bytes_max=bytes_max)
