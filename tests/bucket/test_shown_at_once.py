"""What other processes are shown, a read of the writing process does not miss."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import kvstore
from kvstore.log.published import EndPublisher

READS: dict[str, Callable[[kvstore.Table], object]] = {
    "get": lambda table: table.get(1),
    "lookup": lambda table: table.lookup([1]).drop_columns("_found").to_pylist()[0],
    "scan": lambda table: table.scan().read_all().to_pylist()[0],
    "changelog": lambda table: {
        name: value for name, value in table.changelog().read_all().to_pylist()[-1].items() if name in "kv"
    },
}


@pytest.mark.parametrize("read", READS)
def test_a_read_waits_until_both_are_shown(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, read: str) -> None:
    table = store.create_table("t", {"k": "int64", "v": "int64"}, "k")
    table.upsert({"k": 1, "v": 1})
    shown, go_on = threading.Event(), threading.Event()
    publish = EndPublisher.publish

    def paused(publisher: EndPublisher, offset: int) -> None:
        publish(publisher, offset)
        shown.set()
        assert go_on.wait(60)

    with monkeypatch.context() as patched:
        patched.setattr(EndPublisher, "publish", paused)
        found: list[object] = []
        writing = threading.Thread(target=lambda: table.upsert({"k": 1, "v": 2}))
        reading = threading.Thread(target=lambda: found.append(READS[read](table)))
        writing.start()
        assert shown.wait(60)
        reading.start()
        reading.join(0.3)
        go_on.set()
        for thread in (writing, reading):
            thread.join(60)
    assert found == [{"k": 1, "v": 2}]
