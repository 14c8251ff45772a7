"""A reader that follows a changelog in a thread of its own, and how often such readers have looked."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from kvstore.read import follow
from kvstore.read.follow import Waits
from tests.support.waiting import wait_until


class Following(threading.Thread):
    """Collects changes in its own thread."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        super().__init__(daemon=True)
        self._batches = batches
        self.taken: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for batch in self._batches:
                assert batch.num_rows
                self.taken += batch.to_pylist()
        except BaseException as error:
            self.error = error

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.taken) >= count or not self.is_alive())

    def ended(self) -> list[dict[str, Any]]:
        self.join(600)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.taken


class Polls:
    """Counts how often each thread that follows has looked and found nothing; they look often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._found_nothing: Counter[int | None] = Counter()
        wait = Waits.wait

        def counted(waits: Waits) -> None:
            self._found_nothing[threading.get_ident()] += 1
            wait(waits)

        monkeypatch.setattr(Waits, "wait", counted)
        monkeypatch.setattr(follow, "WATCHED_SECONDS_MAX", follow.PAUSE_SECONDS_MAX)

    def wait_for_more(self, *followers: Following) -> None:
        """Wait until each of these has looked five times more in vain."""
        before = self._found_nothing.copy()
        wait_until(lambda: all(self._found_nothing[each.ident] >= before[each.ident] + 5 for each in followers))


def changes(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    """All changes of some batches."""
    return [change for batch in batches for change in batch.to_pylist()]
