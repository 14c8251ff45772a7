"""What writes a bucket, for tests that hold it or watch it."""

from __future__ import annotations

import kvstore
from kvstore.bucket.committer import Committer
from kvstore.disk.environment import Environment


def committer_of(table: kvstore.Table, bucket: int = 0) -> Committer:
    """The committer of a bucket, which this process begins to write if it does not yet."""
    handle = table.bucket(bucket).handle
    handle.write()
    assert handle.engine is not None
    return handle.engine.committer


def environment_of(table: kvstore.Table, bucket: int = 0) -> Environment:
    """The environment of the index of a bucket that this process writes."""
    return committer_of(table, bucket).memtable.index.environment
