from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.testing.strategies import KEY_TYPES, columns
from logformat.binary_column import BinaryColumn
from logformat.rows import ordering
from logformat.rows.keys import ROW, KeyCodec
from logformat.rows.ordering import in_order

PREFIX = st.sampled_from([b"", b"same for all of them", b"\xff" * 20])
LONG = st.binary(max_size=3) | st.binary(min_size=30, max_size=50)


def check(keys: list[bytes], as_given: BinaryColumn | None = None) -> None:
    order, differs = in_order(as_given or BinaryColumn.from_list(keys))
    expected = sorted(range(len(keys)), key=keys.__getitem__)  # stable for equal keys, too
    assert order.tolist() == expected
    assert differs.tolist() == [keys[one] != keys[other] for one, other in pairwise(expected)]


@given(PREFIX, st.lists(st.lists(st.sampled_from(b"ab\xff"), max_size=8).map(bytes) | LONG, min_size=2, max_size=12))
def test_keys_sort_as_bytes_and_equal_keys_keep_their_order(prefix: bytes, strings: list[bytes]) -> None:
    """No key is a proper prefix of another, since each ends with a byte that none has inside."""
    check([ROW + prefix + string.replace(b"\x00", b"\x01") + b"\x00" for string in strings])


@given(st.data(), st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=3), st.integers(2, 6))
def test_keys_of_any_types_sort_as_their_bytes(data: st.DataObject, kinds: list[pa.DataType], count: int) -> None:
    parts = [data.draw(columns(kind, count, nullable=False)) for kind in kinds]
    keys = KeyCodec([pa.field(str(nth), kind, False) for nth, kind in enumerate(kinds)]).encode_prefix(parts)
    check(keys.to_list(), keys)


@pytest.mark.parametrize("length", [1, 8, 9, 13, 14, 18, 23, 28, 29, 40])
@pytest.mark.parametrize("distinct", [True, False])
def test_keys_that_differ_late_sort_as_bytes(length: int, distinct: bool, random: np.random.Generator) -> None:
    """So late that the bytes before form several numbers, or too many."""
    columns = random.integers(0, 2, (300, length)).astype(np.uint8)
    keys = [ROW + bytes(row) for row in columns]
    keys = list(dict.fromkeys(keys)) if distinct else keys
    if len(keys) > 1:
        check(keys)


def test_too_many_keys_for_numbers_are_sorted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "KEYS_MAX", 2)
    check([ROW + byte for byte in (b"b", b"a", b"b", b"c")])


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(5)
