"""Runs that the kernel brings together are those of Python."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from kvstore.kernel import library
from kvstore.memtable.run import Run, merged
from logformat.binary_column import BinaryColumn


def encoded(name: int, width: int) -> bytes:
    """A key that is no beginning of another one; of some names with more bytes, if keys have no width."""
    code = b"\2" + name.to_bytes(3, "big")
    return code + b"\0" * width if width else code + b"x" * (name % 7) + b"\1" + b"y" * (name % 3) + b"\0"


@pytest.mark.skipif(library.kernel() is None, reason="there is no native kernel")
@given(st.integers(0, 1 << 30), st.integers(2, 9), st.sampled_from([3, 50, 5000]), st.sampled_from([0, 1, 8, 20]))
def test_runs_are_brought_together_as_by_python(seed: int, count: int, names: int, width: int) -> None:
    random, runs = Random(seed), []
    for _ in range(count):
        known = random.sample(range(names), random.randint(1, min(names, 60)))
        known = [name for name in known if random.random() < 0.8] or known
        keys = sorted(encoded(name, width) for name in known)
        rows = [random.choice([b"", b"a", b"row" * random.randrange(5)]) for _ in keys]
        run = Run.of(keys, rows)
        if width and random.random() < 0.5:
            flat = np.frombuffer(b"".join(keys), np.uint8)
            run = Run(BinaryColumn.from_matrix(flat.reshape(len(keys), len(keys[0]))), run.rows)
        first = random.randrange(len(keys))  # columns that do not begin at the beginning of their memory
        runs.append(run.slice(first, len(keys)))
    native = merged(runs)
    with library.switched_off():
        expected = merged(runs)
    assert list(native.items()) == list(expected.items())
    assert dict(native.items()) == {key: row for run in runs for key, row in run.items()}
    assert native.keys.width in (None, len(native.keys[0]))
