"""``kvstore serve`` owns the buckets of a store, so that all others send to it, until it is ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import kvstore
from kvstore.cli.serve import own
from tests.cli.commands import process
from tests.support.waiting import wait_until


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_others_send_to_it_until_it_is_ended(store_path: Path, end: signal.Signals) -> None:
    with kvstore.open(store_path) as store:
        store.create_table("t", {"k": "int64", "v": "string"}, primary_key="k", buckets=2)
    with process("serve", store_path, buffered=False) as served, kvstore.open(store_path) as store:
        assert served.stdout.readline().startswith(f"owns the buckets of {store_path}; Ctrl-C")
        with process("serve", store_path, buffered=False) as second:
            assert "as soon as other processes give them up: 2 of them;" in second.stdout.readline()
            second.send_signal(end)
            assert second.wait() == 0
        table = store.table("t")
        rows = [{"k": k, "v": "sent"} for k in range(20)]
        table.upsert(rows)
        handles = [table.bucket(number).handle for number in range(2)]
        assert not any(handle.writes for handle in handles)
        other = store.create_table("later", {"k": "int64"}, primary_key="k")
        wait_until(other.bucket(0).handle.is_owned_elsewhere)
        served.send_signal(end)
        assert served.wait() == 0
        table.upsert({"k": 20, "v": "own"})
        assert any(handle.writes for handle in handles)
        assert len(table) == 21
        assert store.check()


def test_a_table_that_another_process_drops_is_passed_over(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [store.create_table(name, {"k": "int64"}, primary_key="k").name for name in ("a", "b", "c")]
    store.drop_table("b")
    monkeypatch.setattr(kvstore.Store, "list_tables", lambda _: names)  # as it was a moment ago
    assert own(store) == 0
    assert [store[name].bucket(0).handle.writes for name in "ac"] == [True, True]
