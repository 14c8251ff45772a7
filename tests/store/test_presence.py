"""That a process is there, shown by several of its threads at once."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.disk.lock import Presence
from tests.support.waiting import ends_or_waits


@pytest.mark.parametrize("first", [Presence.release, Presence.others], ids=["one leaves", "one asks"])
def test_leaving_does_not_take_the_file_from_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Callable[[Presence], object]
) -> None:
    presence, flock = Presence(tmp_path / "writing"), fcntl.flock
    failures: list[BaseException] = []

    def leave() -> None:
        try:
            presence.release()
        except BaseException as error:
            failures.append(error)

    other = threading.Thread(target=leave)

    def while_another_leaves(descriptor: int, kind: int) -> None:
        if other.ident is None:
            other.start()
            ends_or_waits(other)
        flock(descriptor, kind)

    presence.show()
    monkeypatch.setattr(fcntl, "flock", while_another_leaves)
    first(presence)
    other.join()
    assert not failures
    assert not Presence(tmp_path / "writing").others()
    presence.show()
    assert Presence(tmp_path / "writing").others()
    presence.release()
