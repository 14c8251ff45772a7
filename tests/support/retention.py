"""A table whose changes expire, compared with a model of what it has to keep."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from kvstore.bucket import maintenance as maintenance
from kvstore.bucket.maintenance import Maintenance
from kvstore.errors import OffsetOutOfRange
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from tests.support.clocks import SetClock
from tests.support.disks import FailingDisk
from tests.support.indexes import files_in
from tests.support.table_machines import TableMachine
from tests.support.tables import changes_of, rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])


HOUR = dt.timedelta(hours=1)


HOUR_MS = 3_600_000


class Kept:
    """A store with a settable clock, whose retention runs only on request."""

    def __init__(self, path: Path, retention: dt.timedelta | None = HOUR, **options: Any) -> None:
        self.path = path
        self.clock = SetClock()
        self.disk = FailingDisk()
        self.options = StoreOptions(**{"segment_bytes_max": 1000} | options)
        self.open()
        self.table = self.store.create_table("t", SCHEMA, "k", retention=retention)

    def open(self) -> None:
        self.store = Store(self.path, self.options, files=self.disk, clock=self.clock)
        if self.store.list_tables():
            self.table = self.store.table("t")

    def write(self, batches: int = 6) -> None:
        for number in range(batches):
            self.table.upsert([{"k": k, "v": f"{number}" * 20} for k in range(3)])

    def retain(self) -> None:
        self.table.bucket(0).handle.retain()

    @property
    def start(self) -> int:
        return self.table.offsets()[0][0]

    @property
    def end(self) -> int:
        return self.table.offsets()[0][1]

    def last_base(self) -> int:
        return max(int(name.split(".")[0]) for name in files_in(self.path, "log"))


class RetentionMachine(TableMachine):
    """The log expires after ten milliseconds of a settable clock; everything kept agrees with the model."""

    segment_bytes_max = 700

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock()
        self._patches = [patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0)]
        for each in self._patches:
            each.start()

    @initialize()
    def create(self) -> None:
        self._open()
        retention = dt.timedelta(milliseconds=10)
        self.table = self.store.create_table("t", self.schema, primary_key=list(self.key), retention=retention)

    @rule(ms=st.sampled_from([1, 20]))
    def time_passes(self, ms: int) -> None:
        self.clock.now += ms

    @rule()
    def retain(self) -> None:
        before = self.table.offsets()[0][0]
        self.table.bucket(0).handle.retain()
        assert self.table.offsets()[0][0] >= before

    @rule()
    def snapshot(self) -> None:
        assert self.table.snapshot().offsets == {0: self.model.end}

    @rule()
    def check(self) -> None:
        assert self.store.check().findings == []

    @precondition(lambda self: self.log_start)
    @rule(data=st.data())
    def look_back_too_far(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.log_start - 1))
        for ask in (lambda: rows_of(self.table, as_of=offset), lambda: self.table.undo(offset)):
            with pytest.raises(OffsetOutOfRange):
                ask()

    def compare(self) -> None:
        keys = sorted(self.model.rows)
        assert rows_of(self.table) == [self.model.rows[key] for key in keys]
        assert self.table.offsets()[0][1] == self.model.end
        assert changes_of(self.table) == [change for change in self.model.log if change[0] >= self.log_start]

    def _open(self) -> None:
        options = StoreOptions(segment_bytes_max=self.segment_bytes_max)
        self.store = Store(self.path, options, clock=self.clock)
        if self.store.list_tables():
            self.table = self.store.table("t")

    def teardown(self) -> None:
        for each in self._patches:
            each.stop()
        super().teardown()
