from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from logformat.binary_column import BinaryColumn
from logformat.rows.bucketing import bucket_of, buckets_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"


def plain(key: bytes, buckets: int) -> int:
    """The bucket of one key, by the document."""
    (code,) = re.findall(r"```python murmur3\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    found = names["murmur"](names["murmur3"](key))  # type: ignore[operator]
    return (0 if found == 2**31 else abs(found - 2**32) if found > 2**31 else found) % buckets


@given(keys=st.lists(st.binary(max_size=40), min_size=1, max_size=8), buckets=st.integers(2, 1024))
def test_buckets_of_keys_of_any_length_follow_the_document(keys: list[bytes], buckets: int) -> None:
    expected = [plain(key, buckets) for key in keys]
    assert buckets_of(BinaryColumn.from_list(keys), buckets).tolist() == expected
    assert [bucket_of(key, buckets) for key in keys] == expected


@given(width=st.integers(1, 20), data=st.data(), buckets=st.integers(2, 1024))
def test_buckets_of_keys_of_one_width_follow_the_document(width: int, data: st.DataObject, buckets: int) -> None:
    keys = data.draw(st.lists(st.binary(min_size=width, max_size=width), min_size=1, max_size=8))
    matrix = np.frombuffer(b"".join(b"\2" + key for key in keys), np.uint8).reshape(len(keys), -1)
    assert buckets_of(BinaryColumn.from_matrix(matrix), buckets, 1).tolist() == [plain(key, buckets) for key in keys]


@pytest.mark.parametrize("buckets", [2, 7, 64])
def test_keys_are_distributed_evenly(buckets: int) -> None:
    keys = BinaryColumn.from_matrix(np.arange(20_000, dtype=">u8").view(np.uint8).reshape(-1, 8))
    counts = np.bincount(buckets_of(keys, buckets), minlength=buckets)
    assert counts.min() > 0.7 * counts.mean()
