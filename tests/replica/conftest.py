"""Promotions that do not take their time."""

from __future__ import annotations

import pytest

from kvstore.replica import leadership


@pytest.fixture(autouse=True)
def _short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "LEASE_SECONDS", 0.05)
    monkeypatch.setattr(leadership, "WAIT_SECONDS", 60.0)  # however slow the machine is
