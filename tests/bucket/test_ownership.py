"""Ownership of a bucket: this process holds its lock exactly while it writes or claims the bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from kvstore.bucket.ownership import BucketOwnership
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.errors import StoreClosed
from logformat import paths

STEPS = st.lists(st.sampled_from(["take", "stop", "claim", "give back"]), max_size=12)


@given(steps=STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_lock_is_held_while_a_bucket_is_written_or_claimed(tmp_path: Path, steps: list[str]) -> None:
    ownership, other = BucketOwnership(tmp_path, Files(), SystemClock()), ProcessLock(tmp_path / paths.LOCK_FILE)
    writes = claims = False
    for step in steps:
        if step == "take":
            if not writes:
                assert ownership.try_take()
            writes = True
        elif step == "stop":
            ownership.stop()
            writes = False
        elif step == "claim":
            assert ownership.try_claim()
            claims = True
        else:
            ownership.give_back()
            claims = False
        assert ownership.is_claimed == claims
        is_free = other.try_acquire()
        other.release()
        assert is_free == (not writes and not claims)
    ownership.close()
    assert other.try_acquire()
    other.release()


def test_a_bucket_that_another_holds_is_neither_taken_nor_claimed_nor_borrowed(tmp_path: Path) -> None:
    ownership, other = BucketOwnership(tmp_path, Files(), SystemClock()), ProcessLock(tmp_path / paths.LOCK_FILE)
    other.acquire()
    assert not ownership.try_take()
    assert not ownership.try_claim()
    with ownership.borrowed() as is_owner:
        assert not is_owner
    assert not ownership.is_claimed
    other.release()
    with ownership.borrowed() as is_owner:
        assert is_owner
        assert not other.try_acquire()
    assert other.try_acquire()
    other.release()


def test_a_closed_bucket_is_not_taken_again(tmp_path: Path) -> None:
    ownership = BucketOwnership(tmp_path, Files(), SystemClock())
    ownership.close()
    with pytest.raises(StoreClosed):
        ownership.try_take()
    with pytest.raises(StoreClosed):
        ownership.try_claim()
