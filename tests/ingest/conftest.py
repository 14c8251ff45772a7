"""A directory of files, and a job that takes them into a table."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from tests.ingest.worlds import SCHEMA


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def job(store: kvstore.Store, source: Path) -> kvstore.Job:
    store.create_table("t", SCHEMA, "k", buckets=2)
    return store.create_job("j", source=source, format="csv", table="t", max_files=2)
